"""API keys: which ones are accepted now."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.config.server.access import read_api_keys
from naiad.core.errors import OptionError
from naiad.frontends.http1.heads import is_repeated
from naiad_llm.openai.errors import UNAUTHORIZED, ApiError

logger = logging.getLogger("naiad.openai")


class ApiKeys:
    """The accepted keys. Those of a file are read again when the file has changed."""

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        """*keys* never change; `OptionError` if *file*, which has more, cannot be read or contains none."""
        self.is_required = bool(keys) or file is not None
        self._fixed = [key.encode() for key in keys]
        self._file = file
        self._version: tuple[int, ...] = ()
        self._of_file: list[bytes] = []
        if file is not None:
            self._version = _version_of(file)
            self._of_file = [key.encode() for key in read_api_keys(file)]

    def owner(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The key that a client has sent, which tells clients apart; b"" for all of them if none is required."""
        return presented_key(headers) if self.is_required else b""

    def accepts(self, key: bytes) -> bool:
        if self._file is not None:
            self._follow(self._file)
        # All keys are compared, each in constant time, so that the response time reveals nothing about them.
        return sum(hmac.compare_digest(key, known) for known in (*self._fixed, *self._of_file)) > 0

    def _follow(self, file: Path) -> None:
        """Read the file again if it has changed.

        A file that is missing, unreadable or empty does not change the keys: it may just be written. It must not
        open the API to everybody either.
        """
        version = _version_of(file)
        if version == self._version:
            return
        self._version = version
        try:
            keys = read_api_keys(file)
        except OptionError as error:
            logger.error("%s; the keys that were read before stay valid", error.message)  # noqa: TRY400 - the text says all
            return
        self._of_file = [key.encode() for key in keys]
        logger.info("read %d API keys from %s, which has changed", len(keys), file)


def presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key in the headers of a request; b"" for none.

    OpenAI's clients send `Authorization: Bearer KEY`, Anthropic's `x-api-key: KEY`.
    """
    for name in (b"authorization", b"x-api-key"):
        if is_repeated(headers, name):
            raise ApiError(
                f"The header '{name.decode().title()}' is repeated; send it once",
                status=UNAUTHORIZED,
            )
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


def _version_of(file: Path) -> tuple[int, ...]:
    """What differs between two contents of a file; empty if it is missing."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
