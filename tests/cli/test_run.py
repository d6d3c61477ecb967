"""`naiad run`: one model, one request, with real guests; the command is a process of its own where a terminal matters."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from embedded.testing.models import DECOUPLED, write_model

from naiad.cli.run import duration, run

pytestmark = pytest.mark.server

NAIAD = Path(sys.executable).with_name("naiad")
DOUBLE = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""
BOOM = "def execute(self, requests):\n    raise ValueError('boom')\n"
REPEAT = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], "f4"))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


ONE_LINE_FIRST = DOUBLE.replace("        return [", "        self.count = len(requests)\n        return [")


def naiad_run(*arguments, given=None):
    done = subprocess.run(
        [NAIAD, "run", *map(str, arguments)], input=given, capture_output=True, text=True, timeout=110, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run_here(capfd):
    """`naiad run` in this process: the start of a Python with numpy takes longer than most of these models."""

    def call(*arguments):
        code = run([*map(str, arguments)])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def double(tmp_path):
    return write_model(tmp_path, "double", DOUBLE)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.0288, "0.0288 ms"),
        (212.4, "212 ms"),
        (999.6, "1.00 s"),
        (1160, "1.16 s"),
        (19_500, "19.5 s"),
        (1e6, "1000 s"),
    ],
)
def test_durations_have_three_digits_and_no_exponent(ms, text):
    """A load of more than a second was printed as 1.16e+03 ms."""
    assert duration(ms) == text


@pytest.mark.parametrize(
    "control",
    ["", 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'],
    ids=["number", "text"],
)
def test_a_request_to_a_model_with_sequences_is_a_sequence_of_one_request(run_here, tmp_path, control):
    model = write_model(tmp_path, "double", DOUBLE, more=f"sequence_batching {{ {control} }}")

    code, out, err = run_here(model, "--input", "IN=[2]")

    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "  OUT  FP32 [1]  [4.]"


def test_without_inputs_the_command_line_to_add_is_printed(run_here, double):
    code, _, err = run_here(double)

    assert (code, err) == (2, "cannot run 'double' without its inputs; for example, add --input 'IN=[0]'\n")
    assert run_here(double, "--input", "IN=[0]")[0] == 0


def test_outputs_and_timings_are_printed(run_here, double, tmp_path):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2.5]}]}
    (tmp_path / "x.json").write_text(json.dumps(document))

    code, out, err = run_here(double, "--input", tmp_path / "x.json")

    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[:2] == ["double version 1", "  OUT  FP32 [2]  [2., 5.]"]
    assert [part.split()[0] for part in lines[2].split("  ")] == [
        "load",
        "queue",
        "input",
        "execute",
        "output",
        "total",
    ]


def test_json_has_everything_for_programs(double):
    code, out, _ = naiad_run(double, "--json", "--input=-", given='{"inputs": {"IN": [1, 2]}, "id": "r"}')

    printed = json.loads(out)
    (response,) = printed["responses"]
    assert code == 0
    assert response["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [2], "data": [2.0, 4.0]}]
    assert (printed["model_name"], printed["model_version"]) == ("double", "1")
    assert set(printed["timings_ms"]) == {"load", "queue", "input", "execute", "output", "total"}


@pytest.mark.parametrize("value", ["[1, 2]", "@array.npy"])
def test_inputs_may_be_given_by_name(run_here, double, tmp_path, value):
    np.save(tmp_path / "array.npy", np.array([1, 2], "f4"))

    code, out, _ = run_here(double, f"--input=IN={value.replace('@', f'@{tmp_path}/')}")

    assert (code, out.splitlines()[1]) == (0, "  OUT  FP32 [2]  [2., 4.]")


def test_a_batch_dimension_is_added_where_it_is_missing(run_here, tmp_path):
    code, out, _ = run_here(write_model(tmp_path, "double", DOUBLE, batch=4), "--input=IN=[1,2]")

    assert (code, out.splitlines()[1]) == (0, "  OUT  FP32 [1, 2]  [[2., 4.]]")


def test_an_error_of_the_model_is_printed_with_its_traceback_and_exits_with_1(run_here, tmp_path):
    folder = write_model(tmp_path, "boom", BOOM)

    code, out, err = run_here(folder, "--input=IN=1")

    assert code == 1
    assert "error (Internal): Failed to process the request(s) for model 'boom_0', message: ValueError: boom" in out
    assert "Traceback (most recent call last)" in err
    assert f'File "{folder}/1/model.py"' in err


def test_a_model_that_cannot_be_loaded_exits_with_1(run_here, tmp_path):
    folder = write_model(tmp_path, "m", "def initialize(self, args):\n    raise OSError('no weights')\n")

    code, out, err = run_here(folder, "--input=IN=1")

    assert (code, out) == (1, "")
    assert err.count("OSError: no weights") == 3  # the traceback in the log, the error, and its last line
    line = (folder / "1" / "model.py").read_text().splitlines().index("        raise OSError('no weights')") + 1
    last = f"cannot run: 1 of 1 models failed: m ({folder}/1/model.py:{line}: OSError: no weights)"
    assert err.splitlines()[-1] == last
    assert "failed to load" not in err
    assert err.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--input=NO=1"], "model 'double' has no input 'NO'; its inputs are: IN"),
        (["--input=nothing.json"], "cannot read --input=nothing.json: No such file or directory; give a JSON file"),
        (["--input=IN=@nothing.npy"], "cannot read 'nothing.npy' as a numpy array"),
        (["--input=IN=text"], "input 'IN' takes FP32, not 'text': a value is JSON, for example --input 'IN=[0]'"),
        (["--input=IN=[1,2"], "input 'IN' takes FP32, not '[1,2': a value is JSON, for example --input 'IN=[0]'"),
        (["--input=IN=1", "--version=7"], "version 7"),
        (["--input=IN=1", "--debug=gdb"], "--debug=gdb: unknown debugger; use pdb, debugpy or debugpy:PORT"),
        (["another"], "expected one model directory, got"),
        (["IN=[1]"], "\ndid you mean --input 'IN=[1]'?"),
    ],
)
def test_mistakes_of_the_command_line_are_named(run_here, double, arguments, text):
    code, out, err = run_here(double, *arguments)

    assert (code, out) == (2 if "debug" in text or {"another", "IN=[1]"} & {*arguments} else 1, "")
    assert text in err


def test_a_model_without_inputs_and_outputs_is_warned_of(run_here, double):
    (double / "config.pbtxt").write_text('backend: "python"')

    _, _, err = run_here(double)

    assert (
        f"it has neither inputs nor outputs, so that requests with any are refused: {double}/config.pbtxt names" in err
    )


def test_the_steps_of_an_environment_are_printed(run_here, double):
    """The first run of a model with packages printed nothing for as long as these were installed."""
    with tarfile.open(double / "env.tar.gz", "w:gz") as archive:
        archive.add(double / "config.pbtxt", "config.pbtxt")
    named = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env.tar.gz" } }'
    (double / "config.pbtxt").write_text((double / "config.pbtxt").read_text() + named)

    code, _, err = run_here(double)

    assert code == 1
    assert f"unpacking the environment {double}/env.tar.gz for 'double'" in err


def test_a_directory_that_is_not_there_is_named(run_here, tmp_path):
    assert run_here(tmp_path / "none") == (
        2,
        "",
        f"cannot run a model from '{tmp_path}/none': it does not exist\n",
    )


def test_the_directory_of_a_file_of_a_model_is_named(run_here, double, tmp_path):
    for file in (double / "config.pbtxt", double / "1" / "model.py"):
        assert run_here(file)[2] == (
            f"cannot run a model from '{file}': it is a file; name the directory of its model, '{double}'\n"
        )
    (tmp_path / "notes").touch()
    assert run_here(tmp_path / "notes")[2].endswith("/notes': it is not a directory\n")


def test_all_responses_of_a_decoupled_model_are_printed(run_here, tmp_path):
    folder = write_model(tmp_path, "repeat", REPEAT, more=DECOUPLED)

    code, out, _ = run_here(folder, "--input=IN=[3]")
    _, as_json, _ = run_here(folder, "--input=IN=[1200]", "--json")

    lines = out.splitlines()
    assert (code, lines[1]) == (0, "3 responses")
    assert [line for line in lines if "OUT" in line] == [f"  OUT  FP32 [1]  [{number}.]" for number in range(3)]
    values = [response["outputs"][0]["data"] for response in json.loads(as_json)["responses"]]
    assert values == [[float(number)] for number in range(1200)]


def test_a_model_may_call_others_of_its_repository(run_here, double, tmp_path):
    caller = """
    def execute(self, requests):
        call = pb_utils.InferenceRequest(model_name="double", inputs=requests[0].inputs(), requested_output_names=[])
        response = call.exec()
        return [pb_utils.InferenceResponse(response.output_tensors(), response.error())]
    """
    folder = write_model(tmp_path, "caller", caller)

    code, out, _ = run_here(folder, "--input=IN=[4]", "--with=double")
    failed, told, err = run_here(folder, "--input=IN=[4]")

    assert (code, out.splitlines()[1]) == (0, "  OUT  FP32 [1]  [8.]")
    assert failed == 1
    assert "'double' is not found" in told
    assert err == "'caller' called 'double', which is not loaded: add --with=double\n"


def test_a_called_model_that_the_repository_lacks_is_named(run_here, tmp_path):
    call = 'pb_utils.InferenceRequest(model_name="nobody", inputs=[], requested_output_names=["X"]).exec()'
    folder = write_model(tmp_path, "caller", DOUBLE.replace("        return [", f"        {call}\n        return ["))

    code, _, err = run_here(folder, "--input=IN=[4]")

    assert (code, err) == (
        0,
        f"'caller' called 'nobody', which is not loaded: its repository {tmp_path} has no such model\n",
    )


def test_output_of_the_model_is_shown(run_here, tmp_path):
    folder = write_model(tmp_path, "m", "def initialize(self, args):\n    print('hello from initialize')\n", DOUBLE)

    code, out, err = run_here(folder, "--input=IN=1")

    assert code == 0
    assert "hello from initialize" in err
    assert "hello" not in out


def test_pdb_stops_at_the_first_line_of_initialize_and_execute(tmp_path):
    initialize = "def initialize(self, args):\n    self.name = args['model_name']\n"
    folder = write_model(tmp_path, "m", initialize, ONE_LINE_FIRST)

    code, out, err = naiad_run(
        folder, "--input=IN=[20.5]", "--debug", given="p args['model_version']\nc\np self.name, len(requests) + 41\nc\n"
    )

    assert (code, err) == (0, "")
    assert "model.py(7)initialize()" in out
    assert "model.py(10)execute()" in out
    assert "'1'" in out
    assert "('m', 42)" in out
    assert "OUT  FP32 [1]  [41.]" in out


def test_pdb_shows_where_a_model_raised(tmp_path):
    code, out, _ = naiad_run(
        write_model(tmp_path, "boom", BOOM), "--input=IN=1", "--debug", given="c\np 'looking', requests[0].flags()\nq\n"
    )

    assert code == 1
    assert "('looking', 0)" in out


def test_pdb_stops_in_a_coroutine(tmp_path):
    later = ONE_LINE_FIRST.replace("def execute", "async def execute")
    code, out, _ = naiad_run(
        write_model(tmp_path, "later", later), "--input=IN=[4]", "--debug", given="p len(requests) + 41\nc\n"
    )

    assert code == 0
    assert "model.py(7)execute()" in out
    assert "42" in out
    assert "[8.]" in out


def test_a_debugpy_that_is_missing_in_the_environment_is_reported(double):
    code, _, err = naiad_run(double, "--input=IN=1", "--debug=debugpy")

    assert code == 1
    assert "debugpy is not in the environment of this model" in err


def test_help_lists_the_flags():
    code, out, _ = naiad_run("--help")

    assert code == 0
    assert all(f"--{name}" in out for name in ("input", "version", "with", "json", "debug"))


def test_a_value_may_be_longer_than_the_name_of_a_file(run_here, double):
    text = "x" * 300

    code, _, errors = run_here(double, f"--input={text}")
    assert code == 1
    assert f"cannot read --input={'x' * 80}...: File name too long; give a JSON file" in errors

    code, _, errors = run_here(double, f"--input=IN={text}")
    assert code == 1
    assert "Traceback" not in errors
