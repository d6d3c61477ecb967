"""The server's own parameters of a model: parsed where its configuration is frozen, with their place in the file."""

from __future__ import annotations

import copy

import pytest
from cli.parsing import parse

from naiad.config.model.model_config import freeze
from naiad.config.model.parameters import (
    NO_PARAMETERS_GIVEN,
    MemoryLimit,
    ModelParameters,
    or_default,
    parse_parameters,
    place_of_parameter,
    without_own_parameters,
)
from naiad.config.model.scaling import ScalingPolicy
from naiad.config.model.text import parse_text
from naiad.core.errors import ConfigError, ParameterError
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import read_frozen_config

GIVEN = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
NUMPY = ("numpy",)


def message(more="", **given):
    return parse_text(f'name: "m" {more}\n' + "".join(GIVEN.format(*pair) for pair in given.items()), "config.pbtxt")


def parameters(**given):
    return parse_parameters(message(**given))


def error_of(**given):
    with pytest.raises(ParameterError) as caught:
        parameters(**given)
    (name,) = given
    assert caught.value.parameter == name
    return caught.value.message


@pytest.mark.parametrize(
    "name",
    ["demand", "idle_seconds", "HANG_SECONDS", "memory_limit", "native_shared_model", "PREWARM", "max_instances"],
)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_parameter_leaves_the_decision_to_the_servers_options(name, text):
    assert parameters(**{name: text}) == NO_PARAMETERS_GIVEN == parameters(own="of the model")


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ({"demand": "true"}, ModelParameters(is_on_demand=True)),
        ({"demand": "Pinned"}, ModelParameters(is_on_demand=False)),
        ({"demand": "false"}, ModelParameters(is_on_demand=False)),
        ({"idle_seconds": "0"}, ModelParameters(idle_seconds=0)),
        ({"idle_seconds": "2.5"}, ModelParameters(idle_seconds=2.5)),
        ({"HANG_SECONDS": "0"}, ModelParameters(hang_seconds=0)),
        ({"HANG_SECONDS": "2.5"}, ModelParameters(hang_seconds=2.5)),
        ({"memory_limit": "2GiB"}, ModelParameters(memory_limit=MemoryLimit(2 << 30, "2GiB"))),
        ({"native_shared_model": "true"}, ModelParameters(is_native_shared=True)),
        ({"native_shared_model": "0"}, ModelParameters(is_native_shared=False)),
        ({"PREWARM": "false"}, ModelParameters(prewarmed_modules=())),
        ({"PREWARM": "TRUE"}, ModelParameters(prewarmed_modules=NUMPY)),
        ({"PREWARM": "torch"}, ModelParameters(prewarmed_modules=("numpy", "torch"))),
        (
            {"PREWARM": "pandas, numpy,scipy.stats ,pandas"},
            ModelParameters(prewarmed_modules=("numpy", "pandas", "scipy.stats")),
        ),
        ({"max_instances": "4"}, ModelParameters(scaling=ScalingPolicy(least=1, most=4, wait=0.1, idle=60))),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}, ModelParameters(takes_device_inputs=True)),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "yes"}, NO_PARAMETERS_GIVEN),
    ],
)
def test_each_parameter_is_parsed_where_the_configuration_is_frozen(given, parsed):
    config = freeze(message(**given))
    assert config.settings == parsed
    assert dict(config.parameters) == given


def test_what_the_model_gives_goes_before_the_servers_option():
    assert [or_default(None, 7.0), or_default(0.0, 7.0)] == [7, 0]
    assert [or_default(None, True), or_default(False, True)] == [True, False]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        *(
            (name, text, f" is '{text}': give a number of seconds, or 0 for {zero}")
            for text in ("soon", "-1", "nan", "inf")
            for name, zero in (("HANG_SECONDS", "no limit"), ("idle_seconds", "never"))
        ),
        (
            *("demand", "sometimes"),
            " is 'sometimes': give true (its first request loads it) or pinned (it is loaded at the start and stays)",
        ),
        ("native_shared_model", "yes", " is 'yes': give true or false"),
        ("memory_limit", "much", ": 'much' is not a size such as 10GB, 512MiB or 1000000"),
        ("memory_limit", "512", " is '512', too little for any guest; give a size such as 2GiB"),
        *(
            (
                *("PREWARM", text),
                (
                    f" is '{text}', in which '{module}' is not a module's name: give \"true\", \"false\", or modules of "
                    'its environment separated by commas, such as "numpy,torch"'
                ),
            )
            for text, module in (("numpy torch",) * 2, ("a,,b", ""), ("a,.b", ".b"), ("1st", "1st"), ("a-b", "a-b"))
        ),
    ],
)
def test_an_invalid_parameter_is_rejected_with_what_to_give(name, text, problem):
    assert error_of(**{name: text}) == f"parameter {name} of model 'm'{problem}"


def test_an_ensemble_has_no_parameters_of_guests():
    ensemble = message("ensemble_scheduling { step { model_name: 'other' } }", HANG_SECONDS="soon", demand="sometimes")
    assert parse_parameters(ensemble) == NO_PARAMETERS_GIVEN


def test_a_configuration_without_its_own_parameters_keeps_the_others():
    given = message(HANG_SECONDS="soon", max_instances="many", own="of the model")
    assert dict(freeze(without_own_parameters(given)).parameters) == {"own": "of the model"}
    assert len(given.parameters) == len(("HANG_SECONDS", "max_instances", "own"))


def test_an_error_can_be_copied_with_the_name_of_its_parameter():
    error = copy.copy(ParameterError("text", parameter="demand"))
    assert (error.message, error.parameter) == ("text", "demand")


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["", 'parameters { key: "demand" value { string_value: "x" } }'], ":2"),
        (["parameters [", "  {", "    key : 'demand'", "  }", "]"], ":3"),
        (['parameters { key: "demand" }', 'parameters { key: "demand" }'], ":2"),
        (['parameters { key: "demand" }', '# parameters { key: "demand" }'], ":1"),
        (['parameters { key: "demand_of" }'], ""),
        ([], ""),
    ],
)
def test_the_place_of_a_parameter_is_the_line_of_its_last_key(tmp_path, lines, line):
    path = tmp_path / "config.pbtxt"
    path.write_text("\n".join(lines))
    assert place_of_parameter(path, "demand") == f"{path}{line}"


def test_a_parameter_has_no_line_in_a_file_that_cannot_be_read(tmp_path):
    assert place_of_parameter(tmp_path / "no", "demand") == str(tmp_path / "no")
    (tmp_path / "latin").write_bytes(b"\xff")
    assert place_of_parameter(tmp_path / "latin", "demand") == str(tmp_path / "latin")


@pytest.mark.parametrize("value", ["maybe", "NO", "true", ""])
def test_a_wrong_word_on_inputs_in_gpu_memory_is_refused_as_by_the_reference(value):
    assert error_of(FORCE_CPU_ONLY_INPUT_TENSORS=value) == (
        f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}'; give 'yes' (inputs are on the CPU) or 'no' in lower "
        "case"
    )
    other = message('backend: "own"', FORCE_CPU_ONLY_INPUT_TENSORS=value)
    assert parse_parameters(other) == NO_PARAMETERS_GIVEN, "the parameter is that of the Python backend"


def test_reading_a_model_names_file_and_line_of_an_invalid_parameter(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    path = tmp_path / "m" / "config.pbtxt"
    path.write_text('name: "m"\nbackend: "python"\n' + GIVEN.format("HANG_SECONDS", "soon"))
    with pytest.raises(ConfigError, match=f"^{path}:3: parameter HANG_SECONDS of model 'm' is 'soon': give a number"):
        read_frozen_config(ModelFiles(name="m", repository=tmp_path, directory=path.parent), parse().models)
