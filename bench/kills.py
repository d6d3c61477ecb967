"""`python -m bench.kills --processes=2`: processes of a server are killed under every kind of request.

Clients of tritonclient send, at the same time: requests over HTTP and gRPC, batches, sequences with a state, ensembles,
calls between models, streams over HTTP and gRPC, requests that they cancel, tensors in system shared memory, loads of a
model, and changes of another one's instances. Meanwhile the processes of the server and the guests are killed one after
the other; the first process alone is spared, since everything ends with it. Each tensor is unique and the models'
answers are known, so the answer to another request is noticed, and a request that was executed twice changes the sum of
its sequence.

A request may be answered, or fail because a process that had it was killed. Anything else is wrong. Prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import numpy as np
import psutil
import tritonclient.grpc.aio as grpc_client
import tritonclient.http.aio as http_client
import tritonclient.utils.shared_memory as system_memory
from tritonclient.utils import InferenceServerException

from bench.endurance.clients import Address, Array, EventStream, GrpcStream, channels
from bench.report import table
from bench.results import OURS
from bench.servers import HOST, Program, Server, running

LOST_AFTER = 60.0
"""Seconds without an answer after which a request counts as lost."""
_SIZES = (8, 8, 8, 1_000, 40_000)
_RESPONSES = 5
_IS_KILLED = re.compile(
    "exited|(was|were) killed|has ended|was lost: the instance|the stream ended|connection|closed|"
    "unavailable|disconnected|cannot connect|connect call failed|can not write request|IncompleteRead|GOAWAY|"
    "RST_STREAM|internal error from Core",
    re.IGNORECASE,
)
"""What errors say of requests whose process or guest was killed."""

_ADD = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 1 + tensor.as_numpy())])
            for tensor in (pb_utils.get_input_tensor_by_name(request, "IN") for request in requests)
        ]
"""
_CALLS = """
import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.answer, requests))

    async def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        for model, call in (("plain", "async_exec"), ("batched", "async_exec"), ("pipeline", "exec")):
            called = pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor])
            response = getattr(called, call)()
            response = response if call == "exec" else await response
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            tensor = pb_utils.Tensor("IN", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
"""
_SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.add(request))]) for request in requests]

    def add(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)

        number = int(value("ID")[0])
        before = np.zeros(1, np.int64) if value("START")[0] else self.sums[number]
        self.sums[number] = before + value("IN")[:1]
        return (self.sums[number] if not value("END")[0] else self.sums.pop(number)).reshape(1, 1)
"""
_STREAM = f"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for number in range({_RESPONSES}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_SLOW = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            for _ in range(20):
                if not request.is_cancelled():
                    time.sleep(0.01)
            answers.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", 1 + pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
                )
            )
        return answers
"""
_FLAT = (
    'input {{ name: "IN" data_type: TYPE_INT64 dims: [{0}] }}\n'
    'output {{ name: "OUT" data_type: TYPE_INT64 dims: [{0}] }}\n'
)
_PORTS, _ROW, _ROWS = _FLAT.format(-1), _FLAT.format(1), _FLAT.format("-1, -1")
_SEQUENCES = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
_STEPS = "".join(
    f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{source}" }} '
    f'output_map {{ key: "OUT" value: "{target}" }} }}\n'
    for model, source, target in (("plain", "IN", "between"), ("batched", "between", "OUT"))
)
_GROUP = "instance_group [{{ count: {} kind: KIND_CPU }}]\n"
_MODELS = {
    "plain": (_ADD, _ROWS + _GROUP.format(4)),
    "single": (_ADD, _PORTS),
    "batched": (_ADD, _PORTS + "max_batch_size: 8\ndynamic_batching { }\n" + _GROUP.format(2)),
    "sums": (_SUMS, _ROW + _SEQUENCES + _GROUP.format(2)),
    "calls": (_CALLS, _ROWS + _GROUP.format(2)),
    "stream": (_STREAM, _PORTS + "model_transaction_policy { decoupled: true }\n" + _GROUP.format(2)),
    "slow": (_SLOW, _PORTS + _GROUP.format(4)),
    "swapped": (_ADD, _PORTS + _GROUP.format(2)),
    "changed": (_ADD, _PORTS + _GROUP.format(2)),
    "pipeline": ("", f'platform: "ensemble"\n{_ROWS}ensemble_scheduling {{\n{_STEPS}}}\n'),
}
_TAKING_ROWS = ("plain", "batched", "calls", "pipeline")
_ADDED = {"plain": 1, "single": 1, "slow": 1, "swapped": 1, "changed": 1, "pipeline": 2, "calls": 4, "batched": 1}


class WrongError(Exception):
    """An answer that is not that of its request."""


@dataclasses.dataclass
class Outcomes:
    """What became of the requests of each kind.

    Attributes:
        counts: By kind and outcome.
        failures: Texts of the failures, without numbers, and how often each came.
        wrong: What was wrong.
    """

    counts: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    failures: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def answered(self, kind: str) -> int:
        """How many requests of a kind were answered."""
        return self.counts[kind, "answered"]

    async def count(self, kind: str, request: Callable[[], Awaitable[None]]) -> bool:
        """Send a request and count what becomes of it; whether it was answered."""
        try:
            await asyncio.wait_for(request(), LOST_AFTER)
        except WrongError as error:
            outcome = "wrong"
            self.wrong.append(f"{kind}: {error}")
        except asyncio.TimeoutError:
            outcome = "lost"
            self.wrong.append(f"{kind}: no answer within {LOST_AFTER:g} s")
        except (
            InferenceServerException, aiohttp.ClientError, grpc.aio.AioRpcError, OSError, EOFError, RuntimeError
        ) as error:  # fmt: skip
            text = f"{type(error).__name__}: {error}"
            outcome = "failed"
            self.failures[re.sub(r"\d+", "N", text)[:160]] += 1
            if not _IS_KILLED.search(text):
                self.wrong.append(f"{kind}: {text}")
        else:
            outcome = "answered"
        self.counts[kind, outcome] += 1
        return outcome == "answered"


class Clients:
    """All clients of a server, until they are stopped."""

    def __init__(self, address: Address, outcomes: Outcomes, count: int, only: str) -> None:
        self._address = address
        self._outcomes = outcomes
        self._count = count
        self._only = only
        self._numbers = itertools.count(1)
        self._is_over = asyncio.Event()
        self._http = http_client.InferenceServerClient(address.http, conn_limit=100)
        self._channels = channels(address, 4)
        self._grpc = grpc_client.InferenceServerClient(address.grpc)

    async def run(self) -> None:
        """Send requests of every kind, until `stop`."""
        loops: list[Awaitable[None]] = []
        for _ in range(self._count):
            for model in ("plain", "single", "batched", "pipeline", "calls", "swapped", "changed"):
                loops += [self._repeat(f"{model}, HTTP", self._infer(model, self._http, http_client))]
                loops += [self._repeat(f"{model}, gRPC", self._infer(model, self._grpc, grpc_client))]
            loops += [self._sequences(self._http, http_client, "HTTP")]
            loops += [self._sequences(self._grpc, grpc_client, "gRPC")]
            loops += [self._repeat("stream, HTTP", self._events), self._repeat("stream, gRPC", self._responses)]
            loops += [self._repeat("cancelled, HTTP", self._cancel_http), self._repeat("cancelled, gRPC", self._cancel)]
        loops += [self._shared_memory(), self._model_control(), self._change_instances()]
        try:
            await asyncio.gather(*loops)
        finally:
            await asyncio.gather(self._http.close(), self._grpc.close(), *(each.close() for each in self._channels))

    def stop(self) -> None:
        """Send no more requests."""
        self._is_over.set()

    async def _repeat(self, kind: str, request: Callable[[], Awaitable[None]]) -> None:
        if self._only not in kind:
            return
        while not self._is_over.is_set():
            if not await self._outcomes.count(kind, request):
                await asyncio.sleep(0.02)  # else a server that is away would be asked all the time

    def _values(self, size: int = 0) -> Array:
        size = size or random.choice(_SIZES)
        return np.arange(size, dtype=np.int64) + (next(self._numbers) << 20)

    def _infer(self, model: str, client: object, module: object) -> Callable[[], Awaitable[None]]:
        """A request to *model*, whose answer is its input and a known number."""

        async def request() -> None:
            values = self._values()
            shaped = values.reshape(1, -1) if model in _TAKING_ROWS else values
            given = module.InferInput("IN", shaped.shape, "INT64")  # type: ignore[attr-defined]
            given.set_data_from_numpy(shaped)
            result = await client.infer(model, [given], request_id=str(values[0]))  # type: ignore[attr-defined]
            _compare(model, result.as_numpy("OUT").reshape(-1), values + _ADDED[model])

        return request

    async def _sequences(self, client: object, module: object, protocol: str) -> None:
        if self._only not in f"sequences, {protocol}":
            return
        while not self._is_over.is_set():
            number, total, length = next(self._numbers), 0, random.randint(2, 12)
            for step in range(length):
                value = random.randint(1, 1 << 40)
                total += value

                async def request(
                    value: int = value, total: int = total, step: int = step, number: int = number, length: int = length
                ) -> None:
                    given = module.InferInput("IN", [1, 1], "INT64")  # type: ignore[attr-defined]
                    given.set_data_from_numpy(np.array([[value]]))
                    result = await client.infer(  # type: ignore[attr-defined]
                        "sums", [given], sequence_id=number, sequence_start=not step, sequence_end=step == length - 1
                    )
                    _compare("sums", result.as_numpy("OUT").reshape(-1), np.array([total]))

                if not await self._outcomes.count(f"sequences, {protocol}", request):
                    break  # its state is gone with its guest

    async def _events(self) -> None:
        values = self._values(8)
        stream = await EventStream.open(self._address, "stream", values)
        try:
            found = []
            async for event in stream.events():
                if "error" in event:
                    raise RuntimeError(event["error"])
                found.append(np.array(event["OUT"], np.int64))
        finally:
            await stream.close()
        _compare_all(found, values)

    async def _responses(self) -> None:
        values = self._values()
        stream = GrpcStream(random.choice(self._channels))
        try:
            found = [answer async for _, answer in stream.ask("stream", values, "1") if answer is not None]
        finally:
            stream.cancel()
        _compare_all(found, values)

    async def _cancel(self) -> None:
        values = self._values(8)
        given = grpc_client.InferInput("IN", values.shape, "INT64")
        given.set_data_from_numpy(values)
        asked = asyncio.ensure_future(self._grpc.infer("slow", [given]))
        await asyncio.wait([asked], timeout=random.random() * 0.3)
        if asked.cancel():
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            return
        _compare("slow", (await asked).as_numpy("OUT"), values + 1)

    async def _cancel_http(self) -> None:
        """A client that closes its connection, or reads the answer if that is there first."""
        values = self._values(8)
        stream = await EventStream.open(self._address, "slow", values)

        async def read() -> list[dict[str, Any]]:
            return [event async for event in stream.events()]

        try:
            found = await asyncio.wait_for(read(), random.random() * 0.3)
        except asyncio.TimeoutError:
            stream.abort()
            return
        finally:
            await stream.close()
        if "error" in found[0]:
            raise RuntimeError(found[0]["error"])
        _compare("slow", np.array(found[0]["OUT"], np.int64), values + 1)

    async def _shared_memory(self) -> None:
        size = 8 * max(_SIZES)
        name = f"naiad-kills-{os.getpid()}"
        given, taken = (
            system_memory.create_shared_memory_region(f"{name}-{side}", f"/{name}-{side}", size)
            for side in ("in", "out")
        )
        try:
            for side in ("in", "out"):
                await self._http.register_system_shared_memory(f"{name}-{side}", f"/{name}-{side}", size)

            async def request() -> None:
                values = self._values()
                system_memory.set_shared_memory_region(given, [values])
                tensor = http_client.InferInput("IN", [1, values.size], "INT64")
                tensor.set_shared_memory(f"{name}-in", values.nbytes)
                wanted = http_client.InferRequestedOutput("OUT")
                wanted.set_shared_memory(f"{name}-out", values.nbytes)
                await self._http.infer("plain", [tensor], outputs=[wanted])
                _compare("plain", system_memory.get_contents_as_numpy(taken, np.int64, values.shape), values + 1)

            await self._repeat("shared memory, HTTP", request)
        finally:
            for region in (given, taken):
                system_memory.destroy_shared_memory_region(region)

    async def _model_control(self) -> None:
        """Load the model again and again."""
        if self._only not in "loads":
            return
        while not self._is_over.is_set():

            async def load() -> None:
                await self._grpc.load_model("swapped")
                if not await self._grpc.is_model_ready("swapped"):
                    raise RuntimeError("the model is not ready: the guests of all its instances were killed")

            await self._outcomes.count("loads", load)
            await asyncio.sleep(1)

    async def _change_instances(self) -> None:
        """Give a model more and fewer instances again and again."""
        if self._only not in "changes":
            return
        for count in itertools.cycle((3, 1, 4, 2)):
            if self._is_over.is_set():
                break
            tensor = {"data_type": "TYPE_INT64", "dims": [-1]}
            config = {
                "backend": "python",
                "input": [{"name": "IN", **tensor}],
                "output": [{"name": "OUT", **tensor}],
                "instance_group": [{"count": count, "kind": "KIND_CPU"}],
            }
            change = functools.partial(self._grpc.load_model, "changed", config=json.dumps(config))
            await self._outcomes.count("changes", change)
            await asyncio.sleep(1)


def _compare(model: str, found: Array, expected: Array) -> None:
    if not np.array_equal(found, expected):
        texts = [f"{array[:3]} of {array.size}" for array in (found, expected)]
        raise WrongError(f"'{model}' answered {texts[0]} in place of {texts[1]}")


def _compare_all(found: list[Array], values: Array) -> None:
    if len(found) != _RESPONSES:
        raise WrongError(f"{len(found)} responses in place of {_RESPONSES}")
    for number, answer in enumerate(found):
        _compare("stream", answer, values + number)


async def kill(server: Server, outcomes: Outcomes, options: argparse.Namespace) -> Counter[str]:
    """Kill a process or guest, wait until every kind of request is answered again, and so on."""
    kills: Counter[str] = Counter()
    count = Counter(kind for kind, _ in _killable(server.pid))
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        await asyncio.sleep(options.pause)
        before = {kind: outcomes.answered(kind) for kind, _ in list(outcomes.counts)}
        processes = list(_killable(server.pid))
        # One half of the kills is for the processes of the server: there are few of them beside the guests.
        kind = options.kill or random.choice(sorted(count))
        if Counter(each for each, _ in processes) != count:
            continue  # not all are back
        _, victim = random.choice([each for each in processes if each[0] == kind])
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
            kills[kind] += 1
        deadline = time.monotonic() + LOST_AFTER
        while waiting := [each for each, count in before.items() if outcomes.answered(each) <= count]:
            if time.monotonic() > deadline:
                outcomes.wrong.append(f"not answered again after a kill of a {kind}: {', '.join(waiting)}")
                return kills
            await asyncio.sleep(0.05)
    return kills


def _killable(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of a server but the first one, each with its kind."""
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "naiad-process" in command:
                yield "process", process
            elif "stub" in command:
                yield "guest", process


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", default="2", help="of the server")
    parser.add_argument("--seconds", type=float, default=300, help="how long processes are killed")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before each kill")
    parser.add_argument("--clients", type=int, default=2, help="of each kind of request")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="send requests of the kinds whose names contain this"
    )
    parser.add_argument("--kill", default="", choices=("", "process", "guest"), help="kill nothing else")
    parser.add_argument("--log", default="", metavar="FILE", help="keep the server's log")
    options = parser.parse_args()
    naiad = str(Path(sys.executable).with_name("naiad"))
    command = [
        naiad, "serve", f"--processes={options.processes}", "--model-control-mode=explicit", "--load-model=*",
        "--stub-restart-limit=100000", "--allow-client-shm=true",
    ]  # fmt: skip
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory(prefix="naiad-bench-") as folder:
        models = Path(folder) / "models"
        for name, (code, config) in _MODELS.items():
            (models / name / "1").mkdir(parents=True)
            (models / name / "config.pbtxt").write_text(config if not code else f'backend: "python"\n{config}')
            if code:
                (models / name / "1" / "model.py").write_text(code)
        with running(Program(OURS, command, {}), models, Path(folder)) as server:
            kills = asyncio.run(_run(server, outcomes, options))
            log = server.log
            if options.log:
                Path(options.log).write_text(log)
    kinds = sorted({kind for kind, _ in outcomes.counts})
    heads = ("answered", "failed", "wrong", "lost")
    print(f"{options.seconds:g} s, {options.processes} processes; killed: {dict(kills)}\n")
    print(table(("", *heads), [(kind, *(str(outcomes.counts[kind, head]) for head in heads)) for kind in kinds]))
    print("\nfailures:", *(f"{count:6} {text}" for text, count in outcomes.failures.most_common()), sep="\n")
    traces = log.count("Traceback (most recent call last)")
    if traces:
        outcomes.wrong.append(f"{traces} tracebacks in the log:\n{log[log.index('Traceback') - 400 :][:4000]}")
    if outcomes.wrong:
        print("\nwrong:", *(f"{count:6} {text}" for text, count in Counter(outcomes.wrong).most_common(40)), sep="\n")
    return 1 if outcomes.wrong else 0


async def _run(server: Server, outcomes: Outcomes, options: argparse.Namespace) -> Counter[str]:
    clients = Clients(
        Address(HOST, server.http_port, server.grpc_port, server.pid), outcomes, options.clients, options.only
    )
    sending = asyncio.ensure_future(clients.run())
    killing = asyncio.ensure_future(kill(server, outcomes, options))
    try:
        await asyncio.wait([sending, killing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        clients.stop()
    await sending
    return await killing


if __name__ == "__main__":
    sys.exit(main())
