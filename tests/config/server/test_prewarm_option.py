"""For which models imports are done once, and which imports."""

from __future__ import annotations

import pytest
from cli.parsing import parse_options

from naiad.config.server.prewarm import PrewarmOption, parse_prewarm


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("", PrewarmOption()),
        ("false", PrewarmOption()),
        ("True", PrewarmOption(every=True)),
        ("resnet", PrewarmOption(models=frozenset({"resnet"}))),
        (" a, b,,", PrewarmOption(models=frozenset({"a", "b"}))),
    ],
)
def test_the_flag_means_all_models_none_or_those_it_names(text, option):
    assert parse_prewarm(text) == option
    assert parse_options(["--model-repository=/models", f"--prewarm={text}"], environ={}).guests.prewarm == option


@pytest.mark.parametrize(
    ("given", "option", "modules"),
    [
        (None, PrewarmOption(), ()),
        (None, PrewarmOption(every=True), ("numpy",)),
        (None, PrewarmOption(models=frozenset({"m"})), ("numpy",)),
        (None, PrewarmOption(models=frozenset({"other"})), ()),
        ((), PrewarmOption(every=True), ()),
        (("numpy", "torch"), PrewarmOption(), ("numpy", "torch")),
    ],
)
def test_the_models_parameter_overrides_the_flag(given, option, modules):
    assert option.modules_for("m", given) == modules
