"""What scripts in the older tutorial dialect must find in a guest: run as `python dialect_check.py STUBS`.

Written for Python 3.8 and numpy 1.17.
"""

import inspect
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import numpy as np
from naiad_stub import loader, runtime
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

OLD = """
import triton_python_backend.api as triton_backend
import numpy as np

class TritonPythonModel:
    def initialize(self, config):
        self.types = {"CLASS": triton_backend.DataType.INT32, "PROB": triton_backend.DataType.FLOAT32}

    def execute(self, requests):
        results = []
        for request in requests:
            text = request.inputs[0].as_numpy()[0].decode("utf-8")
            assert request.inputs() == list(request.inputs) and isinstance(request.inputs, list)
            tokens = triton_backend.infer("tokenizer", [triton_backend.Tensor(name="TEXT", data=np.array([text]))])
            count = tokens[0].as_numpy().sum() + tokens["COUNT"].as_numpy().sum() + tokens.as_numpy("COUNT").sum()
            results.append([
                triton_backend.Tensor(name="CLASS", data=[count], dtype=self.types["CLASS"]),
                triton_backend.Tensor("PROB", np.array([0.5]), datatype=self.types["PROB"]),
            ])
        return results
"""
ASYNCHRONOUS = """
import triton_python_backend.api as triton_backend

class TritonPythonModel:
    async def execute(self, requests):
        return [[triton_backend.Tensor(name="OUT", data=[True])] for request in requests]
"""
INDEXES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs[0].as_numpy())]) for r in requests]
"""
CALLS = INDEXES.replace("inputs[0]", "inputs ()[0]")


class Calls(runtime.ModelCalls):
    """Answers with the length of the text, or with an error for an empty one."""

    def exec(self, request, decoupled):
        assert request._model_name == "tokenizer"
        (text,) = request.inputs()[0].as_numpy()
        if not text:
            return InferenceResponse(error=TritonError("empty text"))
        return InferenceResponse([Tensor("COUNT", np.array([len(text)]))])


def load(folder, name, text):
    path = Path(folder) / name / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    directory = str(path.parent)
    sys.modules.pop("1.model", None)
    sys.modules.pop("1", None)
    loaded = loader.load_model_class(str(path), directory, str(path.parent.parent), sys.argv[1], shared=False)
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(folder))]
    return loaded()


def request(*arrays):
    tensors = [Tensor("IN", array) for array in arrays]
    return InferenceRequest._received("", 0, 0, 0, tensors, [], "", None)


def failure(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def texts(*values):
    return np.array([value.encode() for value in values], object)


def check_todays_models_are_left_alone(folder):
    model = load(folder, "calls", CALLS)
    assert "triton_python_backend.api" not in sys.modules
    assert "naiad_stub.dialect_api" not in sys.modules
    assert not isinstance(InferenceRequest.inputs, property)
    assert model.execute.__code__.co_filename.endswith("model.py")
    one = request(np.ones(2))
    assert one.inputs() is one._inputs
    model.execute([one])


def check_a_model_of_today_may_index_inputs(folder):
    model = load(folder, "indexes", INDEXES)
    assert "naiad_stub.dialect_api" not in sys.modules
    (response,) = model.execute([request(np.ones(2))])
    assert response.output_tensors()[0].as_numpy().tolist() == [1, 1]
    assert load(folder, "calls_again", CALLS).execute([request(np.ones(2))])


def check_the_dialect(folder):
    runtime.install(runtime.Runtime(calls=Calls()))
    model = load(folder, "old", OLD)
    model.initialize({})
    responses = model.execute([request(texts("four")), request(texts("sixsix"))])
    assert all(isinstance(response, InferenceResponse) for response in responses)
    (label, probability), (other, _) = (response.output_tensors() for response in responses)
    assert (label.name(), label.as_numpy().tolist(), label.triton_dtype()) == ("CLASS", [12], 8)
    assert (probability.as_numpy().tolist(), probability.triton_dtype()) == ([0.5], 11)
    assert other.as_numpy().tolist() == [18]
    error = failure(model.execute, [request(texts(""))])
    assert (type(error), str(error)) == (TritonModelException, "empty text")
    text, _ = loader.format_exception(error)
    assert text.startswith("TritonModelException: empty text\n\nAt:\n"), text
    assert "model.py(14): execute" in text, text
    assert "naiad_stub" not in text, text


def check_async(folder):
    import asyncio

    execute = load(folder, "asynchronous", ASYNCHRONOUS).execute
    assert inspect.iscoroutinefunction(execute)
    (response,) = asyncio.run(execute([request(np.ones(1))]))
    assert response.output_tensors()[0].as_numpy().tolist() == [True]


def check_what_execute_may_return():
    import triton_python_backend.api as triton_backend
    from naiad_stub.dialect import responses_of

    tensor = triton_backend.Tensor(name="T", data=[1])
    response = InferenceResponse([tensor])

    def names(returned, count):
        return [[t.name() for t in r.output_tensors()] for r in responses_of(returned, [None] * count)]

    assert names([[tensor, tensor]], 1) == [["T", "T"]]
    assert names([tensor, tensor], 1) == [["T", "T"]]
    assert names([tensor, (tensor,)], 2) == [["T"], ["T"]]
    assert names([response, []], 2) == [["T"], []]
    assert responses_of(None, [None]) is None
    assert responses_of([None, 5], [None] * 2) == [None, 5]
    assert responses_of((1,), [None]) == (1,)


def check_tensors():
    import triton_python_backend.api as triton_backend

    data_type = triton_backend.DataType
    tensor = triton_backend.Tensor(name="T", data=np.array(["\u00e9", "b"]))
    assert tensor.as_numpy().tolist() == ["\u00e9".encode(), b"b"]
    assert triton_backend.Tensor(name="T", data=range(4), shape=[2, 2]).as_numpy().tolist() == [[0, 1], [2, 3]]
    assert triton_backend.Tensor("T", data=tensor).as_numpy().tolist() == tensor.as_numpy().tolist()
    for names in (("FP32", "FLOAT32", "TYPE_FP32"), ("STRING", "BYTES", "TYPE_STRING"), ("BOOL", "TYPE_BOOL")):
        assert len({data_type[name] for name in names}) == 1
    for member in data_type:
        if member is not data_type.BF16:
            made = triton_backend.Tensor(name="T", data=np.array([b"1"] if member == 13 else [1], object), dtype=member)
            assert made.triton_dtype() == member, member
    assert str(failure(triton_backend.Tensor, name="T")) == "Tensor 'T' is made without data"
    unknown = failure(triton_backend.Tensor, name="T", data=[1], kind=2)
    assert str(unknown) == "Tensor has no argument 'kind': it takes name, data, dtype and shape"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        check_todays_models_are_left_alone(name)
        check_a_model_of_today_may_index_inputs(name)
        check_the_dialect(name)
        check_async(name)
    check_what_execute_may_return()
    check_tensors()
    print("ok", sys.version.split()[0], np.__version__)
