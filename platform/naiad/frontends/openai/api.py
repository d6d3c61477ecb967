"""The endpoints under `/v1`: what each answers, and who may ask."""

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

from naiad.config.server.restrictions import Api, Restrictions
from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError
from naiad.frontends.access import is_same
from naiad.frontends.http1.heads import propagated
from naiad.frontends.http1.messages import INTERNAL_ERROR, Exchange, json_response, response
from naiad.frontends.http1.sse import SentCount
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.openai import fields
from naiad.frontends.openai.answers import Answer, PromptSink, StreamedAnswer, WholeAnswer
from naiad.frontends.openai.cors import CorsExchange, allowed_lines, is_preflight, preflight
from naiad.frontends.openai.embeddings import EmbeddingSink, embedding_request, read_embedding
from naiad.frontends.openai.errors import (
    FORBIDDEN,
    NOT_ALLOWED,
    NOT_FOUND,
    SERVER_ERROR,
    UNAUTHORIZED,
    UNAVAILABLE,
    ApiError,
    of,
    unknown_model,
)
from naiad.frontends.openai.questions import Question, read_chat, read_completion
from naiad.frontends.openai.template import ChatTemplate
from naiad.frontends.openai.tensors import makes_vectors, requests_for, writes_text
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.model_names import model_key

logger = logging.getLogger("naiad.openai")

PREFIX = b"/v1/"
_HEALTH = ("/health", "/health/ready")
"""Where vLLM's server and Triton's frontend say whether they are well; asked without a key."""
_INTERNAL = ApiError(INTERNAL_ERROR, status=SERVER_ERROR)
_BASE = "/v1"
_MODELS = f"{_BASE}/models"
_MODEL = re.compile(r"/v1/models/([^/]+)(?:/(load|unload))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiSettings:
    """How the API is served.

    Attributes:
        keys: Keys of which a client has to show one; none: anyone may ask.
        default_tokens: Tokens of an answer whose request does not say; None for 16 in completions, and as many as the
            context holds in chats.
        lora_separator: What stands between a model's name and that of its adapter; "" for no such names.
        max_json: Longest request in bytes.
        chat_template: Makes prompts of conversations for models that take none.
        restrictions: Headers that parts of the protocol need, as on KServe's paths.
        origins: Origins whose pages in browsers may ask; `*` for any.
        adapters: Names of the adapters of a model's version; may read files. Asked where there is a separator.
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
    """Answers OpenAI's requests by asking the engine for text."""

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
        self._posts: dict[str, Callable[[Exchange], None]] = {
            "/v1/chat/completions": lambda exchange: self._write(exchange, read_chat),
            "/v1/completions": lambda exchange: self._write(exchange, read_completion),
            "/v1/embeddings": self._embed,
        }

    def handle_further(self, exchange: Exchange) -> bool:
        """Answer one request on a port that serves other paths as well; False if it is for none of these."""
        if not exchange.request.path.startswith(PREFIX):
            return False
        self._handle(exchange)
        return True

    def handle(self, exchange: Exchange) -> None:
        """Answer one request on a port of this API's own, now or later."""
        log_request(logger, exchange.request)
        self._handle(exchange)

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.request.path.decode("latin-1").rstrip("/")
        lines = allowed_lines(exchange.request, self._settings.origins)
        if lines:
            exchange = CorsExchange(exchange, lines)
        try:
            if path in _HEALTH:
                _expect(exchange.request.method, "GET")
                self._later(exchange, self._health(exchange))
            elif lines and is_preflight(exchange.request):  # which browsers send without a key
                exchange.respond(preflight(exchange.request))
            else:
                self._check_key(exchange)
                self._route(exchange, path)
        except ApiError as error:
            exchange.respond(error.response())
        except Exception:
            logger.exception("cannot answer %r", exchange.request.path)
            exchange.respond(_INTERNAL.response())

    def _route(self, exchange: Exchange, path: str) -> None:
        method = exchange.request.method
        found = _MODEL.fullmatch(path)
        if path in self._posts:
            _expect(method, "POST")
            self._check_restriction(exchange, Api.INFERENCE)
            self._posts[path](exchange)
        elif path == _MODELS:
            _expect(method, "GET")
            self._check_restriction(exchange, Api.METADATA)
            self._later(exchange, self._list(exchange))
        elif found is not None and found[2]:
            _expect(method, "POST")
            self._check_restriction(exchange, Api.MODEL_REPOSITORY)
            self._later(exchange, self._control(exchange, unquote(found[1]), found[2]))
        elif found is not None:
            _expect(method, "GET")
            self._check_restriction(exchange, Api.METADATA)
            self._later(exchange, self._show(exchange, unquote(found[1])))
        else:
            hint = self._meant(path)
            raise ApiError(f"Invalid URL ({method} {exchange.request.path.decode('latin-1')}){hint}", status=NOT_FOUND)

    def _meant(self, path: str) -> str:
        """What to say of a path that lacks its beginning, or has another: clients are told a base URL."""
        known = next((one for one in (*self._posts, _MODELS) if path.endswith(one.removeprefix(_BASE))), None)
        return f"; did you mean {known}? A client's base_url ends in {_BASE}, once" if known else ""

    async def _health(self, exchange: Exchange) -> None:
        try:
            is_ready = await self._engine.check_server_ready()
        except NaiadError:
            is_ready = False  # it is exiting
        exchange.respond(response(200 if is_ready else UNAVAILABLE, [], b""))

    def _check_restriction(self, exchange: Exchange, api: Api) -> None:
        guard = self._guards.get(api)
        if guard is not None and not is_same(exchange.request.headers.get(guard[0]), guard[1]):
            raise ApiError(f"This API is restricted, expecting header '{guard[0].decode()}'", status=FORBIDDEN)

    def _check_key(self, exchange: Exchange) -> None:
        if not self._keys:
            return
        given = exchange.request.headers.get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        key = key.strip()
        # Each is compared, and in constant time: how long it takes tells nothing of them.
        if scheme.lower() != b"bearer" or sum(hmac.compare_digest(key, known) for known in self._keys) == 0:
            what = "Incorrect API key provided" if key else "You didn't provide an API key"
            raise ApiError(
                f"{what}; send one that the server was started with as 'Authorization: Bearer KEY'",
                status=UNAUTHORIZED,
                code="invalid_api_key",
            )

    # -- models -------------------------------------------------------------------------------------------------

    async def _list(self, exchange: Exchange) -> None:
        names = [name for model in self._models() for name in (model, *await self._adapted(model))]
        exchange.respond(json_response({"object": "list", "data": [self._model_document(name) for name in names]}))

    async def _show(self, exchange: Exchange, name: str) -> None:
        is_known = self._is_served(name)
        for model, _ in self._divided(name):
            is_known = is_known or (self._is_served(model) and name in await self._adapted(model))
        exchange.respond(json_response(self._model_document(name)) if is_known else unknown_model(name).response())

    def _models(self) -> list[str]:
        index = self._engine.ready_index()
        found = {(entry.name, model_key(entry.namespace, entry.name)) for entry in index}
        keys = Counter(name for name, _ in found)  # of several namespaces, which the name alone does not tell apart
        names = sorted(name if keys[name] == 1 else key for name, key in found)
        return [name for name in names if self._is_served(name)]

    async def _adapted(self, model: str) -> list[str]:
        """The names by which a model is asked for with one of its adapters."""
        separator = self._settings.lora_separator
        if not separator:
            return []
        try:
            version = self._engine.model_metadata(model).versions[-1]
        except (NaiadError, IndexError):
            return []  # unloaded just now
        return [
            f"{model}{separator}{name}" for name in await asyncio.to_thread(self._settings.adapters, model, version)
        ]

    def _is_served(self, name: str) -> bool:
        try:
            metadata = self._engine.model_metadata(name)
        except NaiadError:
            return False  # unloaded just now
        return writes_text(metadata) or makes_vectors(metadata)

    def _model_document(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "naiad"}

    async def _control(self, exchange: Exchange, name: str, action: str) -> None:
        try:
            if action == "load":
                await self._engine.load(name, {})
                exchange.respond(json_response(self._model_document(name)))
            else:
                await self._engine.unload(name)
                exchange.respond(json_response({"status": "success", "model": name}))
        except NaiadError as problem:
            exchange.respond(of(problem, name).response())

    def _later(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception:
                logger.exception("cannot answer %r", exchange.request.path)
                exchange.respond(_INTERNAL.response())

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- text and vectors ---------------------------------------------------------------------------------------

    def _write(self, exchange: Exchange, read: Callable[[dict[str, Any], int | None], Question]) -> None:
        question = read(fields.parse(exchange.request.body, self._settings.max_json), self._settings.default_tokens)
        metadata, lora = self._metadata(question.model)
        inferences = list(requests_for(question, metadata, self._settings.chat_template, lora))
        kind: type[Answer] = StreamedAnswer if question.stream else WholeAnswer
        answer = kind(exchange, question, self._engine.cancel)
        for number, inference in enumerate(inferences):
            taken = SentCount(self._engine.confirm_sent)
            try:
                ticket = self._submit(exchange, inference, PromptSink(answer, number, taken))
            except NaiadError as problem:
                answer.refuse(of(problem, question.model))
                return
            except Exception:  # those before it are under way: only the answer may answer
                logger.exception("cannot ask model '%s'", question.model)
                answer.refuse(_INTERNAL)
                return
            answer.submitted(ticket)
            taken.submitted(ticket)
            if answer.is_over:
                return

    def _embed(self, exchange: Exchange) -> None:
        given = read_embedding(fields.parse(exchange.request.body, self._settings.max_json))
        metadata, _ = self._metadata(given["model"])
        inference = embedding_request(given, metadata)
        taken = SentCount(self._engine.confirm_sent)
        sink = EmbeddingSink(exchange, given, taken.add)
        try:
            ticket = self._submit(exchange, inference, sink)
        except NaiadError as problem:
            raise of(problem, given["model"]) from problem
        exchange.on_disconnect(ticket)
        taken.submitted(ticket)

    def _submit(self, exchange: Exchange, inference: InferRequest, sink: Sink) -> int:
        if self._tracer.is_on:
            return self._tracer.submit(self._engine, inference, sink, "HTTP", propagated(exchange.request.headers))
        return self._engine.submit(inference, sink)

    def _metadata(self, name: str) -> tuple[ModelMetadata, str]:
        """What the model of this name takes, and the adapter that the name asks for."""
        try:
            return self._engine.model_metadata(name), ""
        except NaiadError as problem:
            first = problem
        for model, adapter in self._divided(name):
            with contextlib.suppress(NaiadError):
                return self._engine.model_metadata(model), adapter
        raise of(first, name) from first

    def _divided(self, name: str) -> Iterator[tuple[str, str]]:
        """A name as that of a model and of its adapter, in each way it can be: either may hold the separator itself."""
        separator = self._settings.lora_separator
        end = len(name)
        while separator and (end := name.rfind(separator, 0, end)) >= 0:
            model, adapter = name[:end], name[end + len(separator) :]
            if model and adapter:
                yield model, adapter


def _expect(method: str, expected: str) -> None:
    if method != expected and (method, expected) != ("HEAD", "GET"):
        raise ApiError(f"Not allowed to {method} here; use {expected}", status=NOT_ALLOWED, code="method_not_allowed")
