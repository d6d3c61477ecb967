"""A server's command line in tests: with a repository, and without this machine's variables."""

from __future__ import annotations

import pytest

from naiad.config.server.command_line import read_options
from naiad.config.server.flag import UsageError
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.core.errors import OptionError


def parse_options(arguments, *, environ):
    found, others = split_arguments(arguments, SERVER_FLAGS, "tritonserver")
    if others:
        raise UsageError(f"Unexpected argument: {others[0]}")
    return read_options(found, environ=environ)


def parse(*arguments, environ=None, repository="--model-repository=/models"):
    return parse_options([repository, *arguments] if repository else arguments, environ=environ or {})


def refusal(*arguments, **options):
    with pytest.raises(OptionError) as caught:
        parse(*arguments, **options)
    return caught.value
