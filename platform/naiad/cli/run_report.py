"""What `naiad run` prints: responses and timings, for people or as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from naiad.errors import NaiadError
from naiad.frontends.kserve_http.json_tensors import split_strings
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import ModelStatistics
from naiad.protocol.numpy_types import NUMPY_TYPES

__all__ = ["Answer", "Report", "answer_of", "print_json", "print_plainly", "timings"]

_SHOWN_ELEMENTS = 24
_NS_PER_MS = 1e6
_BF16_SHIFT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response, copied out of the guest's memory.

    Attributes:
        outputs: Datatype and array by name.
        parameters: Its parameters.
        error: What went wrong, or None.
        after_ms: Milliseconds after the request was sent.
    """

    outputs: dict[str, tuple[str, np.ndarray[Any, Any]]]
    parameters: dict[str, Any]
    error: NaiadError | None
    after_ms: float


@dataclass(slots=True, kw_only=True)
class Report:
    """One run.

    Attributes:
        model: Name of the model.
        version: Its version.
        answers: All responses.
        timings_ms: Milliseconds by what took them, in the order they were spent.
    """

    model: str
    version: str
    answers: list[Answer] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether a response is an error."""
        return any(answer.error is not None for answer in self.answers)


def answer_of(response: InferResponse, after_ns: int) -> Answer:
    """What is kept of a response."""
    return Answer(
        outputs={tensor.name: (tensor.datatype.name, _array(tensor)) for tensor in response.outputs},
        parameters=dict(response.parameters),
        error=response.error,
        after_ms=after_ns / _NS_PER_MS,
    )


def timings(load_ns: int, total_ns: int, statistics: ModelStatistics) -> dict[str, float]:
    """Milliseconds of the parts of one run; parts of a request only where it succeeded."""
    parts = {"load": load_ns}
    if statistics.success.count:
        parts |= {
            "queue": statistics.queue.ns,
            "input": statistics.compute_input.ns,
            "execute": statistics.compute_infer.ns,
            "output": statistics.compute_output.ns,
        }
    parts["total"] = total_ns
    return {name: ns / _NS_PER_MS for name, ns in parts.items()}


def print_plainly(report: Report) -> None:
    """Print a run for people."""
    print(f"{report.model} version {report.version}")
    many = len(report.answers) != 1
    if many:
        print(f"{len(report.answers)} responses")
    for number, answer in enumerate(report.answers, 1):
        if many:
            print(f"response {number} after {answer.after_ms:.3g} ms")
        _print_answer(answer)
    print("  ".join(f"{name} {ms:.3g} ms" for name, ms in report.timings_ms.items()))


def print_json(report: Report) -> None:
    """Print a run for programs: one JSON object."""
    document = {
        "model_name": report.model,
        "model_version": report.version,
        "responses": [_document(answer) for answer in report.answers],
        "timings_ms": report.timings_ms,
    }
    print(orjson.dumps(document).decode())


def _print_answer(answer: Answer) -> None:
    if answer.error is not None:
        print(f"  error ({answer.error.code.value}): {answer.error.message.rstrip()}")
    width = max(map(len, answer.outputs), default=0)
    for name, (datatype, array) in answer.outputs.items():
        shown = np.array2string(array, threshold=_SHOWN_ELEMENTS, separator=", ", prefix=" " * (width + 4))
        print(f"  {name:{width}}  {datatype} {list(array.shape)}  {shown}")
    if answer.parameters:
        print(f"  parameters: {orjson.dumps(answer.parameters).decode()}")


def _document(answer: Answer) -> dict[str, Any]:
    if answer.error is not None:
        return {"error": answer.error.message, "code": answer.error.code.value, "after_ms": answer.after_ms}
    return {
        "outputs": [
            {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, (datatype, array) in answer.outputs.items()
        ],
        "parameters": answer.parameters,
        "after_ms": answer.after_ms,
    }


def _array(tensor: OutputTensor) -> np.ndarray[Any, Any]:
    """A copy of an output: text as text, BF16 as FP32."""
    array: np.ndarray[Any, Any]
    if tensor.datatype is Datatype.BYTES:
        strings = [element.decode("utf-8", "replace") for element in split_strings(tensor.data)]
        array = np.empty(len(strings), np.object_)
        array[:] = strings
    elif tensor.datatype is Datatype.BF16:
        array = (np.frombuffer(tensor.data, "<u2").astype("<u4") << _BF16_SHIFT).view("<f4")
    else:
        array = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).copy()
    return array.reshape(tensor.shape)
