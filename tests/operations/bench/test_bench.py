"""`naiad bench` against a real server over both protocols, and with an engine of its own."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess

from naiad.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"
REPOSITORIES = [EXAMPLES / name / "models" for name in ("add_sub", "decoupled_square", "stateful_sequence")]
SHORT = ("--seconds=0.2", "--warm-up=0", "--concurrency=1,3")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    by_name = tmp_path_factory.mktemp("models") / "by_name"
    shutil.copytree(REPOSITORIES[2] / "running_total", by_name)
    config = by_name / "config.pbtxt"
    config.write_text(config.read_text().replace("data_type: TYPE_UINT64", "data_type: TYPE_STRING"))
    pairs = by_name.with_name("pairs")
    shutil.copytree(REPOSITORIES[1] / "squares", pairs)
    with (pairs / "config.pbtxt").open("a") as config_file:
        config_file.write("sequence_batching { }\n")
    with ServerProcess([*REPOSITORIES, by_name.parent], work=tmp_path_factory.mktemp("bench")) as server:
        yield server


def bench(capsys, *arguments):
    code = main(["bench", *map(str, arguments), *SHORT])
    return code, *capsys.readouterr()


def measured(capsys, *arguments):
    """The document of a load without errors."""
    code, out, err = bench(capsys, *arguments, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [load["concurrency"] for load in document["loads"]] == [1, 3]
    for load in document["loads"]:
        assert load["requests"] > 0
        assert (load["errors"], load["first_error"]) == (0, None)
        ordered = [load[name] for name in ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")]
        assert ordered == sorted(ordered)
        assert 0 < load["min_ms"] <= load["mean_ms"] <= load["max_ms"]
        assert load["requests_per_second"] == pytest.approx(load["requests"] / load["seconds"])
    return document


def succeeded(served, model):
    """How many requests the server has counted for a model."""
    (statistics,) = served.get(f"/v2/models/{model}/stats").json()["model_stats"]
    return statistics["inference_stats"]["success"]["count"]


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_every_request_reaches_the_model_and_is_measured(served, capsys, protocol):
    before = succeeded(served, "add_sub")
    flags = ["--grpc", f"--url={served.grpc_url}"] if protocol == "gRPC" else [f"--url={served.http_url}"]
    document = measured(capsys, "add_sub", *flags)
    assert (document["model"], document["protocol"]) == ("add_sub", protocol)
    assert [(each["name"], each["shape"]) for each in document["inputs"]] == [("LEFT", [4]), ("RIGHT", [4])]
    assert succeeded(served, "add_sub") - before == sum(load["requests"] for load in document["loads"])


def test_tables_are_for_people(served, capsys):
    code, out, err = bench(
        capsys, "add_sub", f"--url={served.http_url}", "--input=LEFT=[1,2,3,4]", "--input=RIGHT=[1,2,3,4]"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"add_sub at http://{served.http_url}, HTTP; 0.2 s for each load"
    assert lines[1] == "request: LEFT FP32 [4], RIGHT FP32 [4]"
    assert lines[3].split()[:2] == ["concurrency", "requests/s"]
    assert [line.split()[0] for line in lines[4:6]] == ["1", "3"]
    assert len(lines) == 6


@pytest.mark.parametrize("name", ["running_total", "by_name"])
@pytest.mark.parametrize("flag", ["--grpc", ""])
def test_each_request_is_a_sequence_of_its_own(served, capsys, flag, name):
    measured(capsys, name, f"--url={served.grpc_url if flag else served.http_url}", *([flag] if flag else []))


def test_a_decoupled_model_is_measured_to_its_last_response(served, capsys):
    for where in ([f"--url={served.grpc_url}", "--grpc"], [f"--url={served.http_url}"]):
        before = succeeded(served, "squares")
        document = measured(capsys, "squares", *where, "--input=COUNT=3")
        for load in document["loads"]:
            assert 0 < load["first_response_p50_ms"] <= load["p50_ms"]
        assert succeeded(served, "squares") - before == sum(load["requests"] for load in document["loads"])


def test_sequences_of_a_decoupled_model_need_grpc(served, capsys):
    measured(capsys, "pairs", f"--url={served.grpc_url}", "--grpc")
    code, _, err = bench(capsys, "pairs", f"--url={served.http_url}")
    assert (code, err.strip()) == (
        2,
        "cannot send sequences to 'pairs' over HTTP: it is decoupled, and streams of HTTP have no sequences; add --grpc",
    )


def test_an_error_of_a_stream_is_an_error_of_its_request(served, capsys):
    code, _, err = bench(capsys, "squares", f"--url={served.http_url}", "--input=COUNT=[1, 2, 3]")
    assert code == 1
    assert "requests failed; the first: " in err


@pytest.mark.parametrize("flag", ["--grpc", ""])
def test_a_fixed_rate_is_sent_and_its_figures_are_written(served, capsys, tmp_path, flag):
    file = tmp_path / "figures.csv"
    where = [f"--url={served.grpc_url}", flag] if flag else [f"--url={served.http_url}"]
    code = main(["bench", "add_sub", *where, "--rate=50,100", "--seconds=0.4", "--warm-up=0", f"--csv={file}"])
    out, err = capsys.readouterr()
    assert code == 0, err
    lines = out.splitlines()
    assert lines[3].split()[0] == "sent/s"
    assert [line.split()[0] for line in lines[4:6]] == ["50", "100"]
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [(row["model"], row["rate"], row["requests"], row["errors"]) for row in rows] == [
        ("add_sub", "50", "20", "0"),
        ("add_sub", "100", "40", "0"),
    ]
    assert float(rows[0]["p95_ms"]) > 0


@pytest.mark.parametrize("flag", ["--grpc", ""])
def test_failed_requests_are_counted_with_the_first_message(served, capsys, flag):
    where = [f"--url={served.grpc_url}", flag] if flag else [f"--url={served.http_url}"]
    code, out, err = bench(capsys, "add_sub", *where, "--input=LEFT=[1]", "--input=RIGHT=[1]")
    assert code == 1
    assert int(out.splitlines()[4].split()[-1]) > 0
    assert "requests failed; the first: " in err
    assert "unexpected shape for input 'RIGHT' for model 'add_sub'" in err  # the one that the reference names


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nosuch"], 1, "cannot measure model 'nosuch': the server at http://127.0.0.1:"),
        (
            ["nosuch"],
            1,
            "unknown model: 'nosuch' is not found; its models are: add_sub, by_name, pairs, running_total, squares",
        ),
        (["add_sum"], 1, "unknown model: 'add_sum' is not found; did you mean 'add_sub'?"),
        (["nosuch", "--grpc"], 1, "cannot measure model 'nosuch': the server at 127.0.0.1:"),
        (["nosuch", "--grpc"], 1, "unknown model: 'nosuch'"),
        (
            ["models/nosuch"],
            1,
            "cannot measure 'models/nosuch': it is not the name of a model; name a model of a running",
        ),
        (["add_sub", "--version=7"], 1, "'add_sub' version 7 is not found; its versions are: 1"),
        (["add_sub", "--batch=2"], 2, "--batch=2: too large for model 'add_sub': it has no batches"),
        (["add_sub", "--concurrency=0"], 2, "--concurrency=0: not numbers from 1 to 10000, such as 1,4,16"),
        (["add_sub", "--rate=0"], 2, "--rate=0: not numbers from 1 to 1000000"),
        (
            ["add_sub", "--rate=5", "--concurrency=1"],
            2,
            "--rate and --concurrency are two kinds of loads; leave one of them out",
        ),
        (["add_sub", "--csv=/nowhere/x.csv"], 1, "cannot write /nowhere/x.csv: No such file or directory"),
        (["add_sub", "--input=LEFT=1", "--batch=2"], 2, "--shape and --batch are for generated requests"),
        (["add_sub", "--env-store=/x"], 2, "--env-store: a flag of `naiad serve`; start the server with it"),
        (["add_sub", "--header=x"], 2, "--header=x: not of the form NAME:VALUE"),
        ([], 2, "naiad bench MODEL [URL]: expected one model, got none"),
    ],
)
def test_a_target_that_cannot_be_measured_is_reported(served, capsys, arguments, code, text):
    url = served.grpc_url if "--grpc" in arguments else served.http_url
    found = main(["bench", "--seconds=0.2", f"--url={url}", *arguments])
    _, err = capsys.readouterr()
    assert found == code
    assert text in err
    assert len(err.splitlines()) == (1 if arguments else 2)


def test_a_server_whose_apis_are_restricted_needs_the_key(tmp_path, capsys):
    with ServerProcess(REPOSITORIES[0], "--http-restricted-api=model-config:key=secret", work=tmp_path) as server:
        code, _, err = bench(capsys, "add_sub", f"--url={server.http_url}")
        assert code == 1
        assert "responded: This API is restricted" in err
        assert err.endswith("; give the key with --header=NAME:VALUE\n")
        measured(capsys, "add_sub", f"--url={server.http_url}", "--header=key:secret")


@pytest.mark.parametrize("flag", ["--grpc", ""])
def test_an_address_without_a_server_is_told(capsys, flag):
    code, _, err = bench(capsys, "m", "--url=127.0.0.1:9", *([flag] if flag else []))
    assert code == 1
    assert err.startswith("cannot reach a server at ")
    assert "start one with `naiad serve`, or name the address of its" in err
