"""The gRPC frontend without connections: bytes of messages in, bytes of messages or a status out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fuzz.engine import CheckedEngine, ErrorLog

from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.messages import PREFIX, PREFIX_SIZE
from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.http2.frames import ErrorCode
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.regions import ClientRegions
from naiad.frontends.status import GrpcStatus

SERVICE = "inference.GRPCInferenceService"
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


class GrpcTarget:
    """Sends messages, and checks the responses.

    Attributes:
        outcomes: How often calls ended with each status.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._errors.texts.append(repr(context)))
        self._errors = ErrorLog()
        logging.getLogger("naiad").addHandler(self._errors)
        self._engine = CheckedEngine()
        frontend = GrpcFrontend(
            self._engine, address="", port=0, extensions=Extensions(regions=ClientRegions(is_allowed=True))
        )
        self._application = frontend.application(self._loop)

    def close(self) -> None:
        """Remove the log handler and close the loop."""
        logging.getLogger("naiad").removeHandler(self._errors)
        self._loop.close()

    def try_call(self, method: str, data: bytes) -> None:
        """Call a method. Raises AssertionError for an invalid response."""
        self._loop.run_until_complete(asyncio.wait_for(self._call(method, data), 20))

    def try_stream(self, messages: Sequence[bytes]) -> None:
        """Send messages on a stream; it must end without an error, whatever they are."""
        self._loop.run_until_complete(asyncio.wait_for(self._stream(messages), 20))

    async def _call(self, method: str, data: bytes) -> None:
        recorder = await self._responses(method, [data])
        status = GrpcStatus(int(recorder.fields[b"grpc-status"]))
        if status is GrpcStatus.OK:
            (answer,) = recorder.messages
            _message(METHODS[method].output_type.name).FromString(answer)
        else:
            assert recorder.fields[b"grpc-message"], f"{status.name} without a text"
        self.outcomes[status.name] += 1

    async def _stream(self, messages: Sequence[bytes]) -> None:
        recorder = await self._responses("ModelStreamInfer", messages)
        assert recorder.fields[b"grpc-status"] == b"0"
        for message in recorder.messages:
            answer = pb.ModelStreamInferResponse.FromString(message)
            self.outcomes["stream: error" if answer.error_message else "stream: response"] += 1

    async def _responses(self, method: str, messages: Sequence[bytes]) -> _Recorder:
        self._errors.texts.clear()
        recorder = _Recorder()
        stream = Stream(1, recorder, recorder, 1 << 30, 1 << 30)
        fields = ((b"content-type", b"application/grpc"),)
        call = self._application.parse_head(RequestHead(b"POST", f"/{SERVICE}/{method}".encode(), fields, -1, 100))
        handler = self._application.handle_request(stream, call)
        assert handler is not None
        for message in messages:
            data = PREFIX.pack(0, len(message)) + message
            handler.on_data(data, 0, len(data), False)
        handler.on_data(b"", 0, 0, True)
        while stream.is_open:
            self._engine.release()
            await asyncio.sleep(0)
        assert not self._errors.texts, self._errors.texts[0]
        return recorder


class _Recorder:
    """Records what a stream sends. Implements `ResponseSender` and `StreamController`."""

    def __init__(self) -> None:
        self.longest_message = 0
        self.messages: list[bytes] = []
        self.fields: dict[bytes, bytes] = {}

    def send_headers(self, stream: Stream, fields: Fields, *, is_constant: bool, ends: bool) -> None:
        self.fields.update(fields)
        if ends:
            stream.close()

    def send_data(self, stream: Stream, parts: Sequence[Any], size: int, marker: object) -> None:
        message = b"".join(parts)
        assert len(message) == size
        self.messages.append(message[PREFIX_SIZE:])
        stream.handler.on_sent(marker)

    def send_trailers(self, stream: Stream, trailers: Fields, *, is_constant: bool) -> None:
        self.send_headers(stream, trailers, is_constant=is_constant, ends=True)

    def send_response(self, stream: Stream, fields: Fields, parts: Sequence[Any], size: int, trailers: Fields) -> None:
        self.send_data(stream, parts, size, None)
        self.send_headers(stream, (*fields, *trailers), is_constant=True, ends=True)

    def reset_stream(self, stream: Stream, code: ErrorCode) -> None:
        raise AssertionError(f"{stream} was reset: {code}")

    def hold(self, stream: Stream, *, is_held: bool) -> None:
        raise AssertionError(f"{stream} was held back")

    client_address = "127.0.0.1"

    def pause_stream(self, stream: Stream) -> None:
        pass

    def resume_stream(self, stream: Stream) -> None:
        pass

    def defer(self, resume: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(resume)


def _message(name: str) -> Any:
    return getattr(pb, name)


def samples() -> list[tuple[str, bytes]]:
    """Valid messages: one for each method, several for ModelInfer."""
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
