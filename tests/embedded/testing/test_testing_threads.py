"""`naiad.testing`: models in threads, control tensors, outputs against the configuration, the model's module."""

from __future__ import annotations

import builtins
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from embedded.testing.models import write_model

from naiad.testing import InvalidRequestError, ModelError, load

COUNT = 12
HELPED = """
    def initialize(self, args):
        import helper
        self.helper = helper

    def execute(self, requests):
        import late
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.helper.VALUE, late.VALUE, TOP], "f4"))])
            for request in requests
        ]
"""


def write_helped(folder: Path, number: int) -> Path:
    """A model whose modules have the same names as those of all others, and its own number."""
    model = write_model(folder, f"m{number}", HELPED, head="from helper import VALUE as TOP\n")
    for name in ("helper", "late"):
        (model / "1" / f"{name}.py").write_text(f"VALUE = {number}\n")
    return model


def test_models_that_are_loaded_in_threads_have_their_own_modules(tmp_path: Path) -> None:
    folders = [write_helped(tmp_path, number) for number in range(COUNT)]
    names, paths, writes = set(sys.modules), list(sys.path), sys.dont_write_bytecode
    plain = builtins.__import__
    barrier = threading.Barrier(4)

    def ask(number: int) -> list[list[float]]:
        barrier.wait(30)
        with load(folders[number]) as model:
            return [model.infer({"IN": [0]})["OUT"].tolist() for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(COUNT)))

    assert answers == [[[number] * 3] * 5 for number in range(COUNT)]
    assert not {name for name in set(sys.modules) - names if name in {"helper", "late", "1", "1.model"}}
    assert (sys.path, sys.dont_write_bytecode, builtins.__import__) == (paths, writes, plain)
    with load(folders[3]) as model:  # a model that is loaded afterwards is right, too
        assert model.infer({"IN": [0]})["OUT"].tolist() == [3, 3, 3]


def test_models_may_call_each_other_from_threads(tmp_path: Path) -> None:
    caller = """
    def execute(self, requests):
        import threading
        found = []
        def call():
            request = pb_utils.InferenceRequest(
                model_name="other", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.zeros(1, "f4"))]
            )
            found.append(request.exec().output_tensors()[0].as_numpy())
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(found))]) for _ in requests]
    """
    with (
        load(write_helped(tmp_path, 7)) as other,
        load(write_model(tmp_path, "caller", caller), models={"other": other}) as model,
    ):
        assert model.infer({"IN": [0]})["OUT"].tolist() == [7] * 9


CONTROLLED = """
    def execute(self, requests):
        (request,) = requests
        found = {t.name(): t.as_numpy() for t in request.inputs()}
        values = [found[name].ravel()[0] for name in ("START", "END", "READY", "ID")]
        shapes = [found[name].ndim for name in ("START", "END", "READY", "ID")]
        assert found["ID"].dtype == np.uint32
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([*values, *shapes], "f4").reshape(SHAPE))])]
"""
CONTROLS = """
sequence_batching {
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -1, 5 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 } ] }
  ]
}
"""


@pytest.mark.parametrize("batch", [0, 4])
def test_a_model_gets_its_control_tensors_as_from_a_server(tmp_path: Path, batch: int) -> None:
    shape = "SHAPE = (1, -1)\n" if batch else "SHAPE = (-1,)\n"
    given: Any = [[0]] if batch else [0]
    dimensions = [2] * 4 if batch else [1] * 4
    with load(write_model(tmp_path, "m", CONTROLLED, batch=batch, more=CONTROLS, head=shape)) as model:
        found = [
            model.infer({"IN": given}, correlation_id=9, flags=flags)["OUT"].ravel().tolist() for flags in (1, 0, 2)
        ]
        with pytest.raises(
            InvalidRequestError, match=r"sequence batching control 'ID' data-type is 'BYTES', but model"
        ):
            model.infer({"IN": given}, correlation_id="nine", flags=1)

    assert found == [[5, 0, 1, 9, *dimensions], [-1, 0, 1, 9, *dimensions], [-1, 1, 1, 9, *dimensions]]


ANY = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(t.name() + "!", t.as_numpy()) for t in request.inputs()])
            for request in requests
        ]
"""


@pytest.mark.parametrize("config", ["", 'backend: "python"'])
def test_a_directory_without_inputs_and_outputs_takes_any(tmp_path: Path, config: str) -> None:
    with load(write_model(tmp_path, "m", ANY, config=config)) as model:
        response = model.infer({"A": np.array([1, 2], np.int8), "B": np.zeros((2, 2))})

    assert {name: (array.shape, array.dtype) for name, array in response.items()} == {
        "A!": ((2,), np.int8),
        "B!": ((2, 2), np.float64),
    }


SENDS = """
    def execute(self, requests):
        for request in requests:
            name, dtype = json.loads(request.parameters())["sends"].split()
            responses = [pb_utils.InferenceResponse([pb_utils.Tensor(name, np.zeros(1, dtype))])]
        return responses
"""
UNDECLARED = "output 'OTHER' is not declared in the model's configuration; it declares 'OUT', 'MORE'"
WRONG = "output 'OUT' has the datatype FP64, but the model's configuration declares FP32"


@pytest.mark.parametrize(("sends", "problem"), [("OTHER f4", UNDECLARED), ("OUT f8", WRONG), ("MORE f4", "")])
def test_outputs_are_checked_where_that_is_asked_for(tmp_path: Path, sends: str, problem: str) -> None:
    folder = write_model(tmp_path, "m", SENDS, head="import json\n")
    with load(folder) as model:
        model.infer({"IN": [0]}, parameters={"sends": sends})
    with load(folder, check_outputs=True) as model:
        if problem:
            with pytest.raises(ModelError) as caught:
                model.infer({"IN": [0]}, parameters={"sends": sends})
            assert caught.value.message == problem
        else:
            assert model.infer({"IN": [0]}, parameters={"sends": sends})["MORE"].tolist() == [0]


def test_the_module_of_a_model_can_be_patched(tmp_path: Path) -> None:
    uses = """
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number()], "f4"))]) for _ in requests]
    """
    folder = write_model(tmp_path, "m", uses, head="def number():\n    return 1\n\n\n")
    with load(folder) as model:
        assert model.module is not None
        assert model.module.__file__ == str(folder / "1" / "model.py")
        with mock.patch.object(model.module, "number", return_value=5):
            assert model.infer({"IN": [0]})["OUT"].tolist() == [5]
        assert model.infer({"IN": [0]})["OUT"].tolist() == [1]


def test_the_module_of_a_class_is_that_of_the_test() -> None:
    class Model:
        pass

    with load(Model) as model:
        assert model.module is sys.modules[__name__]


def test_initialize_may_wait_for_a_thread_that_imports(tmp_path: Path) -> None:
    waits = """
    def initialize(self, args):
        import threading
        def run():
            import helper
            self.value = helper.VALUE
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(20)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.value], "f4"))]) for _ in requests]
"""
    folder = write_model(tmp_path, "waits", waits)
    (folder / "1" / "helper.py").write_text("VALUE = 7\n")
    with load(folder) as model:
        assert model.infer({"IN": [0]})["OUT"].tolist() == [7]
