"""`naiad tune` with a real server, on models whose best configuration is known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from naiad.cli.main import main
from naiad.config.model.text import parse_text

CODE = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.03)  # a batch takes as long as one request, and needs no processor
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * array)]) for array in arrays]
"""
TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 2 }\noutput { name: "Y" data_type: TYPE_FP32 dims: 2 }\n'
QUICK = ("--seconds=0.4", "--concurrency=1,4", "--env-store=store")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a repository, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_model(folder, config, code=CODE):
    version = folder / "models" / "slow" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(config)


@pytest.mark.server
def test_a_model_that_waits_gets_more_instances(folder, capsys):
    add_model(folder, TENSORS)
    code = main(["tune", "models/slow", "--objective=p95<2s", "--instances=4", *QUICK])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    assert err == ""
    made = parse_text((folder / "tune-slow" / "config.pbtxt").read_text(), "made")
    assert made.instance_group[0].count >= 2
    assert "1 instance, no dynamic batching" in out
    assert out.splitlines()[-1].strip() == "cp tune-slow/config.pbtxt models/slow/config.pbtxt"
    assert f"{made.instance_group[0].count} instances" in (folder / "tune-slow" / "report.md").read_text()
    ET.parse(folder / "tune-slow" / "report.svg")
    assert len((folder / "tune-slow" / "measurements.csv").read_text().splitlines()) > 5
    assert (folder / "models" / "slow" / "config.pbtxt").read_text() == TENSORS  # nothing is changed


@pytest.mark.endurance
def test_a_model_whose_batches_cost_nothing_gets_batches(folder, capsys):
    add_model(folder, f"max_batch_size: 4\n{TENSORS}")
    code = main(["tune", "slow", "--model-repository=models", "--instances=1", "--json", "--output=found", *QUICK])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    document = json.loads(out)
    assert document["before"] == {"instances": 1, "batch": 0, "delay_us": 0}
    assert document["best"]["batch"] >= 2
    assert document["requests_per_second"] > 34  # one request after the other gives at most 33


@pytest.mark.endurance
def test_limits_that_no_configuration_keeps_end_with_1_and_the_nearest_one(folder, capsys):
    add_model(folder, TENSORS)
    code = main(["tune", "models/slow", "--objective=p95<1ms", "--instances=1", *QUICK])
    out, _ = capsys.readouterr()
    assert code == 1
    assert "over the limit" in out
    assert "(no configuration keeps the limits)" in out
    assert "No configuration keeps the limits" in (folder / "tune-slow" / "report.md").read_text()


@pytest.mark.server
def test_a_model_that_is_not_served_is_refused_with_the_servers_reason(folder, capsys):
    add_model(folder, TENSORS, "raise ValueError('no luck at all')\n")
    assert main(["tune", "models/slow", *QUICK]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("cannot tune model 'slow': it is not served: failed to load 'slow'")
    assert "no luck at all" in err
    assert err.rstrip().endswith("its log is tune-slow/server.log")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "naiad tune MODEL: expected one model, got none"),
        (["slow"], 2, "cannot tune 'slow': its repository is not named; give its folder, such as models/slow"),
        (["models/slow", "--objective=p95>1ms"], 2, "'p95>1ms' is not a limit; give one of p50"),
        (["models/slow", "--concurrency=0"], 2, "--concurrency=0: not numbers from 1 to 10000"),
        (["models/slow", "--http-port=8000"], 2, "--http-port: this command sets it for the server that it starts"),
        (["models/slow", "--input=X=1", "--batch=2"], 2, "--shape and --batch are for generated requests"),
    ],
)
def test_wrong_command_lines_are_refused(folder, capsys, arguments, code, text):
    assert main(["tune", *arguments]) == code
    assert text in " ".join(capsys.readouterr().err.split("\n"))


def test_a_folder_that_exists_is_not_written_to(folder, capsys):
    add_model(folder, TENSORS)
    (folder / "tune-slow").mkdir()
    assert main(["tune", "models/slow"]) == 2
    assert "--output=tune-slow: it exists" in capsys.readouterr().err
