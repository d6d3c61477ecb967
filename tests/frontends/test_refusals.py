"""Wrong keys, headers and passwords are logged, but not each of them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from naiad.frontends import refusals as module
from naiad.frontends.refusals import RefusalLog, client_address, server_address


@pytest.fixture
def now(monkeypatch):
    """The time, which the test sets."""
    clock = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.time)
    return clock


def test_the_log_has_the_address_and_a_line_each_ten_seconds(now, caplog):
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "naiad.access"):
        for _ in range(1000):
            log.add_wrong_secret("the API key", "10.0.0.1")
        log.add("b", "other")
        now.time += 10
        log.add_wrong_secret("the API key", "10.0.0.1")
    assert [record.getMessage() for record in caplog.records] == [
        "refused 10.0.0.1: the API key is wrong (1 refused so far)",
        "other (1 refused so far)",
        "refused 10.0.0.1: the API key is wrong (1001 refused so far)",
    ]


@pytest.mark.parametrize(
    ("peer", "address"),
    [(("10.0.0.1", 4), "10.0.0.1"), (("::ffff:10.0.0.1", 4, 0, 0), "10.0.0.1"), ("", ""), (None, "")],
)
def test_addresses_of_ipv4_have_one_form(peer, address):
    transport = SimpleNamespace(get_extra_info={"peername": peer, "sockname": ("10.0.0.9", 8000)}.get)
    assert client_address(transport) == address
    assert server_address(transport) == "10.0.0.9"
    assert client_address(None) == server_address(None) == ""
