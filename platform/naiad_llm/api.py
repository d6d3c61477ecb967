"""The endpoints under `/v1`: routing, API keys, restrictions, and the submission of inference requests.

Requests for text and vectors are submitted synchronously and their sinks write the response. The other endpoints
await the engine, so each of them runs in a task.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from naiad.config.server.access import Api, Restrictions
from naiad.core.errors import NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import HttpExchange, json_response, response
from naiad.frontends.http1.server_sent_events import SentCount
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.kserve_http.restricted import api_denial
from naiad.frontends.offload.background import Background
from naiad.frontends.refusals import RefusalLog
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.protocol.inference import Buffer
from naiad_llm.anthropic.endpoint import (
    COUNT_PATH,
    MESSAGES,
    MESSAGES_PATH,
    VERSION_HEADER,
    CountWriter,
    model_document,
    models_document,
)
from naiad_llm.anthropic.errors import error_response as anthropic_error_response
from naiad_llm.anthropic.request import read_count_request
from naiad_llm.mcp.endpoint import PATH as MCP_PATH
from naiad_llm.mcp.endpoint import McpEndpoint
from naiad_llm.mcp.tools import ToolBox
from naiad_llm.openai.completions import completion_writer
from naiad_llm.openai.cors import LinesExchange, allowed_lines, is_preflight, preflight_response
from naiad_llm.openai.embeddings import read_embedding
from naiad_llm.openai.engine_control import read_is_sleeping, read_sleep, read_wake_up
from naiad_llm.openai.engine_paths import (
    FORM_PATHS,
    PATHS,
    PathRequest,
    PathSink,
    has_paths,
    path_infer_request,
    read_form,
    read_json_request,
)
from naiad_llm.openai.errors import (
    FORBIDDEN,
    NOT_FOUND,
    UNAUTHORIZED,
    UNAVAILABLE,
    ApiError,
    to_api_error,
    unknown_model_error,
    wrong_method,
)
from naiad_llm.openai.keys import ApiKeys, presented_key
from naiad_llm.openai.model_inputs import TOKENIZER, ModelRequest, named_model
from naiad_llm.openai.requests import TextRequest, check_size, read_chat, read_completion
from naiad_llm.openai.rerank import read_rerank
from naiad_llm.openai.responses.endpoint import ResponsesApi
from naiad_llm.openai.responses.request import ResponsesRequest, read_input_tokens_request
from naiad_llm.openai.responses.store import STORED_BYTES, ResponseStore, StoredResponses
from naiad_llm.openai.served_models import AdapterNames, ContextLength, ServedModels, no_adapters, unknown_context
from naiad_llm.openai.submission import INTERNAL, BodyReader, ErrorResponse, Submitter, TextProtocol, TextSubmission
from naiad_llm.openai.template import ChatTemplate
from naiad_llm.openai.tokenizer import (
    count_body,
    counting_request,
    input_tokens_body,
    read_detokenize,
    read_info,
    read_tokenize,
)

logger = logging.getLogger("naiad.openai")

PREFIX = b"/v1/"
_LIVE = ("/health", "/ping")
"""Whether the server has loaded its models and runs, as vLLM's and SageMaker's servers say it; no API key is needed."""
_READY = "/health/ready"  # whether the server is ready, as Triton's OpenAI frontend says it; no API key is needed
_VERSION = "/version"
_REQUEST_ID = re.compile(rb"[!-~]{1,200}")
_BASE = "/v1"
_MODELS = f"{_BASE}/models"
_SLEEP, _WAKE_UP = "/sleep", "/wake_up"
_MODEL = re.compile(r"/v1/models/([^/]+)(?:/(load|unload))?")
_RESPONSE = re.compile(r"/v1/responses/([^/]+)(/input_items|/cancel)?")
_RESPONSES = "/v1/responses"
_INPUT_TOKENS = f"{_RESPONSES}/input_tokens"
_Handler = Callable[[HttpExchange], None]
_CHATS = TextProtocol(read=read_chat, begin=lambda exchange, request: (request, completion_writer(exchange, request)))
_COMPLETIONS = TextProtocol(
    read=read_completion, begin=lambda exchange, request: (request, completion_writer(exchange, request))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiSettings:
    """Settings of the API."""

    # API keys; each request must present one of them. Without keys and a file, all requests are accepted.
    keys: tuple[str, ...] = ()
    key_file: Path | None = None  # file with more keys, which is read again when it changes; None for no file
    # `max_tokens` of a request that sets none; None for 16 in completions and the rest of the context in chats.
    default_tokens: int | None = None
    # Separates the name of a model from that of an adapter (`MODEL<separator>ADAPTER`); "" to support no adapters.
    lora_separator: str = ""
    max_json: int = 64 << 20
    # Renders chats as prompts for models without the input `messages`; None to reject such chats.
    chat_template: ChatTemplate | None = None
    restrictions: Restrictions = field(default_factory=dict)
    origins: tuple[str, ...] = ()  # origins whose pages may call the API from a browser; `*` for any
    # Finds the adapter names of a model's version. Called only with a separator set.
    adapters: AdapterNames = no_adapters
    context: ContextLength = unknown_context  # finds the number of tokens that a model's version takes; 0 if unknown
    stored_responses: int = 1000  # how many responses of `/v1/responses` are kept; 0 to keep none
    stored_bytes: int = STORED_BYTES
    store: StoredResponses | None = None  # where they are kept; None for a store of this API's own, with these bounds
    mcp: bool = False
    mcp_models: tuple[str, ...] = ()  # the models that are tools; empty for all
    # Makes the response to `GET /metrics`; None to serve none here.
    metrics: Callable[[], Awaitable[list[Buffer]]] | None = None
    # When the models were created, as far as clients are told: seconds since 1970.
    created: int = field(default_factory=lambda: int(time.time()))


class OpenAiApi:
    """Handles requests of OpenAI's API."""

    def __init__(
        self,
        engine: EngineFacade,
        tracer: RequestTracer,
        settings: OpenAiSettings,
        background: Background | None = None,
        refusals: RefusalLog | None = None,
        budget: RequestBudget | None = None,
    ) -> None:
        """An API without requests; the caller closes *background*."""
        self._engine = engine
        self._refusals = refusals or RefusalLog()
        self._settings = settings
        self._keys = ApiKeys(settings.keys, settings.key_file)
        self._models = ServedModels(engine, settings.lora_separator, settings.adapters, settings.context)
        background = background or Background()
        self._bodies = BodyReader(background, settings.max_json)
        self._submitter = Submitter(engine, tracer, background)
        self._texts = TextSubmission(
            self._submitter,
            self._models,
            self._bodies,
            budget or RequestBudget(),
            settings.default_tokens,
            settings.chat_template,
        )
        store = settings.store or ResponseStore(settings.stored_responses, settings.stored_bytes)
        self._responses = ResponsesApi(store, settings.stored_bytes, self._keys.owner)
        self._guards = {
            api: (header.lower().encode(), value.encode()) for api, (header, value) in settings.restrictions.items()
        }
        self._created = settings.created
        self._tasks: set[asyncio.Task[None]] = set()
        self._posts: dict[str, _Handler] = {
            "/v1/chat/completions": lambda exchange: self._texts.handle(exchange, _CHATS),
            "/v1/completions": lambda exchange: self._texts.handle(exchange, _COMPLETIONS),
            _INPUT_TOKENS: self._count_input_tokens,
            _RESPONSES: lambda exchange: self._texts.handle(exchange, self._responses.protocol),
            MESSAGES_PATH: lambda exchange: self._texts.handle(exchange, MESSAGES),
            COUNT_PATH: self._count_tokens,
            "/v1/embeddings": self._single(read_embedding, uncounted="input"),
            "/v1/rerank": self._single(read_rerank),
            "/rerank": self._single(read_rerank),
            **dict.fromkeys(
                PATHS,
                lambda exchange: self._bodies.read(exchange, read_json_request, partial(self._submit_path, exchange)),
            ),
            **dict.fromkeys(FORM_PATHS, self._read_form),
            "/tokenize": self._single(read_tokenize),
            "/detokenize": self._single(read_detokenize),
            _SLEEP: lambda exchange: self._submit_single(exchange, read_sleep(exchange.request.query)),
            _WAKE_UP: lambda exchange: self._submit_single(exchange, read_wake_up(exchange.request.query)),
        }
        if settings.mcp:
            tools = ToolBox(engine, settings.mcp_models)
            mcp = McpEndpoint(tools, engine.server_metadata, self._submitter.submit, settings.origins)
            self._posts[MCP_PATH] = mcp.handle
        self._gets: dict[str, tuple[Api, _Handler]] = {
            _MODELS: (Api.METADATA, lambda exchange: self._run_later(exchange, self._list(exchange))),
            "/tokenizer_info": (
                Api.METADATA,
                lambda exchange: self._submit_single(exchange, read_info(exchange.request.query)),
            ),
            "/is_sleeping": (
                Api.METADATA,
                lambda exchange: self._submit_single(exchange, read_is_sleeping(exchange.request.query)),
            ),
        }
        metrics = settings.metrics
        if metrics is not None:
            self._gets["/metrics"] = (
                Api.STATISTICS,
                lambda exchange: self._run_later(exchange, _respond_later(exchange, metrics())),
            )

    def admit(self, head: Head) -> bool:
        """Whether a request below `/v1` is read to its end: only some paths have a body, and keys come first."""
        path = head.path.decode("latin-1").rstrip("/")
        if head.method != "POST" or not (path in self._posts or _MODEL.fullmatch(path)):
            return False
        try:
            self._check_key(head.headers)
            self._check_restriction(head.headers, self._group_of(path))
        except ApiError:
            return False
        return True

    def _group_of(self, path: str) -> Api:
        return Api.INFERENCE if path in self._posts and path not in {_SLEEP, _WAKE_UP} else Api.MODEL_REPOSITORY

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request on a port shared with other APIs; return False if its path is not this API's."""
        path = exchange.request.path.decode("latin-1").rstrip("/")
        is_below = exchange.request.path.startswith(PREFIX)
        if not is_below and path not in self._posts and path not in self._gets:
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
        exchange = LinesExchange(exchange, lines + _request_id_line(exchange.request.headers))
        try:
            if path in _LIVE:
                _expect(exchange.request.method, "GET", *(("POST",) if path == "/ping" else ()))
                is_live = self._engine.is_started() and self._engine.is_live()
                exchange.respond(response(200 if is_live else UNAVAILABLE, [], b""))
            elif path == _READY:
                _expect(exchange.request.method, "GET")
                self._run_later(exchange, self._health(exchange))
            elif path == _VERSION:
                _expect(exchange.request.method, "GET")
                exchange.respond(json_response({"version": self._engine.server_metadata().version}))
            elif lines and is_preflight(exchange.request):  # before the key: browsers send no Authorization with it
                exchange.respond(preflight_response(exchange.request))
            else:
                self._check_key(exchange.request.headers)
                self._route(exchange, path)
        except ApiError as error:
            if error.wrong_secret:
                self._refusals.add_wrong_secret(error.wrong_secret, exchange.client_address)
            exchange.respond(_error_response(exchange, path, error))
        except Exception:
            logger.exception("cannot handle %r", exchange.request.path)
            exchange.respond(_error_response(exchange, path, INTERNAL))

    def _route(self, exchange: HttpExchange, path: str) -> None:
        method = exchange.request.method
        found = _MODEL.fullmatch(path)
        if path in self._posts:
            _expect(method, "POST")
            self._check_restriction(exchange.request.headers, self._group_of(path))
            self._posts[path](exchange)
        elif path in self._gets:
            _expect(method, "GET")
            group, show = self._gets[path]
            self._check_restriction(exchange.request.headers, group)
            show(exchange)
        elif (stored := _RESPONSE.fullmatch(path)) is not None:
            self._check_restriction(exchange.request.headers, Api.INFERENCE)
            self._responses.handle(exchange, stored[1], stored[2] or "")
        elif found is not None and found[2]:
            _expect(method, "POST")
            self._check_restriction(exchange.request.headers, Api.MODEL_REPOSITORY)
            self._run_later(exchange, self._load_or_unload(exchange, unquote(found[1]), found[2]))
        elif found is not None:
            _expect(method, "GET")
            self._check_restriction(exchange.request.headers, Api.METADATA)
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

    def _check_restriction(self, headers: Mapping[bytes, bytes], api: Api) -> None:
        guard = self._guards.get(api)
        denial = "" if guard is None else api_denial(headers, *guard)
        if denial:
            header = "" if guard is None else guard[0].decode()
            wrong = f"header '{header}'" if header.encode() in headers else ""
            raise ApiError(denial, status=FORBIDDEN, wrong_secret=wrong)

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._keys.is_required:
            return
        key = presented_key(headers)
        if not self._keys.accepts(key):
            what = "Incorrect API key provided" if key else "You didn't provide an API key"
            raise ApiError(
                f"{what}; send one of the server's keys in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                status=UNAUTHORIZED,
                code="invalid_api_key",
                wrong_secret="the API key" if key else "",
            )

    # -- models -------------------------------------------------------------------------------------------------

    async def _list(self, exchange: HttpExchange) -> None:
        names = await self._models.names()
        if VERSION_HEADER in exchange.request.headers:
            exchange.respond(json_response(models_document(names, self._created)))
            return
        documents = [await self._model_document(name) for name in names]
        exchange.respond(json_response({"object": "list", "data": documents}))

    async def _show(self, exchange: HttpExchange, name: str) -> None:
        if not await self._models.is_known(name):
            exchange.respond(_error_response(exchange, _MODELS, unknown_model_error(name)))
        elif VERSION_HEADER in exchange.request.headers:
            exchange.respond(json_response(model_document(name, self._created)))
        else:
            exchange.respond(json_response(await self._model_document(name)))

    async def _model_document(self, name: str) -> dict[str, Any]:
        document = {"id": name, "object": "model", "created": self._created, "owned_by": "naiad"}
        length = await self._models.context_length(name)
        # vLLM's name, and the one that OpenRouter and clients of it use.
        return {**document, "max_model_len": length, "context_length": length} if length else document

    async def _load_or_unload(self, exchange: HttpExchange, name: str, action: str) -> None:
        try:
            if action == "load":
                await self._engine.load(name, {})
                exchange.respond(json_response(await self._model_document(name)))
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
                exchange.respond(INTERNAL.response())

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- paths of engines ---------------------------------------------------------------------------------------

    def _read_form(self, exchange: HttpExchange) -> None:
        check_size(exchange.request.body, self._settings.max_json)
        self._submit_path(exchange, read_form(exchange.request))

    def _submit_path(self, exchange: HttpExchange, request: PathRequest) -> None:
        path = exchange.request.path.decode("latin-1").rstrip("/")
        model = request.model or named_model(exchange.request.query)
        model = model or self._models.only(has_paths, f"serve {path}", status=NOT_FOUND)
        metadata, _ = self._models.find(model)
        sent = SentCount()
        inference = path_infer_request(path, request, metadata)
        self._submitter.submit_one(exchange, inference, model, PathSink(exchange, model, sent), sent)

    # -- vectors, scores, tokens --------------------------------------------------------------------------------

    def _single(self, read: Callable[[dict[str, Any]], ModelRequest], uncounted: str = "") -> _Handler:
        """Handles requests that *read* reads; of long ones, the values in the field *uncounted* are not limited."""
        return lambda exchange: self._bodies.read(
            exchange, read, partial(self._submit_single, exchange), uncounted=uncounted
        )

    def _submit_single(
        self, exchange: HttpExchange, request: ModelRequest, error_response: ErrorResponse = ApiError.response
    ) -> None:
        """Submit a request to the model that it names, or to the only one that has the input."""
        to = request.to
        model = request.model or self._models.only(to.is_in, to.ability)
        metadata, _ = self._models.find(model)
        inference = to.infer_request(request.document, metadata)
        self._submitter.submit_single(exchange, inference, model, request.make_body, error_response)

    def _count_input_tokens(self, exchange: HttpExchange) -> None:
        def submit(request: ResponsesRequest) -> None:
            text = self._responses.text_of(exchange, request)
            self._submit_single(exchange, counting_request(text.model, str(text.prompts[0]), input_tokens_body))

        self._bodies.read(exchange, read_input_tokens_request, submit)

    def _count_tokens(self, exchange: HttpExchange) -> None:
        """Count the tokens of a conversation by the model's tokenizer; a model without one reads the whole prompt."""

        def submit(request: TextRequest) -> None:
            metadata, _ = self._models.find(request.model)
            if not TOKENIZER.is_in(metadata):
                self._texts.submit(exchange, request, CountWriter(exchange))
                return
            counting = counting_request(request.model, str(request.prompts[0]), count_body)
            self._submit_single(exchange, counting, anthropic_error_response)

        self._bodies.read(exchange, read_count_request, submit, anthropic_error_response)


async def _respond_later(exchange: HttpExchange, making: Awaitable[list[Buffer]]) -> None:
    exchange.respond(await making)


def _error_response(exchange: HttpExchange, path: str, error: ApiError) -> list[Buffer]:
    is_anthropic = path in {MESSAGES_PATH, COUNT_PATH} or VERSION_HEADER in exchange.request.headers
    return anthropic_error_response(error) if is_anthropic else error.response()


def _request_id_line(headers: Mapping[bytes, bytes]) -> bytes:
    """The header line with the id of a request: that of the client, if it is one, else a new one."""
    given = headers.get(b"x-request-id", b"")
    return b"x-request-id: %s\r\n" % (given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}".encode())


def _expect(method: str, *expected: str) -> None:
    """Refuse other methods than these; HEAD is as good as GET."""
    if method not in expected and (method != "HEAD" or "GET" not in expected):
        raise wrong_method(method, expected[0])
