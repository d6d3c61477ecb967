"""Errors of ONNX Runtime as those of a request, with a stand-in for the library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from saved_models.conversion import InputError
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import read_config

_MODULES = ("naiad_onnxruntime", "naiad_onnxruntime.session")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace())
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import naiad_onnxruntime.session as found

    yield found
    for name in _MODULES:
        sys.modules.pop(name, None)


def run(module, answer, **inputs: np.ndarray):
    tensors = tuple(ModelTensor(name, "TYPE_STRING", (-1,)) for name in inputs)
    settings = read_config({"name": "m"})
    session = SimpleNamespace(run=answer)
    return module.SessionRunner(session, settings, ModelInterface(tensors, ())).run(dict(inputs), ["Y"])


def test_strings_are_texts(module):
    assert run(module, lambda _names, arrays, _options: [arrays["X"]], X=np.array([b"a"], object))["Y"].tolist() == [
        "a"
    ]
    with pytest.raises(InputError, match="input 'X' has a string that is not UTF-8"):
        run(module, None, X=np.array([b"\xff"], object))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got", InputError, "onnx runtime error 2: Got"),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : No", pb_utils.TritonModelException, "onnx runtime error 6: No"),
    ],
)
def test_invalid_arguments_are_the_clients_errors(module, text, kind, message):
    def fail(*_):
        raise RuntimeError(text)

    with pytest.raises(kind, match=message):
        run(module, fail, X=np.array([b"a"], object))
