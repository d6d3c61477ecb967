"""The findings' codes, messages and advice: all codes are documented, and each says what to do."""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from pathlib import Path

import pytest
from naiad_stub.native.elf import write_library
from operations.doctor.repository import CONFIG, IO, model, parameter, write

import naiad_operations.doctor
from naiad.cli.main import main
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.resolution.native_library import NativeLibrary
from naiad_operations.doctor.machine import examine_interpreter
from naiad_operations.doctor.native_library import examine_native_library

ROOT = Path(__file__).resolve().parents[3]
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
ENTRY = "TRITONBACKEND_ModelInstanceExecute"
CORRECT = "correct the configuration"
CONFIGURATIONS = {
    "less": (
        parameter("min_instances", 4) + parameter("max_instances", 2),
        "parameter max_instances of model 'less' is 2, less than min_instances=4",
    ),
    "fixed": (
        parameter("min_instances", 2),
        (
            "parameter min_instances of model 'fixed' has no effect without max_instances: the number of its instances is "
            "fixed"
        ),
    ),
    "many": (
        parameter("max_instances", 5000),
        "parameter max_instances of model 'many' is '5000': give a number of instances from 1 to 4096",
    ),
    "groups": (
        parameter("max_instances", 2) + "instance_group { count: 1 } instance_group { count: 1 }",
        (
            "parameters min_instances and max_instances of model 'groups' need one instance group on one device: its "
            "configuration has several"
        ),
    ),
    "limited": (
        parameter("max_instances", 2) + "instance_group { rate_limiter { priority: 1 } }",
        (
            "parameters min_instances and max_instances of model 'limited' cannot be used with rate_limiter or passive of "
            "its instance group"
        ),
    ),
    "waits": (
        parameter("max_instances", 2) + parameter("scale_wait_ms", "soon"),
        "parameter scale_wait_ms of model 'waits' is 'soon': give a number of milliseconds above 0",
    ),
    "native": (
        parameter("max_instances", 2),
        (
            "parameters min_instances and max_instances of model 'native' need a model in Python: the instances of a "
            "native backend cannot be added while it serves"
        ),
    ),
}
"""Intervals of instances that a server rejects, with what it says."""


def codes_of_source():
    """The codes in `naiad_operations.doctor`: arguments of what makes findings, and keys of advice."""
    makes = {"error_finding": 0, "warning_finding": 0, "note_finding": 0, "Finding": 1, "_add_warning": 0}
    found = set()
    for path in Path(naiad_operations.doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                position = makes.get(getattr(node.func, "id", getattr(node.func, "attr", "")), len(node.args))
                codes = [each for argument in node.args[position : position + 1] for each in ast.walk(argument)]
                found |= {each.value for each in codes if isinstance(each, ast.Constant)}
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_ADVICE":
                found |= {key.value for key in node.value.keys}
    return {each for each in found if each != "code"}


def test_the_page_lists_the_codes_of_the_source():
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text().partition("## Findings")[2].partition("\n## ")[0]
    listed = {
        code for row in re.findall(r"^\| (`[a-z`, -]+`) \|", page, re.MULTILINE) for code in re.findall(r"`(.+?)`", row)
    }
    assert listed == codes_of_source()


@pytest.fixture
def examine(tmp_path, capsys):
    def run(*flags):
        folders = [str(tmp_path / "models"), f"--backend-directory={tmp_path / 'backends'}"]
        main(["doctor", *folders, f"--env-store={tmp_path / 'store'}", *PORTS, "--json", *flags])
        return json.loads(capsys.readouterr().out)

    return run


def test_intervals_of_instances_that_a_server_rejects_are_errors(tmp_path, examine):
    (tmp_path / "backends").mkdir()
    for name, (parameters, _) in CONFIGURATIONS.items():
        write(tmp_path / "models" / name, model(config=CONFIG + parameters))
    library = write_library([ENTRY], "libtriton_own.so")
    write(tmp_path / "models" / "native", {"libtriton_own.so": library, "1/.keep": ""})
    native = f'backend: "own"{IO}{CONFIGURATIONS["native"][0]}'
    (tmp_path / "models" / "native" / "config.pbtxt").write_text(native)

    findings = examine()["findings"]

    assert {each["model"]: each["message"] for each in findings} == {
        name: message for name, (_, message) in CONFIGURATIONS.items()
    }
    assert {(each["severity"], each["code"], each["advice"]) for each in findings} == {("error", "config", CORRECT)}
    lines = dict.fromkeys(CONFIGURATIONS, 4) | {"less": 5, "waits": 5}  # of the parameter that the message names
    assert {each["model"]: Path(each["where"]).name for each in findings} == {
        name: f"config.pbtxt:{line}" for name, line in lines.items()
    }


def test_an_invalid_parameter_is_an_error_and_the_rest_of_the_model_is_examined(tmp_path, examine):
    (tmp_path / "backends").mkdir()
    imports = "import no_such_package\n" + model()["1/model.py"]
    for name, (key, text) in {
        "hangs": ("HANG_SECONDS", "soon"),
        "large": ("memory_limit", "much"),
        "shares": ("native_shared_model", "perhaps"),
        "forks": ("PREWARM", "1st"),
    }.items():
        write(tmp_path / "models" / name, model(imports, CONFIG + parameter(key, text)))

    found = {(each["model"], each["code"]): each for each in examine()["findings"]}

    assert {name for name, code in found if code == "config"} == {"hangs", "large", "shares", "forks"}
    assert {name for name, code in found if code != "config"} == {"hangs", "large", "shares", "forks"}, "the import"
    wanted = "parameter memory_limit of model 'large': 'much' is not a size such as 10GB, 512MiB or 1000000"
    assert found["large", "config"]["message"] == wanted
    assert found["large", "config"]["where"] == f"{tmp_path / 'models' / 'large' / 'config.pbtxt'}:4"


def test_demand_is_examined_with_the_flags_of_the_server(tmp_path, examine):
    (tmp_path / "backends").mkdir()
    completes = "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    write(tmp_path / "models" / "asked", model(model()["1/model.py"] + completes, 'backend: "python"\n'))
    write(tmp_path / "models" / "sometimes", model(config=CONFIG + parameter("demand", "sometimes")))
    write(tmp_path / "models" / "idle", model(config=CONFIG + parameter("idle_seconds", "-1")))

    found = {each["model"]: each for each in examine("--model-control-mode=demand")["findings"]}

    asked = found["asked"]
    assert (asked["severity"], asked["code"], asked["message"], asked["advice"]) == (
        "note",
        "asked-at-start",
        "it is loaded on demand and its code completes the configuration, so each start of the server runs that code",
        "write its inputs and outputs into config.pbtxt",
    )
    assert found["sometimes"]["message"].startswith("parameter demand of model 'sometimes' is 'sometimes'")
    assert found["idle"]["message"].startswith("parameter idle_seconds of model 'idle' is '-1'")
    assert {found[name]["advice"] for name in ("sometimes", "idle")} == {CORRECT}


def test_parameters_of_saved_models_that_have_no_effect_are_notes(tmp_path, examine):
    (tmp_path / "backends").mkdir()
    for name, backend, parameters in (
        ("shares", "pytorch", parameter("ENABLE_WEIGHT_SHARING", "true")),
        ("shares_not", "pytorch", parameter("ENABLE_WEIGHT_SHARING", "false") + parameter("INFERENCE_MODE", "true")),
        ("trees", "fil", parameter("chunk_size", "8")),
        ("other", "python", parameter("chunk_size", "8")),
    ):
        write(tmp_path / "models" / name, model(config=CONFIG.replace('"python"', f'"{backend}"') + parameters))

    # Nothing is installed: what a parameter means is known without its environment.
    findings = examine("--env-build=never")["findings"]
    found = [each for each in findings if each["code"] == "without-effect"]

    assert [(each["model"], each["severity"], each["message"]) for each in found] == [
        (
            "shares",
            "note",
            ("the parameter ENABLE_WEIGHT_SHARING has no effect: each instance is a process with weights of its own"),
        ),
        ("trees", "note", "the parameter chunk_size has no effect: Treelite computes on processors"),
    ]


def test_libraries_that_a_native_backend_lacks_are_named(tmp_path):
    path = tmp_path / "libtriton_own.so"
    path.write_bytes(write_library([ENTRY], path.name))
    library = NativeLibrary(path=path, needed=("libx.so.1", "libm.so.6"), missing=("libx.so.1",))

    here = ReadyEnvironment(
        source=None,
        prefix=Path(sys.prefix),
        python=Path(sys.executable),
        version=sys.version_info[:3],
        cache_tag="",
        abi="",
        numpy_version=None,
    )

    (found,) = examine_native_library(library, here)

    assert (found.code, found.message, found.where) == (
        "missing-library",
        "libtriton_own.so needs libx.so.1, which the loader does not find on this machine",
        str(path),
    )
    assert found.advice == (
        "install it, put its directory into LD_LIBRARY_PATH, or link the backend with -Wl,-rpath,'$ORIGIN'"
    )


OPTIMIZED = "'--prefix=/x' '--enable-optimizations' '--with-lto'"


@pytest.mark.parametrize(
    ("arguments", "prefix", "is_slow"),
    [("'--prefix=/x'", "/x", True), (OPTIMIZED, "/x", False), ("'--prefix=/usr'", "/usr", False), (None, "/x", False)],
    ids=["pyenv", "conda", "distribution", "unknown"],
)
def test_a_python_without_optimisations_is_named(monkeypatch, arguments, prefix, is_slow):
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(sys, "executable", "/x/bin/python")
    findings = list(examine_interpreter())
    assert [finding.code for finding in findings] == ["slow-python"] * is_slow
    for finding in findings:
        assert finding.where == "/x/bin/python"
        assert "compiled without --enable-optimizations: a request takes 20 to 30 % more" in finding.message
