"""Paths of an engine's own server, for models with an input `path_request`: their `model.json` has `engine_paths`.

Neither the client's headers nor its key are passed on. The model decides which of the paths it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from naiad.frontends.http1.messages import HttpExchange, HttpRequest, response
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, event
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.text_models import TEXT_OUTPUT, has_string
from naiad_llm.openai.errors import NOT_FOUND, SERVER_ERROR, ApiError, to_api_error
from naiad_llm.openai.requests import to_json
from naiad_llm.openai.vllm_tensors import build_infer_request, strings

PATHS = ("/apply-template", "/classify", "/completion", "/infill", "/pooling", "/score")
FORM_PATHS = ("/v1/audio/transcriptions",)  # paths whose requests are forms with a file
_REQUEST = "path_request"
_FORM, _EVENTS = "multipart/form-data", "text/event-stream"
_MODEL_FIELD = b'name="model"\r\n\r\n'


class PathRequest(NamedTuple):
    """A request to a path; the model's name is "" for the only one that has paths."""

    model: str
    content_type: str
    body: str | bytes


def read_json_request(document: dict[str, Any]) -> PathRequest:
    """The request in a JSON object; the engine's name for the model is another one, so it gets none."""
    model = document.pop("model", None) or ""
    if not isinstance(model, str):
        raise ApiError("`model` must be a string", param="model")
    return PathRequest(model, "application/json", to_json(document))


def read_form(request: HttpRequest) -> PathRequest:
    """The request in a form."""
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    if not kind.startswith(_FORM):
        raise ApiError(f"The body must be a form ({_FORM}) with the field `file`, not {kind or 'without a type'}")
    body = bytes(request.body)
    _, _, rest = body.partition(_MODEL_FIELD)
    return PathRequest(rest.partition(b"\r\n")[0][:1000].decode("utf-8", "replace"), kind, body)


def has_paths(metadata: ModelMetadata) -> bool:
    """Whether a model has the string input `path_request`."""
    return has_string(metadata.inputs, _REQUEST)


def path_infer_request(path: str, request: PathRequest, metadata: ModelMetadata) -> InferRequest:
    """The inference request for *request*, whose path the model may still reject."""
    if not has_paths(metadata):
        raise ApiError(
            f"The model `{metadata.name}` does not serve {path}: it has no string input '{_REQUEST}', which "
            "'engine_paths' in its model.json adds",
            status=NOT_FOUND,
            param="model",
        )
    parts = [part if isinstance(part, bytes) else part.encode() for part in (path, *request[1:])]
    data = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    inference = build_infer_request(metadata, {}, {})
    inference.inputs = [*inference.inputs, InputTensor(_REQUEST, Datatype.BYTES, (len(parts),), data)]
    return inference


class PathSink:
    """Passes the engine's response on: whole, or the events of a stream as they come."""

    def __init__(self, exchange: HttpExchange, model: str, sent: SentCount) -> None:
        self._exchange: HttpExchange | None = exchange
        self._events = EventWriter(exchange)
        self._model = model
        self._sent = sent

    def send(self, inferred: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        try:
            if inferred is None or self._exchange is None:
                self._sent.add(inferred is not None)
            elif inferred.error is not None:
                raise to_api_error(inferred.error, self._model)
            else:
                self._pass_on(*_parts({one.name: one for one in inferred.outputs}))
            if final and not self._events.has_begun:
                raise ApiError("The model returned no response", status=SERVER_ERROR)
        except ApiError as error:
            self._sent.add(inferred is not None)
            self._fail(error)
        if final and self._exchange is not None:
            self._exchange = None
            self._events.end()
            self._events.write()

    def _pass_on(self, status: int, content_type: str, body: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if content_type.startswith(_EVENTS):
            if not self._events.has_begun:
                self._events.begin(status)
            self._events.add(body, self._sent)
            self._events.write()
            return
        self._exchange = None
        self._sent.add()
        exchange.respond(response(status, [body], content_type.encode("latin-1", "replace")))

    def _fail(self, error: ApiError) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if self._events.has_begun:
            self._events.add(event(orjson.dumps(error.document())), SentCount())
        else:
            self._exchange = None
            exchange.respond(error.response())


def _parts(outputs: Mapping[str, Any]) -> tuple[int, str, bytes]:
    texts = strings(outputs.get(TEXT_OUTPUT))
    if len(texts) != len(("status", "type", "body")) or not (texts[0].isascii() and texts[0].isdecimal()):
        raise ApiError(f"The model returned no status, content type and body in '{TEXT_OUTPUT}'", status=SERVER_ERROR)
    return int(texts[0]), texts[1], texts[2].encode()
