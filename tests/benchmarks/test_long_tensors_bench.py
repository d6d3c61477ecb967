"""The benchmark of long tensors: its models, and what it makes of its turns."""

from __future__ import annotations

from google.protobuf import text_format

from bench import long_tensors
from naiad.config.model import model_config_pb2 as pb


def test_its_models_have_valid_configurations_and_code(tmp_path):
    long_tensors.write_models(tmp_path)
    found = {}
    for file in tmp_path.glob("*/config.pbtxt"):
        found[file.parent.name] = text_format.Parse(file.read_text(), pb.ModelConfig())
    assert sorted(found) == ["calls", "calls_ensemble", "ensemble", "identity", "other"]
    steps = [
        (step.model_name, dict(step.input_map), dict(step.output_map))
        for step in found["ensemble"].ensemble_scheduling.step
    ]
    assert steps == [
        ("identity", {"INPUT0": "INPUT0"}, {"OUTPUT0": "first"}),
        ("other", {"INPUT0": "first"}, {"OUTPUT0": "second"}),
        ("identity", {"INPUT0": "second"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    for file in tmp_path.glob("*/1/model.py"):
        compile(file.read_text(), str(file), "exec")
    assert 'model_name="ensemble"' in (tmp_path / "calls_ensemble" / "1" / "model.py").read_text()


def test_servers_take_turns_and_ratios_are_those_of_a_turn():
    asked = []
    turns = {"naiad": iter([(10, 1), (60, 2), (30, 4)]), "Triton": iter([(20, 2), (20, 2), (120, 2)])}

    def measure(server):
        asked.append(server)
        us, cpu = next(turns[server])
        return {"us": us, "cpu": cpu}

    cells = long_tensors._row(measure, {"naiad": "naiad", "Triton": "Triton"}, 3)
    assert asked == ["Triton", "naiad", "naiad", "Triton", "Triton", "naiad"]
    assert cells == ["30 (2)", "20 (2)", "0.50 (1.00)"]
