"""One declaration of an option gives its flag, its place in the usage, and its field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from naiad.config.server.flag import Flag, Kind, NoEffect, UsageError
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.option_group import combined, flags_of, option, read_group


@dataclass(frozen=True, kw_only=True)
class Group:
    port: int = option("port", "Port.", Kind.INTEGER, "80", low=0)
    threads: ClassVar[Flag] = Flag("threads", "Threads.", Kind.INTEGER, "1", support=NoEffect("one is enough for all"))
    names: tuple[str, ...] = option(
        "name", "Name.", repeatable=True, read=lambda values, name: tuple(values.texts(name))
    )
    span: tuple[object, object] = combined(
        lambda values: (values.last("first"), values.last("last")),
        Flag("first", "First.", Kind.INTEGER, "1"),
        Flag("last", "Last.", Kind.INTEGER),
    )


FLAGS = flags_of("Group", Group, [Flag("old", "Old.", Kind.NOTHING)])


def read(**texts):
    given = [(flag, texts[flag.name]) for flag in FLAGS if flag.name in texts]
    return read_group(Group, FlagValues(given, FLAGS, {}))


def test_flags_keep_the_order_of_the_class_body_under_one_heading():
    assert [flag.name for flag in FLAGS] == ["port", "threads", "name", "first", "last", "old"]
    assert {flag.group for flag in FLAGS} == {"Group"}
    assert FLAGS[0].low == 0


def test_fields_are_read_from_the_values_given_or_have_the_defaults_of_their_flags():
    assert read() == Group(port=80, names=(), span=(1, None))
    assert read(port="8080", name="a", last="9") == Group(port=8080, names=("a",), span=(1, 9))


def test_bounds_of_a_declaration_are_checked():
    with pytest.raises(UsageError, match="--port must be at least 0"):
        read(port="-1")
