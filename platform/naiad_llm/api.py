"""The endpoints under `/v1`: routing, API keys, restrictions, and the submission of inference requests.

Requests for text and vectors are submitted synchronously and their sinks write the response. The other endpoints
await the engine, so each of them runs in a task.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from naiad.config.server.access import Api, Restrictions
from naiad.core.errors import NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.later_responses import LaterResponses
from naiad.frontends.http1.messages import HttpExchange, json_response, response
from naiad.frontends.http1.server_sent_events import SentCount
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.kserve_http.restricted import guards_of, http_denial
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
    CountForm,
    model_document,
    models_document,
)
from naiad_llm.anthropic.errors import error_response as anthropic_error_response
from naiad_llm.anthropic.request import read_count_request
from naiad_llm.mcp.endpoint import PATH as MCP_PATH
from naiad_llm.mcp.endpoint import McpEndpoint
from naiad_llm.mcp.tools import ToolBox
from naiad_llm.openai.completions import CompletionForm
from naiad_llm.openai.cors import allowed_lines, is_preflight, preflight_response
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
    ErrorResponse,
    to_api_error,
    unknown_model_error,
    wrong_method,
)
from naiad_llm.openai.keys import ApiKeys, presented_key
from naiad_llm.openai.model_inputs import TOKENIZER, ModelRequest, named_model
from naiad_llm.openai.requests import TextRequest, check_size, read_chat, read_completion
from naiad_llm.openai.rerank import read_rerank
from naiad_llm.openai.responses.endpoint import ResponsesApi
from naiad_llm.openai.responses.request import ResponsesRequest, read_response_request
from naiad_llm.openai.responses.store import STORED_BYTES, ResponseStore, StoredResponses
from naiad_llm.openai.served_models import AdapterNames, ContextLength, ServedModels, no_adapters, unknown_context
from naiad_llm.openai.submission import INTERNAL, BodyReader, Submitter, TextProtocol, TextSubmission
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
_REQUEST_ID = re.compile(rb"[!-~]{1,200}")
_BASE = "/v1"
_MODELS = f"{_BASE}/models"
_MODEL = re.compile(r"/v1/models/([^/]+)(?:/(load|unload))?")
_RESPONSE = re.compile(r"/v1/responses/([^/]+)(/input_items|/cancel)?")
_RESPONSES = "/v1/responses"
_INPUT_TOKENS = f"{_RESPONSES}/input_tokens"
Handler: TypeAlias = Callable[[HttpExchange], None]
_CHATS = TextProtocol(read=read_chat, begin=lambda _, request: (request, CompletionForm(request)))
_COMPLETIONS = TextProtocol(read=read_completion, begin=lambda _, request: (request, CompletionForm(request)))


class _Route(NamedTuple):
    """What handles requests to a path."""

    methods: tuple[str, ...]  # empty if it decides itself; HEAD is as good as GET
    api: Api  # by which it may be restricted
    handle: Handler


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
        self._guards = guards_of(settings.restrictions)
        self._created = settings.created
        self._later = LaterResponses(_fail)
        # Paths without an API key: of vLLM's and SageMaker's servers, and of Triton's OpenAI frontend.
        self._open: dict[str, tuple[tuple[str, ...], Handler]] = {
            "/health": (("GET",), self._show_live),
            "/ping": (("GET", "POST"), self._show_live),
            "/health/ready": (("GET",), self._awaited(lambda _: self._health())),
            "/version": (("GET",), self._show_version),
        }
        posts: dict[str, Handler] = {
            "/v1/chat/completions": lambda exchange: self._texts.handle(exchange, _CHATS),
            "/v1/completions": lambda exchange: self._texts.handle(exchange, _COMPLETIONS),
            _INPUT_TOKENS: self._count_input_tokens,
            _RESPONSES: lambda exchange: self._texts.handle(exchange, self._responses.protocol),
            MESSAGES_PATH: lambda exchange: self._texts.handle(exchange, MESSAGES),
            COUNT_PATH: self._count_tokens,
            "/v1/embeddings": self._single(read_embedding, uncounted="input"),
            **dict.fromkeys(("/v1/rerank", "/rerank"), self._single(read_rerank)),
            **dict.fromkeys(
                PATHS,
                lambda exchange: self._bodies.read(exchange, read_json_request, partial(self._submit_path, exchange)),
            ),
            **dict.fromkeys(FORM_PATHS, self._read_form),
            "/tokenize": self._single(read_tokenize),
            "/detokenize": self._single(read_detokenize),
        }
        if settings.mcp:
            tools = ToolBox(engine, settings.mcp_models)
            mcp = McpEndpoint(tools, engine.server_metadata, self._submitter.submit, settings.origins)
            posts[MCP_PATH] = mcp.handle
        self._routes = {path: _Route(("POST",), Api.INFERENCE, handle) for path, handle in posts.items()}
        self._routes |= {
            path: _Route((method,), api, self._queried(read))
            for path, method, api, read in (
                ("/sleep", "POST", Api.MODEL_REPOSITORY, read_sleep),
                ("/wake_up", "POST", Api.MODEL_REPOSITORY, read_wake_up),
                ("/is_sleeping", "GET", Api.METADATA, read_is_sleeping),
                ("/tokenizer_info", "GET", Api.METADATA, read_info),
            )
        }
        self._routes[_MODELS] = _Route(("GET",), Api.METADATA, self._awaited(self._list))
        metrics = settings.metrics
        if metrics is not None:
            self._routes["/metrics"] = _Route(("GET",), Api.STATISTICS, self._awaited(lambda _: metrics()))

    def admit(self, head: Head) -> bool:
        """Whether a request below `/v1` is read to its end: only some paths have a body, and keys come first."""
        route = self._find(head.path.decode("latin-1").rstrip("/"))
        if head.method != "POST" or route is None or "POST" not in route.methods:
            return False
        try:
            self._check_key(head.headers)
            self._check_restriction(head.headers, route.api)
        except ApiError:
            return False
        return True

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Handle a request on a port shared with other APIs; return False if its path is not this API's."""
        path = exchange.request.path.decode("latin-1").rstrip("/")
        if not exchange.request.path.startswith(PREFIX) and path not in self._routes:
            return False
        self._handle(exchange)
        return True

    def handle(self, exchange: HttpExchange) -> None:
        """Handle a request on this API's own port; the response may follow later."""
        log_request(logger, exchange.request)
        self._handle(exchange)

    def _handle(self, exchange: HttpExchange) -> None:
        request = exchange.request
        path = request.path.decode("latin-1").rstrip("/")
        lines = allowed_lines(request, self._settings.origins)
        request.response_lines = lines + _request_id_line(request.headers)
        try:
            if path in self._open:
                methods, show = self._open[path]
                _expect(request.method, methods)
                show(exchange)
            elif lines and is_preflight(request):  # before the key: browsers send no Authorization with it
                exchange.respond(preflight_response(request))
            else:
                self._check_key(request.headers)
                route = self._find(path)
                if route is None:
                    hint = self._suggest_path(path)
                    shown = request.path.decode("latin-1")
                    raise ApiError(f"Invalid URL ({request.method} {shown}){hint}", status=NOT_FOUND)
                _expect(request.method, route.methods)
                self._check_restriction(request.headers, route.api)
                route.handle(exchange)
        except ApiError as error:
            self._refusals.add_wrong_secret(error.wrong_secret, exchange.client_address)
            exchange.respond(_error_response(exchange, path, error))
        except Exception:
            logger.exception("cannot handle %r", request.path)
            exchange.respond(_error_response(exchange, path, INTERNAL))

    def _find(self, path: str) -> _Route | None:
        if path in self._routes:
            return self._routes[path]
        if model := _MODEL.fullmatch(path):
            name, action = unquote(model[1]), model[2]
            if action:
                change = self._awaited(lambda _: self._load_or_unload(name, action))
                return _Route(("POST",), Api.MODEL_REPOSITORY, change)
            return _Route(("GET",), Api.METADATA, self._awaited(partial(self._show, name)))
        if stored := _RESPONSE.fullmatch(path):
            handle = partial(self._responses.handle, response_id=stored[1], part=stored[2] or "")
            return _Route((), Api.INFERENCE, handle)
        return None

    def _suggest_path(self, path: str) -> str:
        """A hint for an unknown path that ends like a known one, usually due to a wrong `base_url` of the client."""
        known = (one for one, route in self._routes.items() if "POST" in route.methods or one == _MODELS)
        found = next((one for one in known if path.endswith(one.removeprefix(_BASE))), None)
        return f"; did you mean {found}? A client's base_url must end in {_BASE}, once" if found else ""

    def _awaited(self, make: Callable[[HttpExchange], Awaitable[list[Buffer]]]) -> Handler:
        return lambda exchange: self._later.respond(exchange, make(exchange))

    def _show_version(self, exchange: HttpExchange) -> None:
        exchange.respond(json_response({"version": self._engine.server_metadata().version}))

    def _show_live(self, exchange: HttpExchange) -> None:
        is_live = self._engine.is_started() and self._engine.is_live()
        exchange.respond(response(200 if is_live else UNAVAILABLE, [], b""))

    async def _health(self) -> list[Buffer]:
        try:
            is_ready = await self._engine.check_server_ready()
        except NaiadError:
            is_ready = False  # the server is shutting down
        return response(200 if is_ready else UNAVAILABLE, [], b"")

    def _check_restriction(self, headers: Mapping[bytes, bytes], api: Api) -> None:
        denial = http_denial(self._guards.get(api), headers)
        if denial is not None:
            raise ApiError(denial.text, status=FORBIDDEN, wrong_secret=denial.wrong_secret)

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

    async def _list(self, exchange: HttpExchange) -> list[Buffer]:
        names = await self._models.names()
        if VERSION_HEADER in exchange.request.headers:
            return json_response(models_document(names, self._created))
        documents = [await self._model_document(name) for name in names]
        return json_response({"object": "list", "data": documents})

    async def _show(self, name: str, exchange: HttpExchange) -> list[Buffer]:
        if not await self._models.is_known(name):
            return _error_response(exchange, _MODELS, unknown_model_error(name))
        if VERSION_HEADER in exchange.request.headers:
            return json_response(model_document(name, self._created))
        return json_response(await self._model_document(name))

    async def _model_document(self, name: str) -> dict[str, Any]:
        document = {"id": name, "object": "model", "created": self._created, "owned_by": "naiad"}
        length = await self._models.context_length(name)
        # vLLM's name, and the one that OpenRouter and clients of it use.
        return {**document, "max_model_len": length, "context_length": length} if length else document

    async def _load_or_unload(self, name: str, action: str) -> list[Buffer]:
        try:
            if action == "load":
                await self._engine.load(name, {})
                return json_response(await self._model_document(name))
            await self._engine.unload(name)
            return json_response({"status": "success", "model": name})
        except NaiadError as problem:
            return to_api_error(problem, name).response()

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

    def _queried(self, read: Callable[[bytes], ModelRequest]) -> Handler:
        """Handles requests that *read* reads from their query."""
        return lambda exchange: self._submit_single(exchange, read(exchange.request.query))

    def _single(self, read: Callable[[dict[str, Any]], ModelRequest], uncounted: str = "") -> Handler:
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

        self._bodies.read(exchange, read_response_request, submit)

    def _count_tokens(self, exchange: HttpExchange) -> None:
        """Count the tokens of a conversation by the model's tokenizer; a model without one reads the whole prompt."""

        def submit(request: TextRequest) -> None:
            metadata, _ = self._models.find(request.model)
            if not TOKENIZER.is_in(metadata):
                self._texts.submit(exchange, request, CountForm(), anthropic_error_response)
                return
            counting = counting_request(request.model, str(request.prompts[0]), count_body)
            self._submit_single(exchange, counting, anthropic_error_response)

        self._bodies.read(exchange, read_count_request, submit, anthropic_error_response)


def _fail(exchange: HttpExchange, problem: Exception) -> None:
    logger.error("cannot handle %r", exchange.request.path, exc_info=problem)
    exchange.respond(INTERNAL.response())


def _error_response(exchange: HttpExchange, path: str, error: ApiError) -> list[Buffer]:
    is_anthropic = path in {MESSAGES_PATH, COUNT_PATH} or VERSION_HEADER in exchange.request.headers
    return anthropic_error_response(error) if is_anthropic else error.response()


def _request_id_line(headers: Mapping[bytes, bytes]) -> bytes:
    """The header line with the id of a request: that of the client, if it is one, else a new one."""
    given = headers.get(b"x-request-id", b"")
    return b"x-request-id: %s\r\n" % (given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}".encode())


def _expect(method: str, expected: tuple[str, ...]) -> None:
    """Refuse other methods than these, if there are any; HEAD is as good as GET."""
    if expected and method not in expected and (method != "HEAD" or "GET" not in expected):
        raise wrong_method(method, expected[0])
