"""A server's command line in tests: with a repository, and without this machine's variables."""

from __future__ import annotations

import pytest
from naiad.config.server.options import parse_options
from naiad.errors import OptionError


def parse(*arguments, environ=None, repository="--model-repository=/models"):
    return parse_options([repository, *arguments] if repository else arguments, environ=environ or {})


def refusal(*arguments, **options):
    with pytest.raises(OptionError) as caught:
        parse(*arguments, **options)
    return caught.value
