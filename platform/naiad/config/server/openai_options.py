"""The flags of OpenAI's API as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.given import GivenFlags
from naiad.errors import OptionError

KEYS_VARIABLE = "NAIAD_OPENAI_API_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """Where and how OpenAI's API is served.

    Attributes:
        address: Address to listen on.
        port: Port to listen on.
        keys: Keys that clients may show; none: nobody has to. They come from a file or the environment, as a command
            line can be read by everybody on the machine.
        default_tokens: `--openai-default-max-tokens`; None if it was not given.
        lora_separator: `--openai-lora-separator`.
        chat_template: `--openai-chat-template`.
        origins: `--openai-allowed-origins`.
    """

    address: str
    port: int
    keys: tuple[str, ...] = ()
    default_tokens: int | None = None
    lora_separator: str = ""
    chat_template: Path | None = None
    origins: tuple[str, ...] = ()


def parse_openai_options(given: GivenFlags, environ: Mapping[str, str]) -> OpenAiOptions | None:
    """The options of OpenAI's API; None unless it was asked for.

    Raises:
        OptionError: If the file of keys cannot be read or holds none.
    """
    if not given.has("openai-port"):
        return None
    tokens = given.last("openai-default-max-tokens")
    return OpenAiOptions(
        address=given.text("openai-address") or given.text("http-address"),
        port=given.number("openai-port"),
        keys=_keys(given.text("openai-api-keys-file"), environ),
        default_tokens=None if tokens is None else int(tokens),
        lora_separator=given.text("openai-lora-separator"),
        chat_template=Path(given.text("openai-chat-template")) if given.text("openai-chat-template") else None,
        origins=tuple(filter(None, map(str.strip, given.text("openai-allowed-origins").split(",")))),
    )


def _keys(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    keys = [key.strip() for key in environ.get(KEYS_VARIABLE, "").split(",")]
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise OptionError(f"cannot read the keys of --openai-api-keys-file={path}: {problem}") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise OptionError(f"--openai-api-keys-file={path} holds no key; write one on each line")
        keys += found
    return tuple(dict.fromkeys(key for key in keys if key))
