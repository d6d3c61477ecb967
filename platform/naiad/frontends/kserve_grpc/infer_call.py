"""ModelInfer: one request, one response, and no task between."""

from __future__ import annotations

from typing import Any

from naiad.errors import Code, NaiadError
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.calls import Serving, SingleCall
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc.service import Inference
from naiad.protocol.inference import InferResponse


class InferCall(SingleCall):
    """A call of ModelInfer; also the sink of its response."""

    __slots__ = ("_count", "_data", "_inference", "_is_inside", "_response", "_ticket")

    def __init__(self, stream: Stream, head: CallHead[Any], serving: Serving) -> None:
        super().__init__(stream, head, serving)
        self._data: bytes | bytearray = b""
        self._inference: Inference | None = None
        self._is_inside = False
        self._ticket: int | None = None
        self._response: InferResponse | None = None
        self._count = 0

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Take a response or the end."""
        if response is not None:
            self._response = response
            self._count += 1
        if not final:
            return
        self._leave()
        if self._is_over:
            self._response = None
            return
        try:
            parts = self._result()
        except Exception as error:  # noqa: BLE001 - it becomes the call's status
            self._ticket = None
            self.fail(error)
            return
        self.answer(parts)
        self._serving.pool.keep(self._data)

    def _run(self, message: bytes | bytearray) -> None:
        serving = self._serving
        try:
            serving.gate.check()
            inference = self._inference = serving.service.read(message)
            self._forward(inference.request)
            self._data = message
            self._is_inside = True
            serving.gate.enter()
            self._ticket = serving.service.submit(inference.request, self, self._head.propagated)
        except Exception as error:  # noqa: BLE001 - it becomes the call's status
            self._leave()
            self.fail(error)

    def _result(self) -> Any:
        response, inference = self._response, self._inference
        self._response = self._inference = None
        if response is None:
            raise NaiadError("received an unexpected null response", code=Code.INTERNAL)
        if self._count != 1:
            raise NaiadError(f"expected a single response, got {self._count}", code=Code.INTERNAL)
        assert inference is not None
        return inference.parts(response)

    def _leave(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._serving.gate.leave()

    def _take_back(self) -> None:
        self._leave()
        self._inference = None
        if self._ticket is not None:
            self._serving.engine.cancel(self._ticket)
