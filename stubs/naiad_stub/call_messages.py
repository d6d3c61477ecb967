"""CALL messages: what a request that a model made looks like on its way to the host."""

from __future__ import annotations

from typing import Union

from naiad_stub import wire
from naiad_stub.exceptions import TritonModelException
from naiad_stub.exchange import Written
from naiad_stub.request import InferenceRequest


class Texts:
    """The texts of a request as bytes: what cannot be sent is noticed before its tensors take up memory."""

    __slots__ = ("correlation", "correlation_size", "correlation_text", "model", "outputs", "parameters", "request_id")

    def __init__(self, request: InferenceRequest) -> None:
        self.request_id = request._id.encode()  # noqa: SLF001 - made for this
        self.correlation: Union[int, str] = request._correlation  # noqa: SLF001 - likewise
        self.correlation_text, self.correlation_size = b"", wire.NO_STRING
        if isinstance(self.correlation, str):
            self.correlation_text = self.correlation.encode()
            self.correlation, self.correlation_size = 0, len(self.correlation_text)
        if max(len(self.request_id), len(self.correlation_text)) > wire.MAX_ID_BYTES:
            raise TritonModelException(f"request and correlation ids may have at most {wire.MAX_ID_BYTES} bytes")
        self.parameters = request._parameters.encode()  # noqa: SLF001 - likewise
        self.model = request._model_name.encode()  # noqa: SLF001 - likewise
        self.outputs = "\0".join(dict.fromkeys(request._outputs)).encode()  # noqa: SLF001 - likewise


def pack_call(request: InferenceRequest, texts: Texts, number: int, flags: int, written: Written) -> bytes:
    """The CALL frame of *request*, its tensors where `TensorWriter.write` has put and described them."""
    own, blocks, data, inline, _ = written
    given = request._trace  # noqa: SLF001 - made for this
    trace = b""
    if given is not None and given._key is not None:  # noqa: SLF001 - likewise
        flags |= wire.CALL_TRACED
        trace = wire.CALL_TRACE.pack(given._key)  # noqa: SLF001 - likewise
    head = wire.CALL_HEAD.pack(
        number,
        texts.correlation,
        request._timeout,  # noqa: SLF001 - likewise
        request._flags,  # noqa: SLF001 - likewise
        request._model_version,  # noqa: SLF001 - likewise
        flags,
        own,
        len(blocks) >> 3,
        len(texts.request_id),
        texts.correlation_size,
        len(texts.parameters),
        len(texts.model),
        len(texts.outputs),
        len(data),
    )
    body = b"".join(
        (
            head,
            blocks,
            trace,
            texts.request_id,
            texts.correlation_text,
            texts.parameters,
            texts.model,
            texts.outputs,
            data,
            inline,
        )
    )
    return wire.frame(wire.Kind.CALL, body)
