"""Each endpoint without a socket: an exchange of the test goes in, and what the engine is asked for and the response are checked."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from fakes.clock import turns
from fakes.engine import FakeEngine
from support.waiting import until_async

from naiad.config.server.access import Api
from naiad.core.errors import InvalidRequestError, NaiadError, NotReadyError
from naiad.frontends.access import Access
from naiad.frontends.decompression import SHORT_INPUT
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.body_decompression import BodyDecompression
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import HttpRequest
from naiad.frontends.kserve_http.endpoints import Endpoints
from naiad.frontends.kserve_http.load_header import load_header
from naiad.frontends.kserve_http.long_requests import LONG_JSON
from naiad.frontends.regions import CudaRegion
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.device_bytes import Exporter
from naiad.protocol.model_metrics import ModelMetricFamily


class Exchange:
    """A request, and the response that it gets."""

    client_address, server_address, is_blocked = "10.0.0.1", "10.0.0.2", False

    def __init__(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.request = HttpRequest(method, path.encode(), given, body, keep_alive=True)
        self.is_connected = True
        self.responses: list[bytes] = []
        self.submitted: list[Any] = []
        self.resume: Callable[[], None] = lambda: None
        self.charges: list[Any] = []

    def respond(self, parts: list[bytes]) -> None:
        self.responses.append(b"".join(parts))

    def on_resume(self, resume: Callable[[], None]) -> None:
        self.resume = resume

    def on_disconnect(self, submitted: Any) -> None:
        self.submitted.append(submitted)

    def replace_body(self, body: Any, charge: Any) -> None:
        self.request.body = body
        self.charges.append(charge)

    def leave(self) -> None:
        """The client disconnects."""
        self.is_connected = False
        self.resume()

    @property
    def status(self) -> int:
        (whole,) = self.responses
        return int(whole.split()[1])

    @property
    def head(self) -> bytes:
        return self.responses[0].partition(b"\r\n\r\n")[0]

    @property
    def body(self) -> Any:
        """The body, as JSON if it is that."""
        text = self.responses[0].partition(b"\r\n\r\n")[2]
        return json.loads(text) if text[:1] in {b"{", b"["} else text


class Regions:
    """Regions of clients, which keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def check_allowed(self) -> None:
        self.told.append(("check",))

    async def register(self, *what: Any) -> None:
        self.told.append(("register", *what))

    async def register_cuda(self, *what: Any) -> None:
        self.told.append(("register cuda", *what))

    async def unregister(self, name: str, *, is_cuda: bool) -> None:
        self.told.append(("unregister", name, is_cuda))

    def status(self, name: str) -> list[Any]:
        self.told.append(("status", name))
        return [type("Region", (), {"name": "r", "key": "/k", "offset": 1, "byte_size": 2})]

    def cuda_status(self, name: str) -> list[Any]:
        self.told.append(("cuda status", name))
        return [CudaRegion(name="c", device_id=3, byte_size=4, uuid=b"", handle=b"", exporter=Exporter(is_client=True))]


class Tracer:
    """Settings of traces, which keeps what is changed."""

    is_on = False

    def __init__(self) -> None:
        self.changes: list[tuple[str, Any]] = []

    async def change(self, model: str, changes: Any) -> None:
        self.changes.append((model, changes))

    def settings(self, model: str) -> Any:
        return {"of": model}


class Server:
    """The endpoints of an engine without workers."""

    def __init__(self, **access: Any) -> None:
        self.engine = FakeEngine()
        self.regions, self.tracer = Regions(), Tracer()
        self.extensions = Extensions(regions=self.regions, tracer=self.tracer)  # type: ignore[arg-type] # fakes
        self.fallbacks: list[Any] = []
        self.endpoints = Endpoints(
            self.engine,
            self.extensions,
            Access(**access),
            max_json=1 << 20,
            max_body=1 << 22,
            fallback=lambda exchange: bool(self.fallbacks.append(exchange)) or exchange.request.path == b"/known",
            admit_fallback=lambda head: head.path == b"/known",
        )

    def ask(
        self, method: str, path: str, body: Any = b"", then: Callable[[Exchange], None] | None = None, **headers: str
    ) -> Exchange:
        """What a request gets. *then* is called before the loop has its turns."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange = Exchange(method, path, content, **headers)

        async def handle() -> None:
            self.endpoints.handle(exchange)  # type: ignore[arg-type] # a fake
            if then is not None:
                then(exchange)
            await turns(20)
            while self.endpoints._later._tasks:
                await asyncio.sleep(0)

        asyncio.run(handle())
        return exchange


@pytest.fixture
def server() -> Server:
    return Server()


HANDLE = base64.b64encode(bytes(range(64))).decode()
RAW = {"b64": HANDLE}
SYSTEM = {"key": "/k", "byte_size": 5}
CUDA = {"raw_handle": RAW, "byte_size": 5, "device_id": 1}
REPEAT = {
    "name": "repeat",
    "versions": ["1"],
    "platform": "python",
    "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1]}],
    "outputs": ...,
}
LOG_SETTINGS = {
    "log_file": "",
    **dict.fromkeys(("log_info", "log_warning", "log_error"), True),
    "log_verbose_level": 0,
    "log_format": "default",
}
UNKNOWN = "Request for unknown model: {} is not found"
BROKEN = "failed to load 'broken', failed to poll from model repository"
DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
TOO_LONG = f"request body of {LONG_JSON + 1} bytes exceeds the limit of {LONG_JSON} bytes for this path"
LACKS = "Shared memory register request has no '{}' field"
LACKS_MEMBER = "attempt to access non-existing object member '{}'"
NO_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "expected"),
    [
        ("GET", "/v2", b"", 200, {"name": "triton", "version": "2.73.0", "extensions": ...}),
        ("GET", "/v2/health/live", b"", 200, b""),
        ("GET", "/v2/health/ready", b"", 200, b""),
        ("GET", "/v2/models/add_sub/ready", b"", 200, b""),
        ("GET", "/v2/models/add_sub/versions/1/ready", b"", 200, b""),
        ("GET", "/v2/models/not_ready/ready", b"", 400, "Model version not ready"),
        ("GET", "/v2/models/x/ready", b"", 404, UNKNOWN.format("'x'")),
        ("GET", "/v2/models/repeat", b"", 200, REPEAT),
        ("GET", "/v2/models/identity/versions/2", b"", 404, UNKNOWN.format("'identity' version 2")),
        ("GET", "/v2/models/identity/config", b"", 200, {}),
        ("GET", "/v2/models/identity/stats", b"", 200, {"model_stats": ...}),
        ("GET", "/v2/models/x/stats", b"", 400, "requested model 'x' is not available"),
        ("POST", "/v2/repository/index", b"", 200, ...),
        ("POST", "/v2/repository/index", {"ready": 1}, 400, "Invalid value for 'ready': expected a boolean"),
        ("POST", "/v2/repository/r/index", b"", 501, "'repository_name' specification is not supported"),
        ("POST", "/v2/repository/models/broken/load", b"", 500, BROKEN),
        ("GET", "/v2/nowhere", b"", 404, "Not Found"),
        ("DELETE", "/v2", b"", 405, "Method Not Allowed"),
        ("POST", "/v2/models/identity/infer", b"{", 500, ...),
        ("POST", "/v2/models/repeat/infer", b"{}", 501, DECOUPLED),
        ("POST", "/v2/logging", b" " * (LONG_JSON + 1), 400, TOO_LONG),
        ("GET", "/v2/logging", b"", 200, LOG_SETTINGS),
        ("GET", "/v2/trace/setting", b"", 200, {"of": ""}),
        ("GET", "/v2/models/identity/trace/setting", b"", 200, {"of": "identity"}),
        ("GET", "/v2/models/x/trace/setting", b"", ..., ...),
        ("GET", "/v2/systemsharedmemory/status", b"", 200, [{"name": "r", "key": "/k", "offset": 1, "byte_size": 2}]),
        ("GET", "/v2/cudasharedmemory/status", b"", 200, [{"name": "c", "device_id": 3, "byte_size": 4}]),
    ],
)
def test_each_path_has_its_response(server, method, path, body, status, expected):
    found = server.ask(method, path, body)
    if status is not ...:
        assert found.status == status
    if isinstance(expected, str):
        assert found.body == {"error": expected}
    elif isinstance(expected, dict):
        assert found.body.keys() >= expected.keys()
        assert {key: value for key, value in expected.items() if value is not ...}.items() <= found.body.items()
    elif expected is not ...:
        assert found.body == expected
    if method == "GET" and status == 200:
        assert server.ask("HEAD", path).head == found.head


@pytest.mark.parametrize(
    ("kind", "body", "status", "text"),
    [
        ("system", {}, 400, LACKS.format("key")),
        ("system", {"key": "/k"}, 400, LACKS.format("byte_size")),
        ("system", {"key": 7, "byte_size": 4}, 500, "attempt to access JSON non-string as string"),
        ("system", {"key": "/k", "byte_size": "4"}, 500, NOT_UNSIGNED),
        ("system", {"key": "/k", "byte_size": 4, "offset": -1}, 500, NOT_UNSIGNED),
        ("cuda", {"byte_size": 5, "device_id": 1}, 400, LACKS.format("raw_handle")),
        *(("cuda", {**CUDA, "raw_handle": raw}, 500, LACKS_MEMBER.format("b64")) for raw in ({}, "x", 1)),
        *(("cuda", {**CUDA, "raw_handle": {"b64": text}}, 400, NO_HANDLE) for text in ("?", "eA==", HANDLE[4:])),
        ("cuda", {"raw_handle": RAW, "device_id": 0}, 500, LACKS_MEMBER.format("byte_size")),
        ("cuda", {"raw_handle": RAW, "byte_size": 4}, 500, LACKS_MEMBER.format("device_id")),
        ("cuda", {**CUDA, "device_id": -1}, 500, NOT_UNSIGNED),
    ],
)
def test_a_registration_of_a_region_has_its_members(server, kind, body, status, text):
    found = server.ask("POST", f"/v2/{kind}sharedmemory/region/r/register", body)
    assert (found.status, found.body) == (status, {"error": text})


def test_a_server_and_models_that_are_not_ready_say_so_by_their_status(server):
    server.engine.live = server.engine.ready = False
    for path in ("live", "ready"):
        found = server.ask("GET", f"/v2/health/{path}")
        assert (found.status, found.body) == (400, b"")
        assert b"Content-Type: text/plain\r\n" in found.head


def test_a_model_that_is_not_ready_says_where_it_makes_no_progress(server):
    server.engine.stalled = "execute of 'not_ready_0' (pid 7) has made no progress for 2 min"
    found = server.ask("GET", "/v2/models/not_ready/ready")
    assert (found.status, found.body) == (400, {"error": f"Model version not ready: {server.engine.stalled}"})


def test_the_index_has_the_models_that_are_asked_for(server):
    for body, has_all in ((b"", True), ({}, True), ({"ready": False}, True), ({"ready": True}, False)):
        found = server.ask("POST", "/v2/repository/index", body).body
        names = [each["name"] for each in found]
        assert ("never_loaded" in names, "not_ready" in names) == (has_all, has_all)
        assert "identity" in names


def test_statistics_are_those_of_the_model_in_the_path(server):
    assert len(server.ask("GET", "/v2/models/stats").body["model_stats"]) == 2
    (found,) = server.ask("GET", "/v2/models/identity/versions/1/stats").body["model_stats"]
    assert (found["name"], found["inference_count"]) == ("identity", 21)


def test_an_unexpected_error_is_answered_and_logged(server, caplog):
    async def fail(*_: Any) -> bool:
        raise ValueError("odd")

    server.engine.check_server_ready = fail
    found = server.ask("GET", "/v2/health/ready")
    assert (found.status, found.body) == (500, {"error": "internal error; the server's log has the details"})
    assert [each.getMessage() for each in caplog.records] == ["cannot answer GET b'/v2/health/ready'"]


NOT_BASE64 = "cannot read load parameter 'file:x': it is not base64; encode the file's bytes, with padding and without line breaks"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        ({}, {}),
        ({"parameters": {"config": "{}", "file:1/model.py": "YQ=="}}, {"config": "{}", "file:1/model.py": b"a"}),
        ({"parameters": 1}, "attempt to get members for non-object"),
        ({"parameters": {"x": "y"}}, "unexpected error on creating Triton parameter"),
        ({"parameters": {"config": 1}}, "attempt to access JSON non-string as string"),
        ({"parameters": {"file:x": "?"}}, NOT_BASE64),
    ],
)
def test_the_parameters_of_a_load_reach_the_engine(server, body, expected):
    found = server.ask("POST", "/v2/repository/models/m/load", body)
    if isinstance(expected, str):
        assert found.body == {"error": expected}
        assert server.engine.loads == []
    else:
        assert (found.status, found.body, server.engine.loads) == (200, b"", [("m", expected)])
        assert b"naiad-replaced-instances" not in found.head


def test_a_load_says_if_what_it_replaced_is_ending(server):
    async def load(*_: Any) -> bool:
        return True

    server.engine.load = load
    assert b"naiad-replaced-instances: ending\r\n" in server.ask("POST", "/v2/repository/models/m/load").head + b"\r\n"


@pytest.mark.parametrize(
    ("body", "dependents"),
    [
        (b"", False),
        ({"parameters": {"unload_dependents": True}}, True),
        ({"parameters": {"unload_dependents": "x"}}, False),
        ({"parameters": []}, False),
    ],
)
def test_an_unload_may_name_dependents(server, body, dependents):
    assert server.ask("POST", "/v2/repository/models/m/unload", body).status == 200
    assert server.engine.unloads == [("m", dependents)]


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("system/region/r/register", SYSTEM, [("check",), ("register", "r", "/k", 0, 5)]),
        ("system/region/r/register", {**SYSTEM, "offset": 2}, [("check",), ("register", "r", "/k", 2, 5)]),
        ("cuda/region/r/register", CUDA, [("check",), ("register cuda", "r", bytes(range(64)), 1, 5)]),
        ("system/region/r/unregister", b"", [("unregister", "r", False)]),
        ("system/unregister", b"", [("unregister", "", False)]),
        ("cuda/region/r/unregister", b"", [("unregister", "r", True)]),
        ("cuda/unregister", b"", [("unregister", "", True)]),
        ("system/region/r%20s/status", None, [("status", "r s")]),
        ("cuda/region/r/status", None, [("cuda status", "r")]),
    ],
)
def test_regions_are_registered_listed_and_unregistered(server, path, body, told):
    kind, _, rest = path.partition("/")
    found = server.ask("GET" if body is None else "POST", f"/v2/{kind}sharedmemory/{rest}", body or b"")
    assert (found.status, server.regions.told) == (200, told)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"log_verbose_level": 1, "log_info": False, "unknown": 3}, {"log_verbose_level": 1, "log_info": False}),
        ({"log_error": None, "log_format": "ISO8601"}, {"log_error": True, "log_format": "ISO8601"}),
        ({"log_file": None}, "attempt to access JSON non-string as string"),
        ({"log_file": "x"}, "log file location can not be updated through network protocol"),
        ({"log_info": 1}, ...),
    ],
)
def test_settings_of_the_log_change_as_a_whole(server, body, expected):
    before = server.ask("GET", "/v2/logging").body
    found = server.ask("POST", "/v2/logging", body)
    after = server.ask("GET", "/v2/logging").body
    if isinstance(expected, dict):
        assert found.body == after == {**before, **expected}
    else:
        assert (found.status >= 400, after) == (True, before)
        assert expected is ... or found.body == {"error": expected}


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({}, {}),
        ({"trace_rate": "5", "trace_count": None}, {"rate": 5, "count": None}),
        ({"trace_level": []}, {}),
        ({"trace_level": None}, {"levels": None}),
        ({"trace_level": "TIMESTAMPS"}, "attempt to access JSON non-array as array"),
        ({"trace_file": "x"}, ...),
        ({"trace_rate": 5}, ...),
    ],
)
def test_settings_of_traces_change_as_a_whole(server, body, changes):
    found = server.ask("POST", "/v2/models/identity/trace/setting", body)
    if isinstance(changes, dict):
        assert (found.body, server.tracer.changes) == ({"of": "identity"}, [("identity", changes)])
    else:
        assert (found.status >= 400, server.tracer.changes) == (True, [])
        assert changes is ... or found.body == {"error": changes}


def test_levels_of_traces_are_read(server):
    server.ask("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
    ((model, changes),) = server.tracer.changes
    assert (model, list(changes)) == ("", ["levels"])
    assert changes["levels"]


# -- who may ask


def test_a_restricted_part_needs_its_header_with_its_value(caplog):
    server = Server(restrictions={Api.HEALTH: ("X-Key", "secret")})
    denied = "This API is restricted, expecting header 'x-key'"
    with caplog.at_level(logging.WARNING):
        for headers in ({}, {"x_key": "wrong"}):
            found = server.ask("GET", "/v2/health/live", **headers)
            assert (found.status, found.body) == (403, {"error": denied})
    assert sum("x-key" in each.getMessage() for each in caplog.records) == 1, "only a wrong secret is logged"
    assert server.ask("GET", "/v2/health/live", x_key="secret").status == 200
    assert server.ask("GET", "/v2").status == 200


def head_of(method: str, path: str, **headers: str) -> Head:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Head(method, path.encode(), given, 1000, keep_alive=True, can_chunk=True)


@pytest.mark.parametrize(
    ("method", "path", "is_admitted"),
    [
        ("POST", "/v2/models/identity/infer", True),
        ("POST", "/v2/models/repeat/infer", False),
        ("POST", "/v2/models/x/infer", False),
        ("PUT", "/v2/models/identity/infer", False),
        ("POST", "/v2/models/repeat/generate", True),
        ("POST", "/v2/health/live", False),
        ("POST", "/nowhere", False),
        ("POST", "/known", True),
    ],
)
def test_long_bodies_are_received_only_for_requests_that_can_succeed(server, method, path, is_admitted):
    assert server.endpoints.admit(head_of(method, path)) is is_admitted


def test_long_bodies_of_restricted_requests_are_received_with_the_secret_alone():
    server = Server(restrictions={Api.INFERENCE: ("key", "secret")})
    path = "/v2/models/identity/infer"
    assert not server.endpoints.admit(head_of("POST", path))
    assert server.endpoints.admit(head_of("POST", path, key="secret"))


@pytest.mark.parametrize(
    ("path", "headers", "is_reserved"),
    [
        ("/v2/models/identity/infer", {"inference_header_content_length": "7"}, True),
        ("/v2/models/identity/infer", {}, False),
        ("/v2/models/identity/infer", {"inference_header_content_length": "7", "content_encoding": "gzip"}, False),
        ("/v2/models/identity/generate", {"inference_header_content_length": "7"}, False),
        ("/v2/models/x/infer", {"inference_header_content_length": "7"}, False),
        ("/nowhere", {"inference_header_content_length": "7"}, False),
    ],
)
def test_memory_of_an_instance_is_reserved_for_tensors_in_binary(server, path, headers, is_reserved):
    found = server.endpoints.reserve_input(head_of("POST", path, **headers))
    assert (found is not None) is is_reserved
    assert [place[1:3] for place in server.engine.places] == [(1000, 7)] * is_reserved


def test_paths_that_are_not_known_here_may_be_those_of_others(server):
    assert server.ask("GET", "/known").responses == []
    assert [each.request.path for each in server.fallbacks] == [b"/known"]
    assert server.ask("GET", "/unknown").status == 404


def test_requests_are_logged_where_the_log_is_verbose(server, caplog):
    server.extensions.log.is_verbose = True
    with caplog.at_level(logging.DEBUG):
        for method, path in (("GET", "/v2"), ("POST", "/nowhere"), ("ODD", "/v2")):
            server.ask(method, path)
    lines = [each.getMessage() for each in caplog.records if each.name == "naiad.http"]
    assert lines == [
        "HTTP request: 0 /v2",
        "HTTP request: 2 /nowhere",
        "HTTP error: 2 /nowhere - 404",
        "HTTP request: 16 /v2",
    ]


# -- inference

IDENTITY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7]}]}


def test_a_request_that_is_answered_later_is_cancelled_with_its_client(server):
    exchange = server.ask("POST", "/v2/models/held/infer", IDENTITY)
    assert ([each.number for each in exchange.submitted], exchange.responses) == ([1], [])
    server.engine.release()
    assert exchange.body["outputs"][0]["data"] == [7]
    exchange = server.ask("POST", "/v2/models/held/infer", IDENTITY)
    exchange.is_connected = False
    server.engine.release()
    assert exchange.responses == [b""], "this ends the exchange"
    sink = Exchange("POST", "/")
    server.endpoints.handle(exchange)
    assert sink.responses == []


def test_a_second_response_does_not_answer_the_next_request_and_none_is_an_error(server):
    exchange = server.ask("POST", "/v2/models/held/infer", IDENTITY)
    ((_, sink),) = server.engine.held.values()
    sink.send(None, True)
    sink.send(None, True)
    assert (exchange.status, exchange.body) == (500, {"error": "the model ended the request without a response"})


@pytest.mark.parametrize("coding", ["gzip", "deflate", ""])
def test_a_response_is_compressed_as_the_client_asks(server, coding):
    exchange = server.ask("POST", "/v2/models/identity/infer", IDENTITY, accept_encoding=coding)
    if not coding:
        assert exchange.body["outputs"][0]["data"] == [7]
        return
    assert b"Content-Encoding: %b\r\n" % coding.encode() in exchange.head + b"\r\n"
    text = zlib.decompress(exchange.body, wbits=47)
    assert json.loads(text)["outputs"][0]["data"] == [7]
    failed = server.ask("POST", "/v2/models/failing/infer", IDENTITY, accept_encoding=coding)
    assert (failed.status, b"Content-Encoding" in failed.head) == (500, False)


def test_a_short_compressed_body_is_read_at_once_and_an_unknown_coding_names_those_known(server):
    body = zlib.compress(json.dumps(IDENTITY).encode())
    assert server.ask("POST", "/v2/models/identity/infer", body, content_encoding="deflate").status == 200
    found = server.ask("POST", "/v2/models/identity/infer", body, content_encoding="br")
    assert (found.status, found.body) == (501, {"error": "Unsupported compression type"})
    assert b"Accept-Encoding: gzip, deflate" in found.head


def test_headers_may_become_parameters_of_the_request():
    import re

    server = Server(forward=re.compile("X-.*"))
    server.ask("POST", "/v2/models/identity/infer", IDENTITY, x_user="me", other="no", traceparent="00-1")
    (asked,) = server.engine.requests
    assert dict(asked.propagated)["traceparent"] == "00-1"
    assert "other" not in {*asked.parameters, *asked.propagated}


# -- the body of a request, decompressed on a thread


class Threads:
    """Runs a decompression when the test says so."""

    def __init__(self) -> None:
        self.resumed = self.cancelled = 0

    def start(self, body: Any, on_step: Any, on_done: Any, on_failed: Any) -> Threads:
        self.on_step, self.on_done, self.on_failed = on_step, on_done, on_failed
        return self

    def resume(self) -> None:
        self.resumed += 1

    def cancel(self) -> None:
        self.cancelled += 1


class Decompressed:
    """A body that is being decompressed."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.memory = RequestMemory()
        self.threads = self.memory.threads = Threads()  # type: ignore[assignment] # a fake
        self.exchange = Exchange("POST", "/")
        self.failed: list[Exception] = []
        self.done = 0
        self._then = then
        self.work = BodyDecompression(
            self.exchange,
            None,
            self.memory,
            self._on_done,
            self.failed.append,  # type: ignore[arg-type] # fakes
        )

    def _on_done(self) -> None:
        self.done += 1
        self._then()


def test_a_decompressed_body_replaces_the_one_that_was_sent():
    made = Decompressed()
    assert made.threads.on_step(1000)
    assert made.threads.on_step(5000)
    assert made.work.charge.size == 5000
    made.work.resume_receiving()
    assert made.threads.resumed == 1
    made.threads.on_done(bytearray(b"x" * 5000))
    assert bytes(made.exchange.request.body) == b"x" * 5000
    assert made.exchange.charges == [made.work.charge]
    made.work.resume_receiving()
    made.exchange.leave()
    assert (made.done, made.failed, made.threads.resumed, made.threads.cancelled) == (1, [], 1, 0)
    assert made.work.charge.size == 5000, "it counts until the response"


@pytest.mark.parametrize("how", ["fails", "is refused", "the client leaves"])
def test_a_decompression_that_ends_early_counts_no_more(how):
    made = Decompressed()
    made.threads.on_step(1000)
    error = InvalidRequestError("malformed")
    if how == "fails":
        made.threads.on_failed(error)
        assert made.failed == [error]
    elif how == "is refused":
        made.work.refuse("no memory")
        assert [(type(each), str(each)) for each in made.failed] == [(NotReadyError, "no memory")]
    else:
        made.exchange.resume()
        assert made.threads.cancelled == 0, "it reads again"
        made.exchange.leave()
        assert made.failed == []
    assert made.threads.cancelled == 1
    made.exchange.leave()
    assert made.threads.cancelled == 1
    assert (made.work.charge.size, made.memory.budget.in_use) == (0, 0)


def test_an_error_behind_a_decompression_is_that_of_the_request():
    error = NaiadError("no")

    def fail() -> None:
        raise error

    made = Decompressed(fail)
    made.threads.on_done(bytearray(b"x"))
    assert made.failed == [error]


def test_a_long_compressed_body_is_not_read_at_once(server):
    content = json.dumps({**IDENTITY, "id": base64.b64encode(bytes(range(256)) * 4000).decode()}).encode()
    body = zlib.compress(content, 0)
    assert len(body) > SHORT_INPUT
    exchange = Exchange("POST", "/v2/models/identity/infer", body, content_encoding="deflate")

    async def handle() -> None:
        server.endpoints.handle(exchange)  # type: ignore[arg-type] # a fake
        assert exchange.responses == []
        await until_async(lambda: exchange.responses)

    asyncio.run(handle())
    assert exchange.charges


# -- the load of a key-value cache


@pytest.mark.parametrize(
    ("form", "numbers", "expected"),
    [
        (b"text", (3, 4, 5), b"TEXT named_metrics.kv_cache_utilization=0.750000, named_metrics.max_token_capacity=20"),
        (b"json", (3, 4, 5), b'JSON {"named_metrics":{"kv_cache_utilization":0.75,"max_token_capacity":20}}'),
        (b"text", (0, 0, 5), b"TEXT named_metrics.kv_cache_utilization=0.000000, named_metrics.max_token_capacity=0"),
        (b"text", (0, 1, 0), b"TEXT named_metrics.kv_cache_utilization=0.000000, named_metrics.max_token_capacity=0"),
        (b"xml", (3, 4, 5), b"endpoint-load-metrics-format is set to an invalid type: xml; there are json and text"),
        (b"text", (3, -1, 5), b"kv_cache_block_type=max"),
        (b"text", (), b"kv_cache_block_type=used, max, tokens_per"),
    ],
)
def test_the_load_of_a_cache_is_a_header_in_the_form_that_is_asked_for(caplog, form, numbers, expected):
    def family(name: str, values: Any) -> Any:
        metrics = {
            kind: type("Metric", (), {"labels": (("kv_cache_block_type", kind),), "value": value})
            for kind, value in zip(("used", "max", "tokens_per"), values, strict=False)
        }
        other = type("Metric", (), {"labels": (("x", "y"),), "value": 9})
        return type("Family", (ModelMetricFamily,), {"name": name, "metrics": {**metrics, "other": other}})

    families = [family("nv_trt_llm_kv_cache_block_metrics", numbers), family("another", (9, 9, 9))]
    header = load_header(form, families)
    if header:
        assert header == b"endpoint-load-metrics: " + expected + b"\r\n"
        assert not caplog.records
    else:
        assert expected.decode() in caplog.records[0].getMessage()
