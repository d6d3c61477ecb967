"""Which clients get the page (`--ui-address`)."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import pytest
from serving.extensions.test_web_pages import ask
from serving.written import write_model
from support.server import ServerProcess

from naiad.frontends.console.page import PageReach, ServedTo

LOCAL = PageReach(ServedTo(is_local=True))


def request(client="127.0.0.1", server="127.0.0.1", **headers):
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return SimpleNamespace(
        client_address=client, server_address=server, request=SimpleNamespace(path=b"/ui", headers=given)
    )


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request("127.0.0.1", "127.0.0.2", host="127.0.0.2:8000"),
        request("::1", "::1", host="[::1]:8000"),
        request("", "", host="localhost"),
        request(host="models.localhost:8000"),
    ],
)
def test_a_client_of_the_machine_gets_the_page(asked):
    assert LOCAL.refusal(asked) == ""


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (
            request("10.0.0.7", "10.0.0.5"),
            "cannot serve the page to 10.0.0.7: it is served to programs of this machine",
        ),
        # A packet of the network for a loopback address (route_localnet), and a program that uses the other address.
        (request("10.0.0.7", "127.0.0.1"), "cannot serve the page to 10.0.0.7"),
        (request("10.0.0.5", "10.0.0.5"), "cannot serve the page to 10.0.0.5"),
        (request("fe80::1%eth0", "fe80::2%eth0"), "cannot serve the page to fe80::1%eth0"),
        (request(x_forwarded_for="10.0.0.7"), "cannot serve the page to a client behind a proxy"),
        (request(forwarded="for=10.0.0.7"), "cannot serve the page to a client behind a proxy"),
        (request(host="evil.example"), "this server is not known as 'evil.example' (header Host)"),
    ],
)
def test_another_client_gets_the_reason_and_the_flags_that_change_it(asked, problem):
    refusal = LOCAL.refusal(asked)
    assert problem in refusal
    if "Host" not in refusal:
        assert refusal.endswith(
            "start the server with --ui-password=FILE, or with --ui-address=0.0.0.0 to serve it to every client"
        )


def test_one_address_and_all_addresses():
    one = PageReach(ServedTo(address="10.0.0.5"))
    assert one.refusal(request("10.0.0.7", "10.0.0.5")) == ""
    assert "it is served at 10.0.0.5 alone" in one.refusal(request("10.0.0.7", "10.0.1.5"))
    everywhere = PageReach(ServedTo())
    assert everywhere.refusal(request("10.0.0.7", "10.0.0.5", host="evil.example", forwarded="for=1.2.3.4")) == ""
    named = PageReach(ServedTo(is_local=True, hosts=("models.example",)))
    assert named.refusal(request(host="models.example")) == ""


def test_a_server_on_all_addresses_serves_its_page_to_its_machine_alone(tmp_path):
    write_model(tmp_path / "models", "m")
    flags = ("--http-address=0.0.0.0", "--ui=true", "--processes=2")
    with ServerProcess(tmp_path / "models", *flags, work=tmp_path) as server:
        link = f"Started the page at http://localhost:{server.http_port}/ui (for this machine alone: --ui-address)"
        server.wait_log(link)
        for path in ("/ui", "/ui/data/state", "/ui/data/log/m/0", "/ui/control/load/m"):
            assert ask(server.http_port, "GET", path, X_Forwarded_For="10.0.0.7")[0] == 403
            status, body = ask(server.http_port, "GET", path, Host="evil.example")
            assert (status, "this server is not known as 'evil.example'" in body) == (403, True)
        server.wait_log("cannot serve the page to a client behind a proxy")
        assert ask(server.http_port, "GET", "/ui")[0] == 200
        assert ask(server.http_port, "GET", "/ui/data/state", Host="localhost:8000")[0] == 200
        # Only the page is for the machine alone.
        assert ask(server.http_port, "GET", "/v2/models/m/ready", X_Forwarded_For="10.0.0.7")[0] == 200


@pytest.mark.parametrize(
    ("flag", "headers"),
    [
        ("--ui-password={}", {"Authorization": "Basic " + base64.b64encode(b"me:open sesame").decode()}),
        ("--ui-address=0.0.0.0", {}),
    ],
)
def test_with_a_password_or_when_asked_the_page_is_served_to_all(tmp_path, flag, headers):
    write_model(tmp_path / "models", "m")
    (tmp_path / "password").write_text("open sesame")
    flags = ("--http-address=0.0.0.0", "--ui=true", flag.format(tmp_path / "password"), "--processes=1")
    with ServerProcess(tmp_path / "models", *flags, work=tmp_path) as server:
        server.wait_log(f'Started the page at http://localhost:{server.http_port}/ui"')
        for other in ({"X-Forwarded-For": "10.0.0.7"}, {"Host": "models.example"}):
            assert ask(server.http_port, "GET", "/ui/data/state", **headers, **other)[0] == 200
