"""Which requests of web pages are refused, by their heads."""

from __future__ import annotations

import socket

import pytest

from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.page_guard import PageGuard, PageRules, is_loopback

LOAD = "/v2/repository/models/m/load"
EVIL, OWN = "http://evil.example", "http://localhost:8000"


def refusal(
    method: str = "POST", path: str = LOAD, rules: PageRules | None = None, *, local: bool = True, **given: str
) -> str:
    headers = {"host": "localhost:8000", **{name.replace("_", "-"): value for name, value in given.items()}}
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    refused = PageGuard(rules or PageRules(), is_loopback=local).refusal(method, path.encode(), encoded)
    return "" if refused is None else refused.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL, "sec_fetch_site": "cross-site"},
        {"origin": EVIL},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "origin": OWN},
        {"sec_fetch_site": "none", "origin": EVIL},
        {"sec_fetch_site": "", "origin": OWN},
        {"origin": "null"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
        {"origin": "http://localhost:80000"},
        {"origin": "http://localhost"},
        {"origin": "http://localhost:8000.evil.example"},
        {"origin": "\xff"},
        {"origin": ""},
    ],
)
def test_a_page_of_another_origin_changes_nothing(headers):
    assert refusal(**headers)
    for method in ("PUT", "DELETE", "PATCH", "CONNECT", "LINK"):
        assert refusal(method, "/anything", **headers)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert not refusal(method, **headers), "browsers keep the response from the page"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": OWN, "sec_fetch_site": "same-origin"},
        {"origin": "HTTP://LocalHost:8000"},
        {"origin": OWN, "sec_fetch_site": "none"},
        {"sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "https://app.example", "sec_fetch_site": "same-origin"},  # a proxy has replaced the Host
    ],
)
def test_programs_and_the_servers_own_page_are_served(headers):
    assert not refusal(**headers)


def test_the_refusal_names_the_page_the_header_and_the_flag():
    assert refusal(origin=EVIL) == (
        f"cannot accept POST {LOAD} from a page of 'http://evil.example' (header Origin): it may change something or run "
        "a model; add its origin to --http-allowed-origins if its pages may use this server"
    )
    assert "from a page of another site (header Sec-Fetch-Site: cross-site): " in refusal(sec_fetch_site="cross-site")
    assert "to --openai-allowed-origins if" in refusal(path="/v1/models/m/load", origin=EVIL)
    long = refusal(origin="http://" + "x\x1b" * 5000)
    assert len(long) < 800
    assert "\x1b" not in long


def test_allowed_origins_are_served_whatever_the_browser_says():
    rules = PageRules(origins=("https://app.example",))
    assert not refusal(rules=rules, origin="https://App.example", sec_fetch_site="cross-site")
    assert refusal(rules=rules, origin="https://app.example.evil", sec_fetch_site="cross-site")
    assert not refusal(rules=PageRules(origins=("null",)), origin="null")
    assert not refusal(rules=PageRules(origins=("*",)), origin=EVIL, sec_fetch_site="cross-site")
    assert not refusal(rules=PageRules(origins=("*",)), sec_fetch_site="cross-site")


def test_origins_of_openais_api_may_use_that_api_alone():
    named, every = PageRules(openai_origins=(EVIL,)), PageRules(openai_origins=("*",))
    for path in ("/v1/chat/completions", "/mcp", "/rerank", "/tokenize", "/v1/responses/x"):
        assert refusal(path=path, origin=EVIL)
        assert not refusal(path=path, rules=named, origin=EVIL)
        assert not refusal(path=path, rules=every, origin=EVIL)
    for path in (LOAD, "/v2/models/m/infer", "/v2", "/ui/control/load/m", "/", "//v2/logging"):
        assert refusal(path=path, rules=named, origin=EVIL)
        assert refusal(path=path, rules=every, origin=EVIL)
    for path in ("/v1/models/m/load", "/v1/models/m/unload", "/v1/models/m/unload/"):
        assert not refusal(path=path, rules=named, origin=EVIL)
        assert refusal(path=path, rules=every, origin=EVIL), "`*` does not cover model control"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.:1",
        "models.localhost",
        "127.0.0.1:8000",
        "127.1",
        "192.168.1.7",
        "2130706433",
        "0x7f000001:80",
        "[::1]:8000",
        "[fe80::1]",
        "host.docker.internal:8000",
        "localhost.localdomain",
        "ip6-localhost:8000",
        "::1:8000",
        socket.gethostname(),
        "",
    ],
)
def test_names_of_the_machine_and_addresses_are_served_everywhere(host):
    for rules in (PageRules(), PageRules(hosts=()), PageRules(hosts=("a.example",))):
        assert not refusal("GET", rules=rules, host=host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "\xff"],
)
def test_another_name_is_refused_at_loopback_addresses_and_by_a_list(host):
    assert refusal("GET", host=host) == (
        f"cannot serve the request: this server is not known as '{ascii(host)[1:-1]}' (header Host); use its address, or "
        "add the name to --http-allowed-hosts"
    )
    assert refusal("OPTIONS", host=host, rules=PageRules(hosts=("a.example",)), local=False)
    assert not refusal("GET", host=host, local=False)
    assert not refusal("GET", host=host, rules=PageRules(hosts=("*",)))


def test_a_list_has_names_and_domains():
    rules = PageRules(hosts=("a.example", "*.b.example"))
    for host in ("a.example:1", "x.b.example", "y.x.b.example."):
        assert not refusal(rules=rules, host=host)
    for host in ("x.a.example", "b.example", "xb.example"):
        assert refusal(rules=rules, host=host)


def test_a_page_whose_name_resolves_to_the_server_is_refused_as_a_foreign_host():
    evil = {"origin": "http://evil.example:8000", "host": "evil.example:8000"}
    assert refusal(**evil)
    assert refusal(**evil, local=False, rules=PageRules(hosts=("a.example",)))


def test_heads_of_refused_requests_are_not_kept_and_others_are_checked_once():
    checked = []

    class Counting(PageGuard):
        def refusal(self, method, path, headers):
            checked.append(path)
            return super().refusal(method, path, headers)

    heads = HeadCache(Counting(PageRules(), is_loopback=True))
    good = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
    bad = good.replace(b"localhost", b"evil.example")
    assert heads.find(good) is heads.find(good)
    assert checked == [b"/v2/models/m/infer"]
    assert heads.find(bad) is None
    assert heads.find(bad) is None
    assert len(checked) == 3


@pytest.mark.parametrize(
    ("headers", "is_local", "is_usual"),
    [
        ({"host": "localhost"}, True, True),
        ({"host": "evil.example"}, True, False),
        ({"host": "evil.example"}, False, True),
        ({"host": "localhost", "origin": OWN}, True, False),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, True, False),
        ({"host": "localhost", "origin": OWN}, False, False),
        ({"host": "10.0.0.1" * 40}, True, False),
    ],
)
def test_requests_of_programs_for_a_host_that_was_served_need_no_second_look(headers, is_local, is_usual):
    guard = PageGuard(PageRules(), is_loopback=is_local)
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    assert guard.is_usual(encoded) is (is_usual and not is_local)
    guard.refusal("GET", b"/", encoded)
    assert guard.is_usual(encoded) is is_usual


def test_only_addresses_of_the_machine_itself_are_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0")))
