"""The API on an engine without workers, whose model answers as each test says."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from fakes.engine import FakeEngine, FakeModel
from fakes.serving import LoopThread
from fakes.submitted import Submitted

from naiad.core.errors import ModelError
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.page_guard import PageRules
from naiad.frontends.offload.background import Background
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor, Sink
from naiad.protocol.metadata import TensorMetadata
from naiad_llm.api import OpenAiApi, OpenAiSettings

Send = Callable[[FakeEngine, InferRequest, Sink], None]
_INPUTS = ("text_input", "messages", "sampling_parameters", "embedding_request", "rerank_request")


class Got(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """A client of it."""

    def __init__(self, loop: LoopThread, engine: FakeEngine, port: int) -> None:
        self.loop = loop
        self.engine = engine
        self.port = port

    def request(self, method: str, path: str, body: str = "", **headers: str) -> Got:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())

    def ask(self, path: str, **document: object) -> Got:
        return self.request("POST", f"/v1/{path}", json.dumps({"model": "fake", **document}))


class _Engine(FakeEngine):
    """Lets requests to `fake` leave out any input, as such models do."""

    def submit(self, request: InferRequest, sink: Sink) -> Submitted:
        if request.model_name != "fake":
            return super().submit(request, sink)
        return self.take(self.models["fake"], request, sink)


@contextmanager
def served(send: Send, more: Sequence[str] = (), budget: RequestBudget | None = None, **settings: Any) -> Iterator[Api]:
    """The API, whose model `fake` answers by *send*; it has *more* string inputs than usual."""
    inputs = tuple(TensorMetadata(name=name, datatype="BYTES", shape=(1,)) for name in (*_INPUTS, *more))
    outputs = (TensorMetadata(name="text_output", datatype="BYTES", shape=(-1,)),)
    engine = _Engine()
    engine.models["fake"] = FakeModel("fake", send, inputs, outputs, decoupled=True)
    with LoopThread() as loop:
        background = Background()
        given = OpenAiSettings(**settings)
        api = OpenAiApi(engine, Tracer(), given, background, budget=budget)
        pages = PageRules(openai_origins=given.origins)
        memory = RequestMemory(loop=loop.loop)
        memory.budget = budget or memory.budget
        listener = HttpListener(api.handle, address="127.0.0.1", port=0, advice="", pages=pages, memory=memory)
        port = loop.run(listener.start())
        try:
            yield Api(loop, engine, port)
        finally:
            loop.run(listener.stop(0))
            loop.run(background.close())


def said(*texts: str, error: str = "", **outputs: Sequence[str]) -> InferResponse:
    """A response of a model that says *texts*."""
    if error:
        return InferResponse("fake", 1, error=ModelError(error))
    named = {"text_output": texts, **outputs}
    tensors = [
        OutputTensor(name, Datatype.BYTES, (len(values),), b"".join(map(_element, values)))
        for name, values in named.items()
    ]
    return InferResponse("fake", 1, "", tensors)


def _element(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")  # a model may write any bytes
    return len(data).to_bytes(4, "little") + data


def given(request: InferRequest, name: str = "text_input") -> str:
    """What a request has in its only string of that name."""
    return next(bytes(tensor.data)[4:].decode() for tensor in request.inputs if tensor.name == name)
