"""The values of the flags on one command line, by flag name, and the messages about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from naiad.config.server.flag import (
    Flag,
    NoEffect,
    Unsupported,
    UsageError,
    Value,
    format_flag,
    invalid_value,
    parse_value,
    unread_rest,
)
from naiad.core.errors import OptionError

T = TypeVar("T")
_URI = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE_URI = "file://"


class FlagValues:
    """Values of flags by name; a flag that was not given has its default, or that of its environment variable."""

    def __init__(self, given: Sequence[tuple[Flag, str]], flags: Iterable[Flag], environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._flags = {flag.name: flag for flag in flags}
        self._given = tuple(given)
        self._values: dict[str, list[Value]] = {}
        for flag, text in self._given:
            self._values.setdefault(flag.same_as or flag.name, []).append(parse_value(flag, text))

    def has(self, name: str) -> bool:
        return name in self._values

    def last(self, name: str) -> Value | None:
        if name in self._values:
            return self._values[name][-1]
        flag = self._flags[name]
        return parse_value(flag, flag.default) if flag.default else None

    def text(self, name: str) -> str:
        value = self.last(name)
        return "" if value is None else str(value)

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None

    def switch(self, name: str) -> bool:
        return bool(self.last(name))

    def texts(self, name: str) -> list[str]:
        return [str(value) for value in self._values.get(name, ())]

    def paths(self, name: str) -> tuple[Path, ...]:
        """All values of a repeatable flag that names files, in order, without duplicates."""
        return tuple(dict.fromkeys(Path(text) for text in self.texts(name)))

    def locations(self, name: str) -> tuple[Path | str, ...]:
        """As `paths`, but URIs stay text: `Path` would collapse the two slashes of `s3://` into one."""
        return tuple(
            dict.fromkeys(text if _URI.match(text) else Path(text.removeprefix(_FILE_URI)) for text in self.texts(name))
        )

    def parsed(self, name: str, parse: Callable[[str], T]) -> T:
        """The parsed text of a flag; an OptionError of *parse* becomes the error about this flag."""
        try:
            return parse(self.text(name))
        except OptionError as error:
            raise self.invalid(name, error.message) from None

    def invalid(self, name: str, detail: str) -> UsageError:
        return invalid_value(self._flags[name], detail)

    def as_written(self) -> tuple[str, ...]:
        return tuple(format_flag(flag, text) for flag, text in self._given)

    def reject_unsupported(self) -> None:
        """Check that no flag asks for a feature that this version lacks."""
        for flag, text in self._given:
            if isinstance(flag.support, Unsupported) and not flag.support.is_harmless(text):
                raise OptionError(f"--{flag.name}={text} is refused: {flag.support.reason}")

    def notices(self) -> tuple[str, ...]:
        """A sentence for each flag that was given and has no effect."""
        flags = dict.fromkeys(flag for flag, _ in self._given)
        return tuple(
            f"--{flag.name} has no effect here: {flag.support.reason}"
            for flag in flags
            if isinstance(flag.support, NoEffect)
        )

    def shortened(self) -> tuple[str, ...]:
        """A warning for each number with text after it, which is ignored as by the reference."""
        return tuple(
            f"--{flag.name}={text} is read as {parse_value(flag, text)}: '{rest}' has no effect; give the number alone"
            for flag, text in self._given
            if (rest := unread_rest(flag, text))
        )

    def deprecations(self) -> tuple[str, ...]:
        """A sentence for each deprecated flag that was given."""
        flags = dict.fromkeys(flag for flag, _ in self._given if flag.deprecated)
        return tuple(f"--{flag.name} is deprecated; use {flag.deprecated} instead" for flag in flags)
