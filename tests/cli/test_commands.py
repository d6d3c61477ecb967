"""The commands: what they print, where, and their exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from serving.written import write_model

from naiad.cli.command_line import usage
from naiad.cli.commands import naiad_group
from naiad.cli.examples import EXAMPLES
from naiad.config.server.options import SERVER_FLAGS
from naiad.core import json_cache

CONFIG = """
backend: "{backend}"
input [{{ name: "x" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [1] }}]
"""


@pytest.fixture
def repository(tmp_path):
    """Models `own` of backend python, `a` of a shared backend, and `broken`, with their backend directory."""
    for name, backend in (("own", "python"), ("a", "shared"), ("broken", "nosuch")):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(backend=backend))
        (version / "model.py").write_text("")
    (tmp_path / "backends" / "shared").mkdir(parents=True)
    (tmp_path / "backends" / "shared" / "model.py").write_text("")
    return tmp_path


@pytest.fixture
def explain(repository, run):
    """Explains a model of that repository."""
    places = (
        f"--model-repository={repository / 'models'}",
        f"--backend-directory={repository / 'backends'}",
        f"--env-store={repository / 'store'}",
    )
    return lambda *arguments: run("naiad", "explain", *arguments, *places)


def test_the_usage_has_one_line_for_each_flag(monkeypatch):
    monkeypatch.setenv("COLUMNS", "132")
    lines = usage("tritonserver", SERVER_FLAGS).splitlines()
    flags = [line for line in lines if line.startswith("  --")]
    assert [line.split()[0] for line in flags] == [f"--{flag.name}" for flag in SERVER_FLAGS]
    assert len(lines) == 1 + len(flags) + 2 * len({flag.group for flag in SERVER_FLAGS})
    assert max(map(len, lines)) <= 132  # columns of a wide terminal


@pytest.mark.parametrize(
    ("command", "shown"), [(("tritonserver",), "tritonserver"), (("naiad", "serve"), "naiad serve [FILE]...")]
)
def test_help_is_printed_to_stdout(command, shown, run):
    result = run(*command, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"Usage: {shown} [options]\n\nServer:\n")
    assert result.stderr == ""


@pytest.mark.server
def test_the_command_of_an_interpreter_is_started_by_its_module():
    command = [sys.executable, "-m", "naiad", "env", "buidl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env={"PATH": ""})
    assert (result.returncode, "did you mean build?" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("help",), ("--help",)),
        (("help", "env", "build"), ("env", "build", "--help")),
        (("version",), ("--version",)),
        (("-V",), ("--version",)),
    ],
)
def test_help_and_version_are_commands_too(words, flags, run):
    result = run("naiad", *words)
    assert (result.returncode, result.stdout) == (0, run("naiad", *flags).stdout)


@pytest.mark.parametrize(("wrong", "meant"), [("build", "naiad env build"), ("backend", "naiad init backend")])
def test_a_command_of_a_group_is_named_where_the_group_is_missing(wrong, meant, run):
    result = run("naiad", wrong)
    assert (result.returncode, result.stderr.splitlines()[1]) == (2, f"did you mean {meant}?")


@pytest.mark.parametrize("command", ["serve", "run", "bench", "deploy", "doctor", "explain"])
def test_help_fits_a_terminal_of_80_columns(command, run):
    result = run("naiad", command, "--help", COLUMNS="80")
    assert max(map(len, result.stdout.splitlines())) <= 80


def commands_of(group: click.Group, words: str = "") -> Iterator[str]:
    """The words of each command behind `naiad`, groups included."""
    for name, command in group.commands.items():
        yield words + name
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{words}{name} ")


def test_every_command_has_examples_and_no_other_name_has():
    assert sorted(EXAMPLES) == sorted(commands_of(naiad_group))


@pytest.mark.parametrize("command", sorted(EXAMPLES))
def test_the_help_of_a_command_ends_with_examples_that_have_its_flags(command, run):
    lines = run("naiad", *command.split(), "--help", COLUMNS="80").stdout.rstrip().splitlines()
    shown = [line.strip() for line in lines[-len(EXAMPLES[command]) :]]
    assert shown == list(EXAMPLES[command])
    assert lines[-len(shown) - 1].strip() == "Examples:"
    assert 2 <= len(shown) <= 3
    for example in shown:
        words = shlex.split(example)
        of = next(name for count in (3, 2) if (name := " ".join(words[1:count])) in EXAMPLES)
        known = run("naiad", *of.split(), "--help").stdout + run("naiad", "serve", "--help").stdout
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [flag for flag in flags if flag not in known] == []


@pytest.mark.server
def test_help_loads_no_server():
    code = "import sys; from naiad.cli.main import main_tritonserver as m; m(['--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stderr.split())
    assert not loaded & {"numpy", "grpc", "uvloop", "asyncio", "click", "rich", "google.protobuf"}


def test_a_mistake_prints_the_usage_of_tritonserver_and_what_is_wrong_and_exits_with_1(run):
    result = run("tritonserver", "--bogus")
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "tritonserver: unrecognized option '--bogus'"
    assert lines[1] == "Usage: tritonserver [options]"
    assert lines[-2:] == ['Bad option: "--bogus".', "unknown flag"]


@pytest.mark.parametrize("command", [("naiad",), ("naiad", "serve")])
def test_a_mistake_in_a_command_of_naiad_is_two_lines_and_exits_with_2(command, run):
    result = run(*command, "--bogus")
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr == f"{' '.join(command)}: unrecognized option '--bogus'\n`naiad serve --help` lists the flags\n"
    )


def test_a_model_is_explained_in_a_repository_or_by_its_directory(tmp_path, run):
    result = run("naiad", "explain", "m")
    assert result.returncode == 2
    assert result.stderr == (
        "naiad explain MODEL: no repository is named, and 'm' is not a directory; add --model-repository=DIRECTORY, or type "
        "the model's directory\n"
    )
    write_model(tmp_path, "m")
    by_directory = run("naiad", "explain", f"{tmp_path}/m/")
    by_name = run("naiad", "explain", "m", f"--model-repository={tmp_path}")
    assert (by_directory.returncode, by_directory.stdout) == (0, by_name.stdout)
    assert str(tmp_path / "m" / "1" / "model.py") in by_name.stdout


def test_a_model_is_explained_with_the_processes_of_its_instances(tmp_path, run):
    write_model(tmp_path, "m", config="instance_group [{ count: 3 kind: KIND_CPU }]")
    write_model(
        tmp_path, "batched", config="max_batch_size: 4 dynamic_batching {} instance_group [{ count: 3 kind: KIND_CPU }]"
    )
    spread, together, alone = (
        run("naiad", "explain", model, f"--model-repository={tmp_path}", f"--processes={processes}").stdout
        for model, processes in (("m", 2), ("batched", 2), ("m", 1))
    )
    assert spread.endswith(
        "instances: m_0_0 in process 0, m_0_1 in process 1, m_0_2 in process 0, because its instances share nothing\n"
    )
    assert together.endswith(
        "instances: all instances in process 0, because one queue fills the batches of all instances\n"
    )
    assert "in process" not in alone
    document = run("naiad", "explain", "m", f"--model-repository={tmp_path}", "--processes=2", "--json").stdout
    (version,) = json.loads(document)["versions"]
    assert (version["processes"], version["processes_reason"]) == ([0, 1, 0], "its instances share nothing")


def test_explain_says_which_count_spreads_a_model_over_the_processes(tmp_path, monkeypatch, run):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_model(tmp_path, "m")
    command = ("naiad", "explain", "m", f"--model-repository={tmp_path}", "--processes=2")
    reason = "it has 1 instance for 2 processes; with a count of 2 or more, each would have one"
    assert run(*command).stdout.endswith(f"instances: all instances in process 0, because {reason}\n")
    (version,) = json.loads(run(*command, "--json").stdout)["versions"]
    assert (version["processes"], version["processes_reason"]) == ([0], reason)


@pytest.mark.parametrize(
    ("more", "flags", "rule"),
    [
        (
            "",
            (),
            "its requests are executed where they arrive if that process has instances of all of these models, else in 0",
        ),
        (
            "max_inflight_requests: 2",
            (),
            "its requests are executed in process 0, because it limits the requests in one of its steps",
        ),
        (
            "} response_cache { enable: true",
            ("--cache-config=local,size=1048576",),
            "its requests are executed in process 0, because one cache has its responses",
        ),
    ],
)
def test_an_ensemble_is_explained_by_its_models_and_the_process_of_its_requests(tmp_path, more, flags, rule, run):
    write_model(tmp_path, "m")
    (tmp_path / "both" / "1").mkdir(parents=True)
    steps = """step [
      { model_name: "m" model_version: -1 input_map { key: "CODE" value: "CODE" } output_map { key: "OUT" value: "x" } },
      { model_name: "m" model_version: -1 input_map { key: "CODE" value: "x" } output_map { key: "OUT" value: "OUT" } }
    ]"""
    (tmp_path / "both" / "config.pbtxt").write_text(
        f"""platform: "ensemble" ensemble_scheduling {{ {steps} {more} }}
        input [{{ name: "CODE" data_type: TYPE_STRING dims: [1] }}]
        output [{{ name: "OUT" data_type: TYPE_STRING dims: [1] }}]"""
    )
    command = ("naiad", "explain", "both", f"--model-repository={tmp_path}", *flags)
    first = "model 'both' is an ensemble: other models run it: m\n"
    assert run(*command).stdout == first
    assert run(*command, "--processes=2").stdout == f"{first}requests: {rule}\n"
    document = json.loads(run(*command, "--processes=2", "--json").stdout)
    assert document == {
        "model": "both",
        "is_ensemble": True,
        "steps": ["m"],
        "processes_reason": rule,
        "versions": [],
    }


@pytest.mark.parametrize("group", [(), ("env",), ("init",)])
def test_no_line_of_an_overview_is_cut_off(group, run):
    assert "..." not in run("naiad", *group, "--help").stdout.replace("[ARGS]...", "")


def test_a_stray_argument_is_named_last(run):
    result = run("tritonserver", "--http-port=1", "stray")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "Unexpected argument: stray")


def test_a_refused_flag_is_one_sentence_without_the_usage(run):
    result = run("tritonserver", "--model-repository=/m", "--allow-sagemaker=true")
    assert result.returncode == 1
    assert result.stderr == (
        "--allow-sagemaker=true is refused: SageMaker's API is not implemented in this version of naiad\n"
    )


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path, run):
    result = run("tritonserver", "--model-repository=/m", f"--log-file={tmp_path}")
    assert result.returncode == 1
    assert result.stderr == f"--log-file={tmp_path}: cannot be opened: Is a directory\n"


def test_a_server_without_a_repository_does_not_start(run):
    result = run("tritonserver")
    assert result.returncode == 1
    assert result.stderr == "error: creating server: Invalid argument - --model-repository must be specified\n"


def test_naiad_lists_its_commands_and_its_version(run):
    result = run("naiad")
    overview = result.stdout + result.stderr  # which of them depends on the version of click
    assert all(f"\n  {word} " in overview for word in ("serve", "explain", "env"))
    result = run("naiad", "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "naiad")


def test_an_unknown_command_is_named(run):
    result = run("naiad", "bogus")
    assert result.returncode == 2
    assert result.stderr == "naiad: no such command 'bogus'\n`naiad --help` lists commands and flags\n"


def test_an_unknown_flag_of_a_command_points_to_the_arguments_and_flags_of_that_command(run):
    result = run("naiad", "top", "--bogus")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "`naiad top --help` lists arguments and flags"


def test_explain_says_what_would_run_a_model(repository, explain):
    result = explain("a")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"model 'a' version 1, in {repository}/models/a\n")
    assert f"\n  model file  {repository}/backends/shared/model.py\n" in result.stdout
    assert f"- {repository}/models/a/libtriton_shared.so (not found)" in result.stdout
    assert f"\n  stub        {repository}/store/guests/guest-" in result.stdout


def test_explain_takes_the_flags_before_the_model_as_well(repository, run):
    result = run(
        "naiad", "explain", "--model-repository", repository / "models", "own", "--env-store", repository / "s"
    )
    assert result.stdout.startswith("model 'own' version 1"), result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["broken"], "unable to find backend library for backend 'nosuch', try specifying runtime on the model"),
        (["ow"], "cannot find model 'ow' in {repository}/models; did you mean 'own'?"),
        (["own", "--version=7"], "cannot explain model 'own': it has no version 7; its versions are 1"),
        ([], "naiad explain MODEL: expected one model, got none"),
        (["a", "own"], "naiad explain MODEL: expected one model, got a, own"),
    ],
)
def test_explain_prints_why_a_model_cannot_run(repository, arguments, text, explain):
    result = explain(*arguments)
    assert result.returncode == (2 if "expected one model" in text else 1)
    assert result.stderr.startswith(text.format(repository=repository))
    assert result.stdout == ""


def test_explain_prints_the_decisions_before_a_missing_file(repository, explain):
    with (repository / "models" / "a" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/no/such.tar.gz" } }')
    result = explain("a")
    assert result.returncode == 1
    assert f"\n  model file  {repository}/backends/shared/model.py\n" in result.stdout
    assert result.stderr.startswith("parameter EXECUTION_ENV_PATH of model 'a' names the execution environment")


def test_explain_is_plain_data_for_scripts(repository, explain):
    """Also of a model that cannot be resolved: then with the reason, and what was decided before."""
    found = json.loads(explain("a", "--json").stdout)

    assert (found["model"], found["is_ensemble"]) == ("a", False)
    (version,) = found["versions"]
    decisions = {each["subject"]: each for each in version["decisions"]}
    assert decisions["model file"]["choice"] == f"{repository}/backends/shared/model.py"
    assert {"path": f"{repository}/backends/shared/model.py", "found": True} in decisions["backend"]["searched"]
    with (repository / "models" / "a" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/no/such.tar.gz" } }')
    result = explain("a", "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 1
    assert found["error"] == result.stderr.rstrip()
    assert "model file" in {each["subject"] for each in found["decisions"]}


def test_env_list_shows_what_is_ready_in_the_store(tmp_path, run):
    for digest, record in (
        (
            "a" * 64,
            {"archive": "/e.tar.gz", "interpreter": {"version": [3, 10, 13], "numpy": None, "platform": "linux"}},
        ),
        ("b" * 64, {}),
    ):
        json_cache.write(tmp_path / digest / "ready.json", record)
    (tmp_path / ("c" * 64)).mkdir()  # being unpacked
    result = run("naiad", "env", "list", NAIAD_STORE=str(tmp_path))
    lines = result.stdout.splitlines()
    assert lines[0] == f"environments in {tmp_path}"
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:-2]] == [
        ["a" * 7, "/e.tar.gz", "3.10.13", "none", "linux", "0 B", "just now", ""],
        ["b" * 7, "?", "?", "none", "?", "0 B", "just now", ""],
    ]
    assert lines[-1] == "2 environments, 0 B"


def test_an_empty_store_is_named(tmp_path, run):
    assert run("naiad", "env", "list", "--env-store", tmp_path).stdout == f"no environments in {tmp_path}\n"


def test_an_invalid_recipe_is_reported_without_a_traceback(tmp_path, run):
    result = run("naiad", "env", "build", tmp_path, "-o", tmp_path / "out")
    assert result.returncode == 1
    assert "env.toml" in result.stderr
    assert "Traceback" not in result.stderr
