"""Real guest processes of a `model.py` given as text, and a delegate that records its calls."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import uvloop
from naiad_stub.load_spec import LoadSpec, PythonCode

from naiad.guests.completion import NoServices
from naiad.guests.exchange import ModelInterface
from naiad.guests.launch import LaunchSpec
from naiad.guests.worker import Worker
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import RequestPlan

T = TypeVar("T")
STUBS = Path(__file__).parents[2] / "stubs"
PLAN = RequestPlan(model_name="m", model_version=1, input_names=("IN",), output_names=("OUT",))

IDENTITY = """
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
                for r in requests]
"""


class RecordingDelegate:
    def __init__(self) -> None:
        self.requests = self.log = self
        self.answers: list[Any] = []
        self.forwarded: list[Any] = []
        self.done: list[tuple[int, ...]] = []
        self.deaths: list[Any] = []
        self.lines: list[tuple[str, str]] = []
        self.logged: list[tuple[int, str, str]] = []

    def on_response(self, worker, answer, started, ended):
        self.answers.append(answer)

    def on_forwarded_response(self, worker, response, batch):
        self.forwarded.append(response)
        self.done.append(tuple(batch.keys))

    def is_refill_urgent(self, took_ns):
        return False

    def on_batch_done(self, worker, batch, started, ended):
        self.done.append(tuple(batch.keys))

    def on_exit(self, worker, error):
        self.deaths.append(error)

    def on_log_record(self, worker, level, file, line, message):
        self.logged.append((level, file, message))

    def on_output_line(self, worker, stream, line):
        self.lines.append((stream, line))

    def outputs(self) -> list[np.ndarray]:
        return [np.frombuffer(answer.response.outputs[0].data, "<f4") for answer in self.answers]


def launch_spec(
    folder: Path, methods: str, *, start_timeout: float = 20, environment: str = "", **load: Any
) -> LaunchSpec:
    """A model whose class has *methods*."""
    version = folder / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    source = (
        "import os, signal, sys, time\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
    )
    model = version / "model.py"
    model.write_text(source + textwrap.indent(textwrap.dedent(methods), "    "))
    about: dict[str, Any] = {
        "model_name": "m",
        "model_version": 1,
        "model_dir": str(folder / "m"),
        "version_dir": str(version),
        "model_config": "{}",
        "instance_name": "m_0_0",
        "instance_kind": "CPU",
        "inputs": ["IN"],
        "outputs": ["OUT"],
        "writes_stacks": True,
        **load,
    }
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return LaunchSpec(
        name="m_0_0",
        python=Path(sys.executable),
        stub=STUBS / "naiad_stub" / "artifacts" / "triton_python_backend_stub",
        library=STUBS,
        environ=environ,
        load=LoadSpec(PythonCode(str(model), str(STUBS), environment=environment), **about),
        start_timeout=start_timeout,
    )


def guest(spec: LaunchSpec) -> tuple[Worker, RecordingDelegate]:
    """A worker that is not started; on a running loop."""
    delegate = RecordingDelegate()
    return Worker(spec, delegate, ModelInterface(PLAN), NoServices()), delegate


def request(*values: float) -> InferRequest:
    data = np.array(values, "<f4").tobytes()
    return InferRequest("m", 1, [InputTensor("IN", Datatype.FP32, (len(values),), data)])


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run on the loop that the server uses; whatever the loop complains about fails the test."""
    problems: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await coroutine

    result = uvloop.run(watched())
    assert problems == []
    return result


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def started(spec):
    worker, delegate = guest(spec)
    assert await worker.start() == ""
    return worker, delegate
