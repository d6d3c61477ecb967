"""For which models imports are done once, and which imports."""

from __future__ import annotations

import pytest
from cli.parsing import parse_options

from naiad.config.server.prewarm import PrewarmOption, modules_to_prewarm, parse_prewarm
from naiad.core.errors import ConfigError


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
    ("parameter", "option", "modules"),
    [
        ("", PrewarmOption(), ()),
        ("", PrewarmOption(every=True), ("numpy",)),
        ("", PrewarmOption(models=frozenset({"m"})), ("numpy",)),
        ("", PrewarmOption(models=frozenset({"other"})), ()),
        ("false", PrewarmOption(every=True), ()),
        ("TRUE", PrewarmOption(), ("numpy",)),
        ("torch", PrewarmOption(), ("numpy", "torch")),
        ("pandas, numpy,scipy.stats ,pandas", PrewarmOption(every=True), ("numpy", "pandas", "scipy.stats")),
    ],
)
def test_the_models_parameter_overrides_the_flag(parameter, option, modules):
    assert modules_to_prewarm("m", parameter, option) == modules


@pytest.mark.parametrize(
    ("parameter", "name"),
    [("numpy torch", "numpy torch"), ("a,,b", ""), ("a,.b", ".b"), ("1st", "1st"), ("a-b", "a-b")],
)
def test_an_impossible_module_name_is_refused(parameter, name):
    with pytest.raises(ConfigError) as caught:
        modules_to_prewarm("m", parameter, PrewarmOption())
    assert caught.value.message == (
        f"parameter PREWARM of model 'm' is '{parameter}', in which '{name}' is not a module's name: "
        'give "true", "false", or modules of its environment separated by commas, such as "numpy,torch"'
    )
