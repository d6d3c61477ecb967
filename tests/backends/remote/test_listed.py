"""Targets from a list of servers: which are called, and what happens when the list changes."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from naiad_remote.caller import Caller
from naiad_remote.errors import CallError
from naiad_remote.listed import Listed, ListedCaller, parse_list, read_list
from naiad_remote.metrics import Metrics
from naiad_remote.settings import Settings, read
from naiad_remote.watch import Watch
from naiad_remote.wire import WireRequest
from support.server import ServerProcess
from support.waiting import until

from . import models
from .scripted import ScriptedTarget, answer, scripted

REQUEST = WireRequest("", [], [], {}, [])


def settings_of(servers: str, **values: str) -> Settings:
    parameters = {"servers": servers, "breaker_failures": "0", **values}
    config = {"name": "m", "parameters": {name: {"string_value": text} for name, text in parameters.items()}}
    return read(config, "/m/1")


def server(node: str, *, ready: bool = True, **addresses: str) -> dict[str, object]:
    return {"replica": "r", "node": node, "ready": ready, "addresses": addresses}


class ServerListing(ThreadingHTTPServer):
    """A list of servers, as `naiad_operations.ray.directory` serves it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/replicas"
        self.listed: object = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: ServerListing

    def do_GET(self) -> None:
        content = json.dumps(self.server.listed).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listing() -> Iterator[ServerListing]:
    with ServerListing() as listed:
        thread = threading.Thread(target=listed.serve_forever)
        thread.start()
        yield listed
        listed.shutdown()
        thread.join()


def good(connection: socket.socket, request: bytes) -> bool:
    return answer(connection)


def held(begun: threading.Event, go: threading.Event):
    def handle(connection: socket.socket, request: bytes) -> bool:
        begun.set()
        go.wait(30)
        return answer(connection)

    return handle


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    yield found
    found.close()


def caller_of(given: Settings, watch: Watch, node: str) -> ListedCaller:
    def connect(listed: Listed) -> Caller:
        return Caller(
            given,
            listed.targets,
            watch=watch,
            metrics=Metrics("m", "1", "m_0"),
            kind="primary",
            is_decoupled=False,
            random=random.Random(3).random,
            near=listed.near,
        )

    return ListedCaller(given, node, connect)


def call(caller: ListedCaller) -> None:
    list(caller.call(REQUEST, []))


def test_ready_servers_with_the_port_are_targets_and_those_of_the_node_are_near():
    content = json.dumps(
        [
            server("far", http="http://b:1", grpc="b:2"),
            server("here", http="https://a:1", grpc="a:2"),
            server("here", ready=False, http="http://c:1"),
            server("here", openai="http://d:1"),
        ]
    ).encode()
    by_http = parse_list(content, settings_of("http://h/replicas", model="other", version="3"), "here")
    by_grpc = parse_list(content, settings_of("http://h/replicas", servers_port="grpcs"), "")

    assert [str(each) for each in by_http.targets] == [
        "http://b:1/v2/models/other/versions/3",
        "https://a:1/v2/models/other/versions/3",
    ]
    assert by_http.near == {1}
    assert [str(each) for each in by_grpc.targets] == ["grpcs://a:2/v2/models/m", "grpcs://b:2/v2/models/m"]
    assert by_grpc.near == frozenset()


@pytest.mark.parametrize("listed", [{"error": "no"}, [1], [{"ready": True}], "text", [server("n", http="http://a:x")]])
def test_an_invalid_list_is_rejected_with_its_address(listing, listed):
    listing.listed = listed
    with pytest.raises(CallError) as error:
        read_list(settings_of(listing.url), "n")
    assert error.value.text.startswith(f"cannot read the list of servers {listing.url}: ")


def test_the_near_server_is_called_until_it_cannot_be_connected(listing, watch):
    with scripted(good) as near, scripted(good) as far:
        listing.listed = [server("here", http=f"http://{near.address}"), server("far", http=f"http://{far.address}")]
        caller = caller_of(settings_of(listing.url), watch, "here")
        for _ in range(8):
            call(caller)
        assert (len(near.requests), len(far.requests)) == (8, 0)

        near.close()  # the list still has it
        call(caller)
        assert len(far.requests) == 1
        caller.close()


def test_calls_move_to_the_servers_of_a_new_list_and_those_in_flight_are_completed(listing, watch):
    begun, go = threading.Event(), threading.Event()
    with scripted(held(begun, go)) as old, scripted(good) as new:
        listing.listed = [server("far", http=f"http://{old.address}")]
        caller = caller_of(settings_of(listing.url), watch, "here")
        ended: list[str] = []
        thread = threading.Thread(target=lambda: (call(caller), ended.append("completed")))
        thread.start()
        assert begun.wait(30)

        listing.listed = [server("far", http=f"http://{new.address}")]
        until(lambda: _calls(caller, new), "a call of the new server")
        go.set()
        thread.join()
        assert ended == ["completed"]
        caller.close()


def test_an_unreadable_list_keeps_the_last_servers_and_an_empty_one_is_an_error(listing, watch):
    with scripted(good) as target:
        caller = caller_of(settings_of(listing.url), watch, "")
        assert not caller.is_ready()
        with pytest.raises(CallError, match=f"cannot call a remote model: {listing.url} lists no ready server"):
            call(caller)

        listing.listed = [server("n", http=f"http://{target.address}")]
        until(caller.is_ready, "the server of the list")
        listing.status = 503
        caller._refresh()
        call(caller)
        assert len(target.requests) == 1
        caller.close()


def _calls(caller: ListedCaller, target: ScriptedTarget) -> bool:
    return caller._listed.targets[0].address == target.address and (call(caller), bool(target.requests))[1]


def test_a_model_of_the_backend_calls_the_near_server(listing, store, tmp_path: Path):
    output = {"outputs": [{"name": "Y", "datatype": "FP32", "shape": [1], "data": [2.0]}]}

    def double(connection: socket.socket, request: bytes) -> bool:
        return answer(connection, 200, output)

    config = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
    models.add_remote(tmp_path / "models", "m", {"servers": listing.url}, config)
    body = {"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    with scripted(double) as near, scripted(double) as far:
        with ServerProcess(
            tmp_path / "models", store, work=tmp_path, environ={"NAIAD_RAY_NODE": "here"}, wait="loaded"
        ) as caller:
            # As on Ray: the server itself starts before any server is listed.
            until(lambda: "lists no ready server" in caller.log, "the warning")
            listing.listed = [
                server("far", http=f"http://{far.address}"),
                server("here", http=f"http://{near.address}"),
            ]
            caller.wait_health("ready")
            for _ in range(8):
                assert caller.post("/v2/models/m/infer", body).json()["outputs"][0]["data"] == [2.0]
        assert sum(b"/infer" in request.split(b"\r\n")[0] for request in near.requests) == 8
        assert far.requests == []
