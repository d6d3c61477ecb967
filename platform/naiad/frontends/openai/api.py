"""The endpoints under `/v1`: routing, API keys, restrictions, and the submission of inference requests.

Requests for text and vectors are submitted synchronously and their sinks write the response. The other endpoints
await the engine, so each of them runs in a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from naiad.config.server.access import Api, Restrictions
from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError
from naiad.frontends.access import has_value
from naiad.frontends.http1.heads import trace_headers
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, json_response, response
from naiad.frontends.http1.server_sent_events import SentCount
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.openai.cors import CorsExchange, allowed_lines, is_preflight, preflight_response
from naiad.frontends.openai.embeddings import EmbeddingSink, infer_request, read_embedding_request
from naiad.frontends.openai.errors import (
    FORBIDDEN,
    NOT_ALLOWED,
    NOT_FOUND,
    SERVER_ERROR,
    UNAUTHORIZED,
    UNAVAILABLE,
    ApiError,
    to_api_error,
    unknown_model_error,
)
from naiad.frontends.openai.requests import TextRequest, parse_body, read_chat, read_completion
from naiad.frontends.openai.responses import PromptSink, TextResponse
from naiad.frontends.openai.template import ChatTemplate
from naiad.frontends.openai.vllm_tensors import can_embed, can_generate_text, infer_requests
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.model_names import model_key

logger = logging.getLogger("naiad.openai")

PREFIX = b"/v1/"
_HEALTH = ("/health", "/health/ready")
"""Health endpoints of vLLM's server and of Triton's OpenAI frontend; they need no API key."""
_INTERNAL = ApiError(INTERNAL_ERROR, status=SERVER_ERROR)
_BASE = "/v1"
_MODELS = f"{_BASE}/models"
_MODEL = re.compile(r"/v1/models/([^/]+)(?:/(load|unload))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiSettings:
    """Settings of the API.

    Attributes:
        keys: API keys; each request must present one of them; empty to accept all requests.
        default_tokens: `max_tokens` of a request that sets none; None for 16 in completions and the rest of the context
            in chats.
        lora_separator: Separates the name of a model from that of an adapter (`MODEL<separator>ADAPTER`); "" to
            support no adapters.
        max_json: Maximum size of a request body in bytes.
        chat_template: Renders chats as prompts for models without the input `messages`; None to reject such chats.
        restrictions: Headers that endpoint groups require, as on KServe's paths.
        origins: Origins whose pages may call the API from a browser; `*` for any.
        adapters: Returns the adapter names of a model's version. Called on a thread, and only with a separator set.
    """

    keys: tuple[str, ...] = ()
    default_tokens: int | None = None
    lora_separator: str = ""
    max_json: int = 64 << 20
    chat_template: ChatTemplate | None = None
    restrictions: Restrictions = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    adapters: Callable[[str, str], Sequence[str]] = lambda _model, _version: ()


class OpenAiApi:
    """Handles requests of OpenAI's API."""

    def __init__(self, engine: EngineDoor, tracer: Tracer, settings: OpenAiSettings) -> None:
        self._engine = engine
        self._tracer = tracer
        self._settings = settings
        self._keys = [key.encode() for key in settings.keys]
        self._guards = {
            api: (header.lower().encode(), value.encode()) for api, (header, value) in settings.restrictions.items()
        }
        self._created = int(time.time())
        self._tasks: set[asyncio.Task[None]] = set()
        self._posts: dict[str, Callable[[HttpExchange], None]] = {
            "/v1/chat/completions": lambda exchange: self._generate(exchange, read_chat),
            "/v1/completions": lambda exchange: self._generate(exchange, read_completion),
            "/v1/embeddings": self._embed,
        }

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request on a port shared with other APIs; return False if its path is not below `/v1`."""
        if not exchange.request.path.startswith(PREFIX):
            return False
        self._handle(exchange)
        return True

    def handle(self, exchange: HttpExchange) -> None:
        """Handle a request on this API's own port; the response may follow later."""
        log_request(logger, exchange.request)
        self._handle(exchange)

    def _handle(self, exchange: HttpExchange) -> None:
        path = exchange.request.path.decode("latin-1").rstrip("/")
        lines = allowed_lines(exchange.request, self._settings.origins)
        if lines:
            exchange = CorsExchange(exchange, lines)
        try:
            if path in _HEALTH:
                _expect(exchange.request.method, "GET")
                self._run_later(exchange, self._health(exchange))
            elif lines and is_preflight(exchange.request):  # before the key: browsers send no Authorization with it
                exchange.respond(preflight_response(exchange.request))
            else:
                self._check_key(exchange)
                self._route(exchange, path)
        except ApiError as error:
            exchange.respond(error.response())
        except Exception:
            logger.exception("cannot handle %r", exchange.request.path)
            exchange.respond(_INTERNAL.response())

    def _route(self, exchange: HttpExchange, path: str) -> None:
        method = exchange.request.method
        found = _MODEL.fullmatch(path)
        if path in self._posts:
            _expect(method, "POST")
            self._check_restriction(exchange, Api.INFERENCE)
            self._posts[path](exchange)
        elif path == _MODELS:
            _expect(method, "GET")
            self._check_restriction(exchange, Api.METADATA)
            self._run_later(exchange, self._list(exchange))
        elif found is not None and found[2]:
            _expect(method, "POST")
            self._check_restriction(exchange, Api.MODEL_REPOSITORY)
            self._run_later(exchange, self._load_or_unload(exchange, unquote(found[1]), found[2]))
        elif found is not None:
            _expect(method, "GET")
            self._check_restriction(exchange, Api.METADATA)
            self._run_later(exchange, self._show(exchange, unquote(found[1])))
        else:
            hint = self._suggest_path(path)
            raise ApiError(f"Invalid URL ({method} {exchange.request.path.decode('latin-1')}){hint}", status=NOT_FOUND)

    def _suggest_path(self, path: str) -> str:
        """A hint for an unknown path that ends like a known one, usually due to a wrong `base_url` of the client."""
        known = next((one for one in (*self._posts, _MODELS) if path.endswith(one.removeprefix(_BASE))), None)
        return f"; did you mean {known}? A client's base_url must end in {_BASE}, once" if known else ""

    async def _health(self, exchange: HttpExchange) -> None:
        try:
            is_ready = await self._engine.check_server_ready()
        except NaiadError:
            is_ready = False  # the server is shutting down
        exchange.respond(response(200 if is_ready else UNAVAILABLE, [], b""))

    def _check_restriction(self, exchange: HttpExchange, api: Api) -> None:
        guard = self._guards.get(api)
        if guard is not None and not has_value(exchange.request.headers.get(guard[0]), guard[1]):
            raise ApiError(f"This API is restricted, expecting header '{guard[0].decode()}'", status=FORBIDDEN)

    def _check_key(self, exchange: HttpExchange) -> None:
        if not self._keys:
            return
        given = exchange.request.headers.get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        key = key.strip()
        # All keys are compared, each in constant time, so that the response time reveals nothing about them.
        if scheme.lower() != b"bearer" or sum(hmac.compare_digest(key, known) for known in self._keys) == 0:
            what = "Incorrect API key provided" if key else "You didn't provide an API key"
            raise ApiError(
                f"{what}; send one of the server's keys in the header 'Authorization: Bearer KEY'",
                status=UNAUTHORIZED,
                code="invalid_api_key",
            )

    # -- models -------------------------------------------------------------------------------------------------

    async def _list(self, exchange: HttpExchange) -> None:
        names = [name for model in self._models() for name in (model, *await self._adapter_models(model))]
        exchange.respond(json_response({"object": "list", "data": [self._model_document(name) for name in names]}))

    async def _show(self, exchange: HttpExchange, name: str) -> None:
        is_known = self._can_serve(name)
        for model, _ in self._split_adapter(name):
            is_known = is_known or (self._can_serve(model) and name in await self._adapter_models(model))
        exchange.respond(
            json_response(self._model_document(name)) if is_known else unknown_model_error(name).response()
        )

    def _models(self) -> list[str]:
        index = self._engine.ready_index()
        found = {(entry.name, model_key(entry.namespace, entry.name)) for entry in index}
        keys = Counter(name for name, _ in found)  # equal names in several namespaces need their full key
        names = sorted(name if keys[name] == 1 else key for name, key in found)
        return [name for name in names if self._can_serve(name)]

    async def _adapter_models(self, model: str) -> list[str]:
        """The names that select a model with one of its adapters."""
        separator = self._settings.lora_separator
        if not separator:
            return []
        try:
            version = self._engine.model_metadata(model).versions[-1]
        except (NaiadError, IndexError):
            return []  # unloaded since the index was read
        return [
            f"{model}{separator}{name}" for name in await asyncio.to_thread(self._settings.adapters, model, version)
        ]

    def _can_serve(self, name: str) -> bool:
        try:
            metadata = self._engine.model_metadata(name)
        except NaiadError:
            return False  # unloaded since the index was read
        return can_generate_text(metadata) or can_embed(metadata)

    def _model_document(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "naiad"}

    async def _load_or_unload(self, exchange: HttpExchange, name: str, action: str) -> None:
        try:
            if action == "load":
                await self._engine.load(name, {})
                exchange.respond(json_response(self._model_document(name)))
            else:
                await self._engine.unload(name)
                exchange.respond(json_response({"status": "success", "model": name}))
        except NaiadError as problem:
            exchange.respond(to_api_error(problem, name).response())

    def _run_later(self, exchange: HttpExchange, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception:
                logger.exception("cannot handle %r", exchange.request.path)
                exchange.respond(_INTERNAL.response())

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- text and vectors ---------------------------------------------------------------------------------------

    def _generate(
        self, exchange: HttpExchange, read_request: Callable[[dict[str, Any], int | None], TextRequest]
    ) -> None:
        settings = self._settings
        request = read_request(parse_body(exchange.request.body, settings.max_json), settings.default_tokens)
        metadata, lora = self._find_model(request.model)
        inferences = list(infer_requests(request, metadata, settings.chat_template, lora))
        response = TextResponse(exchange, request, self._engine.cancel)
        for number, inference in enumerate(inferences):
            sent = SentCount(self._engine.confirm_sent)
            try:
                ticket = self._submit(exchange, inference, PromptSink(response, number, sent))
            except NaiadError as problem:
                response.fail(to_api_error(problem, request.model))
                return
            except Exception:  # handled here: earlier prompts are running, so `response` owns the exchange
                logger.exception("cannot submit a request to model '%s'", request.model)
                response.fail(_INTERNAL)
                return
            response.on_submitted(ticket)
            sent.set_ticket(ticket)
            if response.is_over:  # an earlier prompt has failed already
                return

    def _embed(self, exchange: HttpExchange) -> None:
        given = read_embedding_request(parse_body(exchange.request.body, self._settings.max_json))
        metadata, _ = self._find_model(given["model"])
        inference = infer_request(given, metadata)
        sent = SentCount(self._engine.confirm_sent)
        sink = EmbeddingSink(exchange, given, sent.add)
        try:
            ticket = self._submit(exchange, inference, sink)
        except NaiadError as problem:
            raise to_api_error(problem, given["model"]) from problem
        exchange.on_disconnect(ticket)
        sent.set_ticket(ticket)

    def _submit(self, exchange: HttpExchange, inference: InferRequest, sink: Sink) -> int:
        if self._tracer.is_on:
            return self._tracer.submit(self._engine, inference, sink, "HTTP", trace_headers(exchange.request.headers))
        return self._engine.submit(inference, sink)

    def _find_model(self, name: str) -> tuple[ModelMetadata, str]:
        """The model that *name* selects, and the name of its adapter or ""."""
        try:
            return self._engine.model_metadata(name), ""
        except NaiadError as problem:
            first = problem
        for model, adapter in self._split_adapter(name):
            with contextlib.suppress(NaiadError):
                return self._engine.model_metadata(model), adapter
        raise to_api_error(first, name) from first

    def _split_adapter(self, name: str) -> Iterator[tuple[str, str]]:
        """All splits of *name* into model and adapter, the longest model first: either may contain the separator."""
        separator = self._settings.lora_separator
        end = len(name)
        while separator and (end := name.rfind(separator, 0, end)) >= 0:
            model, adapter = name[:end], name[end + len(separator) :]
            if model and adapter:
                yield model, adapter


def _expect(method: str, expected: str) -> None:
    if method != expected and (method, expected) != ("HEAD", "GET"):
        raise ApiError(f"Not allowed to {method} here; use {expected}", status=NOT_ALLOWED, code="method_not_allowed")
