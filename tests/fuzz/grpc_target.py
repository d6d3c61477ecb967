"""The gRPC frontend's handlers without the transport: messages' bytes in, messages' bytes or a status out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from fuzz.engine import CheckedEngine, Complaints
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc import service_pb2 as pb
from naiad.frontends.grpc.server import GrpcFrontend
from naiad.frontends.regions import ClientRegions

SERVICE = "inference.GRPCInferenceService"
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


class GrpcTarget:
    """Takes messages, and judges what they are answered.

    Attributes:
        answers: How many answers had which status.
    """

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._complaints.texts.append(repr(context)))
        self._complaints = Complaints()
        logging.getLogger("naiad").addHandler(self._complaints)
        self._engine = CheckedEngine()
        frontend = GrpcFrontend(
            self._engine, address="", port=0, extensions=Extensions(regions=ClientRegions(is_allowed=True))
        )
        services = frontend._handlers()
        self._handlers = {name: _handler(services, name) for name in METHODS}

    def close(self) -> None:
        """Leave nothing behind."""
        logging.getLogger("naiad").removeHandler(self._complaints)
        self._loop.close()

    def try_call(self, method: str, data: bytes) -> None:
        """Call a method; raises AssertionError where it ends as it must not."""
        self._loop.run_until_complete(asyncio.wait_for(self._call(method, data), 20))

    def try_stream(self, messages: Sequence[bytes]) -> None:
        """Send messages on a stream: each is answered there, and the stream ends well."""
        self._loop.run_until_complete(asyncio.wait_for(self._stream(messages), 20))

    async def _call(self, method: str, data: bytes) -> None:
        self._complaints.texts.clear()
        task = asyncio.ensure_future(self._handlers[method].unary_unary(data, _Context()))
        await self._finish(task)
        problem = task.exception()
        if isinstance(problem, _Aborted):
            assert problem.details, f"{problem.code} without words"
            self.answers[problem.code.name] += 1
        else:
            response = task.result()
            _message(METHODS[method].output_type.name).FromString(bytes(response))
            self.answers["OK"] += 1
        assert not self._complaints.texts, self._complaints.texts[0]

    async def _stream(self, messages: Sequence[bytes]) -> None:
        self._complaints.texts.clear()
        context = _Context()
        task = asyncio.ensure_future(self._handlers["ModelStreamInfer"].stream_stream(_each(messages), context))
        await self._finish(task)
        task.result()
        for written in context.written:
            answer = pb.ModelStreamInferResponse.FromString(bytes(written))
            self.answers["stream: error" if answer.error_message else "stream: response"] += 1
        assert not self._complaints.texts, self._complaints.texts[0]

    async def _finish(self, task: asyncio.Future[Any]) -> None:
        while not task.done():
            self._engine.release()
            await asyncio.sleep(0)


class _Aborted(Exception):
    def __init__(self, code: Any, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


class _Context:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: Any, details: str) -> NoReturn:
        raise _Aborted(code, details)

    async def write(self, message: bytes) -> None:
        self.written.append(message)


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def _handler(services: Sequence[Any], method: str) -> Any:
    asked = SimpleNamespace(method=f"/{SERVICE}/{method}", invocation_metadata=())
    return next(handler for service in services if (handler := service.service(asked)) is not None)


def _message(name: str) -> Any:
    return getattr(pb, name)


def samples() -> list[tuple[str, bytes]]:
    """A good message for each method, several for those that infer."""
    infer = pb.ModelInferRequest(model_name="add_sub", id="a")
    for name in ("INPUT0", "INPUT1"):
        infer.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    raw = pb.ModelInferRequest()
    raw.CopyFrom(infer)
    raw.raw_input_contents.extend([bytes(16), bytes(16)])
    raw.parameters["priority"].uint64_param = 1
    raw.parameters["sequence_id"].string_param = "s"
    typed = pb.ModelInferRequest()
    typed.CopyFrom(infer)
    for tensor in typed.inputs:
        tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    typed.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    words = pb.ModelInferRequest(model_name="words")
    words.inputs.add(name="INPUT0", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"b"])
    held = pb.ModelInferRequest(model_name="held", raw_input_contents=[bytes(4)])
    held.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    repeat = pb.ModelInferRequest(model_name="repeat", raw_input_contents=[b"\x02\0\0\0"])
    repeat.inputs.add(name="IN", datatype="INT32", shape=[1])
    repeat.parameters["triton_enable_empty_final_response"].bool_param = True
    found = [("ModelInfer", message.SerializeToString()) for message in (raw, raw, typed, words, held, repeat)]
    named = re.compile("name|model_name")
    for name, method in METHODS.items():
        message = _message(method.input_type.name)()
        for field in method.input_type.fields:
            if named.fullmatch(field.name):
                setattr(message, field.name, "add_sub")
        if "Infer" not in name:
            found.append((name, message.SerializeToString()))
    return found
