"""Limits on connections hold for all processes of a server together."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.server import ServerProcess

from naiad.frontends.open_connections import ConnectionCount
from naiad.server.processes import connection_board
from naiad.server.processes.connection_board import ConnectionBoard


@pytest.fixture
def boards() -> Iterator[list[ConnectionBoard]]:
    """One board in three processes."""
    first = ConnectionBoard.create(3)
    made = [first, *(ConnectionBoard(os.dup(first.descriptor), 3, number) for number in (1, 2))]
    yield made
    for board in made:
        board.close()


def test_the_total_is_that_of_all_processes(boards: list[ConnectionBoard]) -> None:
    counts = [ConnectionCount(total=4, others=board) for board in boards]

    assert [counts[number].enter("") for number in (0, 0, 0, 2)] == [""] * 4
    for count in counts:
        assert count.enter("").startswith("cannot accept the connection: 4 are open, the limit of --max-connections;")
    counts[0].leave("")

    assert counts[1].enter("") == ""
    assert counts[1].enter("") != ""
    assert [count.open for count in counts] == [2, 1, 1]


def test_an_address_has_its_limit_in_all_processes(boards: list[ConnectionBoard]) -> None:
    counts = [ConnectionCount(per_address=2, others=board) for board in boards]

    assert [counts[0].enter("10.0.0.1"), counts[1].enter("10.0.0.1")] == ["", ""]
    assert counts[2].enter("10.0.0.1").startswith("cannot accept the connection: 2 are open from 10.0.0.1")
    assert counts[2].enter("10.0.0.2") == ""
    counts[0].leave("10.0.0.1")

    assert counts[2].enter("10.0.0.1") == ""
    assert counts[2].open == 2


def test_a_total_of_each_process_is_not_shared(boards: list[ConnectionBoard]) -> None:
    counts = [ConnectionCount(total=1, per_address=9, others=board, is_total_shared=False) for board in boards]

    assert [count.enter("10.0.0.1") for count in counts] == [""] * 3
    assert counts[0].enter("10.0.0.1") != ""


def test_the_connections_of_a_process_that_has_ended_do_not_count(boards: list[ConnectionBoard]) -> None:
    counts = [ConnectionCount(total=1, per_address=1, others=board) for board in boards]
    assert counts[1].enter("10.0.0.1") == ""
    assert counts[0].enter("10.0.0.1") != ""

    boards[0].clear(1)

    assert counts[0].enter("10.0.0.1") == ""


def test_addresses_of_equal_hashes_are_told_apart(
    boards: list[ConnectionBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_board, "_ROWS", 2)  # their rows overlap
    counts, expected = random.Random(1), [Counter[str]() for _ in boards]
    for _ in range(500):
        number, address = counts.randrange(3), f"10.0.0.{counts.randrange(12)}"
        own = expected[number]
        own[address] = max(own[address] + counts.choice((-1, 1)), 0)

        elsewhere = boards[number].note_address(address, own[address])

        assert elsewhere == sum(each[address] for each in expected if each is not own)


def test_a_closed_board_counts_nothing() -> None:
    board = ConnectionBoard.create(2)
    board.close()
    board.close()
    board.clear(1)

    assert (board.note_open(3), board.note_address("10.0.0.1", 3)) == (0, 0)


@pytest.mark.server
@pytest.mark.parametrize("flag", ["--max-connections=6", "--max-connections-per-address=6"])
def test_a_server_of_two_processes_accepts_as_many_connections_as_the_limit_says(tmp_path, flag) -> None:
    (tmp_path / "models").mkdir()
    with ServerProcess(tmp_path / "models", "--processes=2", flag, work=tmp_path) as server:
        for _ in range(5):
            with ExitStack() as stack:
                answers = []
                for _ in range(8):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port)))
                    client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    answers.append(client.recv(1000)[:12])
            assert answers == [b"HTTP/1.1 200"] * 6 + [b"HTTP/1.1 503"] * 2
            server.wait_for(lambda: "\nnaiad_connections_open 0" in server.metrics(), "all connections to end")
