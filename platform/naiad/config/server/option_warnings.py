"""Flags that are understood and will not do what whoever gave them has in mind: a sentence for each, to be logged."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from naiad.config.server.backend_settings import GLOBAL, KNOWN_SETTINGS, parse_backend_configs
from naiad.config.server.flags import SERVER_FLAGS
from naiad.config.server.given import GivenFlags

__all__ = ["option_warnings"]

_PYTHON = "python"
_THERE_ARE = f"there are {', '.join(KNOWN_SETTINGS)}"
_TRACE_FILE = "triton,file="
_OPENAI = "openai-port"
"""The flag that has OpenAI's API served, and the beginning of those that say how."""


def option_warnings(given: GivenFlags) -> Iterator[str]:
    """The sentences."""
    # No errors, as for the reference: models that bring their own code need no backend, and it may be mounted later.
    yield from _folder_warnings(given, "backend-directory", "no model will find its backend there")
    yield from _folder_warnings(given, "env-directory", "no model will find an environment there")
    yield from _trace_warnings(given)
    yield from _setting_warnings(given)
    yield from _openai_warnings(given)


def _folder_warnings(given: GivenFlags, flag: str, consequence: str) -> Iterator[str]:
    for path in given.paths(flag):
        if wrong := _wrong_folder(path):
            yield f"--{flag}={path} {wrong}: {consequence}"


def _trace_warnings(given: GivenFlags) -> Iterator[str]:
    # It is opened when there is something to write, which may be long after the start.
    files = [text for text in given.texts("trace-config") if text.startswith(_TRACE_FILE)]
    file = Path(files[-1].removeprefix(_TRACE_FILE) if files else given.text("trace-file"))
    if file.name and (wrong := _wrong_folder(file.parent)):
        yield f"traces cannot be written to {file}: {file.parent} {wrong}"


def _wrong_folder(path: Path) -> str:
    if path.is_dir():
        return ""
    return f"{'is not a directory' if path.exists() else 'does not exist'} ({path.absolute()})"


def _setting_warnings(given: GivenFlags) -> Iterator[str]:
    for backend, settings in parse_backend_configs(given.texts("backend-config")).items():
        for key, value in settings.items():
            name = f"--backend-config={backend and f'{backend},'}{key}={value}"
            if backend not in (GLOBAL, _PYTHON):
                yield f"{name} has no effect: settings of '{_PYTHON}' are read alone, shared backends have them, too"
            elif key not in KNOWN_SETTINGS:
                near = difflib.get_close_matches(key, KNOWN_SETTINGS, n=1, cutoff=0.7)
                yield f"{name} has no effect: {f'did you mean {near[0]}?' if near else _THERE_ARE}"


def _openai_warnings(given: GivenFlags) -> Iterator[str]:
    if given.has(_OPENAI):
        return
    family = f"{_OPENAI.partition('-')[0]}-"
    useless = [f"--{flag.name}" for flag in SERVER_FLAGS if flag.name.startswith(family) and given.has(flag.name)]
    if useless:
        verb = "has" if len(useless) == 1 else "have"
        yield f"{', '.join(useless)} {verb} no effect: OpenAI's API is served only with --{_OPENAI}"
