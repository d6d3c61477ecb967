"""What a signature of MLflow says about tensors and parameters. Needs no MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import triton_python_backend_utils as pb_utils
from naiad_mlflow.files import Metadata, read_metadata
from naiad_mlflow.signature import signature_of
from saved_models.settings import read_config


def test_parameters_named_like_those_of_the_protocol_are_warned_of(monkeypatch: pytest.MonkeyPatch):
    warnings: list[str] = []
    monkeypatch.setattr(pb_utils.Logger, "log_warn", warnings.append)
    names = ("temperature", "priority", "triton_level")
    params = json.dumps([{"name": name, "type": "long", "default": 1, "shape": None} for name in names])
    metadata = Metadata(Path("m"), {"params": params}, is_typed=False, written_by="3.1")
    assert tuple(signature_of(metadata, read_config({"name": "m"})).parameters) == names
    assert warnings == [
        f"the server reads the request parameter '{name}' itself, so it does not reach the parameter of this name in "
        f"the signature of model 'm'; clients send that as 'params.{name}'"
        for name in ("priority", "triton_level")
    ]


def test_outputs_that_a_signature_calls_optional_may_be_left_out():
    outputs = json.dumps([{"name": "a", "type": "string"}, {"name": "b", "type": "string", "required": False}])
    metadata = Metadata(Path("m"), {"outputs": outputs}, is_typed=False, written_by="3.1")
    assert signature_of(metadata, read_config({"name": "m"})).optional == {"b"}


@pytest.mark.parametrize(
    ("loader", "is_agent"),
    [
        ("mlflow.pyfunc.loaders.responses_agent", True),
        ("mlflow.pyfunc.loaders.chat_model", True),
        ("mlflow.sklearn", False),
    ],
)
def test_agents_are_known_by_their_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader, is_agent):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    (tmp_path / "MLmodel").write_text(f"flavors:\n  python_function:\n    loader_module: {loader}\n")
    assert read_metadata(read_config({"name": "m"})).is_agent is is_agent
