"""The flags of one command line with their values, and what is to be said about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from naiad.config.server.flag import Accepted, Flag, Refused, UsageError, Value, as_written, bad_value, convert
from naiad.config.server.flags import SERVER_FLAGS
from naiad.errors import OptionError

__all__ = ["GivenFlags"]

_URI = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE_URI = "file://"
_BY_NAME = {flag.name: flag for flag in SERVER_FLAGS}


class GivenFlags:
    """Values of flags by name; one that was not given has its default.

    Raises:
        UsageError: If a text is not a value of its flag.
    """

    def __init__(self, found: Sequence[tuple[Flag, str]]) -> None:
        self._found = tuple(found)
        self._values: dict[str, list[Value]] = {}
        for flag, text in self._found:
            self._values.setdefault(flag.same_as or flag.name, []).append(convert(flag, text))

    def has(self, name: str) -> bool:
        """Whether a flag was given at all."""
        return name in self._values

    def last(self, name: str) -> Value | None:
        """The value that counts: the last given, else the default, else none."""
        if name in self._values:
            return self._values[name][-1]
        flag = _BY_NAME[name]
        return convert(flag, flag.default) if flag.default else None

    def text(self, name: str) -> str:
        """The value of a flag that takes text, empty if there is none."""
        value = self.last(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """The value of a flag that takes an integer and has a default."""
        value = self.last(name)
        assert isinstance(value, int), name
        return value

    def switch(self, name: str) -> bool:
        """Whether a flag is on."""
        return bool(self.last(name))

    def texts(self, name: str) -> list[str]:
        """All values of a flag that may be repeated, in order."""
        return [str(value) for value in self._values.get(name, ())]

    def paths(self, name: str) -> tuple[Path, ...]:
        """All values of a flag that names files, in order, each once."""
        return tuple(dict.fromkeys(Path(text) for text in self.texts(name)))

    def places(self, name: str) -> tuple[Path | str, ...]:
        """As `paths`, with URIs left as they are: a path would make one slash of two."""
        return tuple(
            dict.fromkeys(text if _URI.match(text) else Path(text.removeprefix(_FILE_URI)) for text in self.texts(name))
        )

    def bad(self, name: str, detail: str) -> UsageError:
        """The error about a value of a flag, to be raised."""
        return bad_value(_BY_NAME[name], detail)

    def as_written(self) -> tuple[str, ...]:
        """The flags in one spelling, for the log."""
        return tuple(as_written(flag, text) for flag, text in self._found)

    def check_refusals(self) -> None:
        """Look for what this version does not do.

        Raises:
            OptionError: With the flag and the reason; never silence.
        """
        for flag, text in self._found:
            if isinstance(flag.status, Refused) and not flag.status.harmless(text):
                raise OptionError(f"--{flag.name}={text} is refused: {flag.status.reason}")

    def notices(self) -> tuple[str, ...]:
        """A sentence for each flag that was given and has no effect."""
        flags = dict.fromkeys(flag for flag, _ in self._found)
        return tuple(
            f"--{flag.name} has no effect here: {flag.status.reason}"
            for flag in flags
            if isinstance(flag.status, Accepted)
        )

    def warnings(self) -> tuple[str, ...]:
        """A sentence for each deprecated flag that was given."""
        flags = dict.fromkeys(flag for flag, _ in self._found if flag.deprecated)
        return tuple(f"--{flag.name} is deprecated; use {flag.deprecated} instead" for flag in flags)
