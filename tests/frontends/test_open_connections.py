"""Connections are counted against limits, and those beyond them are told why."""

from __future__ import annotations

import resource

import pytest
from fakes.connections import Transport

from naiad.frontends import open_connections
from naiad.frontends.open_connections import ConnectionCount, OpenConnections, default_limit

TOTAL = (
    "cannot accept the connection: 2 are open, the limit of --max-connections; close idle connections or try again "
    "later"
)
ADDRESS = (
    "cannot accept the connection: 2 are open from 10.0.0.1, the limit of --max-connections-per-address; use one of "
    "them or close it"
)


def test_a_connection_beyond_the_limit_is_refused_until_another_has_ended():
    connections: OpenConnections[str] = OpenConnections(ConnectionCount(total=2))
    assert [connections.add(name, Transport()) for name in "abc"] == ["", "", TOTAL]
    assert len(connections) == 3, "it is open until its client knows"
    connections.discard("c")
    assert connections.count.open == 2
    connections.discard("a")
    assert connections.add("d", Transport()) == ""
    assert connections.count.refused == {"total": 1}


def test_listeners_share_a_limit():
    count = ConnectionCount(total=2)
    one, other = OpenConnections[str](count), OpenConnections[str](count)
    assert [one.add("a", Transport()), other.add("b", Transport()), one.add("c", Transport())] == ["", "", TOTAL]


def test_addresses_are_limited_one_by_one():
    connections: OpenConnections[str] = OpenConnections(ConnectionCount(per_address=2))
    addresses = ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert [connections.add(f"{n}", Transport(each)) for n, each in enumerate(addresses)] == ["", "", ADDRESS, ""]
    connections.discard("2")
    assert connections.add("a", Transport()) == ADDRESS
    connections.discard("1")
    assert connections.add("b", Transport()) == ""
    assert connections.count.refused == {"address": 2}


def test_no_limit_refuses_nothing_and_asks_for_no_address():
    connections: OpenConnections[int] = OpenConnections()
    assert not any(connections.add(number, None) for number in range(1000))


def test_connections_of_a_flood_are_closed_without_a_response(monkeypatch):
    monkeypatch.setattr(open_connections, "_MAX_REFUSED", 3)
    connections: OpenConnections[int] = OpenConnections(ConnectionCount(total=1))
    transports = [Transport() for _ in range(6)]
    for number, transport in enumerate(transports):
        connections.add(number, transport)
    assert [transport.is_aborted for transport in transports] == [False] * 4 + [True] * 2


def test_what_is_open_to_be_told_why_is_bounded_for_all_listeners_together(monkeypatch):
    monkeypatch.setattr(open_connections, "_MAX_REFUSED", 1)
    count = ConnectionCount(total=1)
    one, other = OpenConnections[int](count), OpenConnections[int](count)
    transports = [Transport() for _ in range(4)]
    for number, transport in enumerate(transports):
        (one, other)[number % 2].add(number, transport)
    assert [each.is_aborted for each in transports] == [False, False, True, True]
    assert count.refusing == 3
    for number in range(4):
        (one, other)[number % 2].discard(number)
    assert (count.open, count.refusing) == (0, 0)


def test_refused_connections_do_not_fill_the_log(caplog):
    connections: OpenConnections[int] = OpenConnections(ConnectionCount(total=2))
    for number in range(50):
        connections.add(number, Transport())
    assert [record.getMessage() for record in caplog.records] == [f"{TOTAL} (1 refused so far)"]


def test_a_connection_that_was_never_added_may_be_discarded():
    connections: OpenConnections[str] = OpenConnections()
    connections.discard("a")
    assert connections.count.open == 0


@pytest.mark.parametrize(("files", "limit"), [(1024, 768), (65536, 49152), (200, 72), (64, 1), (-1, 0)])
def test_the_limit_leaves_files_for_everything_else(monkeypatch, files, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert default_limit() == limit
