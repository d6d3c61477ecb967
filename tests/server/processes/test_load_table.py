"""What processes know of each other's loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.server.processes import load_table
from naiad.server.processes.load_table import LoadTable


@pytest.fixture
def boards() -> Iterator[list[LoadTable]]:
    """The boards of three processes, over the same memory."""
    first = LoadTable.create(3)
    made = [first, *(LoadTable(os.dup(first.descriptor), 3, number) for number in (1, 2))]
    yield made
    for table in made:
        table.close()


@pytest.fixture
def row(boards: list[LoadTable]) -> Iterator[int]:
    """A row between two others, which stay as they are."""
    before, made, after = (boards[0].take_row() for _ in range(3))
    for other in (before, after):
        for table in boards:
            table.note_instances(other, 7)
            table.note_requests(other, 9)
    yield made
    for other in (before, after):
        assert [table.requests_elsewhere(other) for table in boards] == [18, 18, 18]
        assert [table.serving_processes(other) for table in boards] == [[1, 2], [0, 2], [0, 1]]


def test_each_process_reads_the_loads_of_the_others(boards: list[LoadTable], row: int) -> None:
    for table, requests in zip(boards, (4, 1, 0), strict=True):
        table.note_instances(row, 1)
        table.note_requests(row, requests)

    assert boards[0].better_process(row, 4, 1) == 2
    assert boards[2].better_process(row, 0, 1) is None
    assert [table.requests_elsewhere(row) for table in boards] == [1, 4, 5]
    boards[0].note_sent(row, 2)
    boards[0].note_sent(row, 2)
    assert [table.requests_elsewhere(row) for table in boards] == [3, 6, 5]


def test_a_request_goes_where_each_instance_has_least_to_do(boards: list[LoadTable], row: int) -> None:
    for table, instances, requests in zip(boards, (1, 1, 4), (8, 2, 4), strict=True):
        table.note_instances(row, instances)
        table.note_requests(row, requests)

    assert boards[0].better_process(row, 8, 1) == 2
    assert boards[1].better_process(row, 9, 1) == 2
    assert boards[2].better_process(row, 99, 1) == 1


def test_an_idle_process_has_more_instances_than_requests(boards: list[LoadTable], row: int) -> None:
    boards[0].note_instances(row, 1)
    assert boards[0].idle_process(row) is None, "it is the only one"
    assert boards[1].idle_process(row) == 0
    for table, instances in ((boards[1], 1), (boards[2], 2)):
        table.note_instances(row, instances)
        table.note_requests(row, 1)

    assert boards[0].idle_process(row) == 2
    assert boards[0].idle_process(row, {2: 1}) == 2
    assert boards[0].idle_process(row, {2: 2}) is None
    assert boards[0].serving_processes(row) == [1, 2]


def test_requests_that_were_sent_count_before_they_are_read(boards: list[LoadTable], row: int) -> None:
    for table in boards:
        table.note_instances(row, 1)

    assert boards[0].better_process(row, 1, 1, {1: 1}) == 2
    assert boards[0].better_process(row, 1, 1, {1: 1, 2: 1}) is None


def test_a_process_without_instances_gets_no_request(boards: list[LoadTable], row: int) -> None:
    boards[1].note_instances(row, 1)
    boards[0].clear(row, 1)

    assert boards[0].better_process(row, 100, 1) is None


def test_rows_are_empty_when_they_are_used_again(boards: list[LoadTable]) -> None:
    row = boards[0].take_row()
    boards[1].note_instances(row, 1)
    boards[0].free_row(row)
    boards[1].note_requests(row, 7)  # it has not heard yet that the version has ended

    assert boards[0].take_row() == row
    assert boards[0].requests_elsewhere(row) == 0
    assert boards[0].better_process(row, 100, 1) is None


def test_a_table_has_as_many_rows_as_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_table, "_ROWS", 4)
    table = LoadTable.create(2)
    assert [table.take_row() for _ in range(4)] == [0, 1, 2, 3]
    assert os.fstat(table.descriptor).st_size == 2 * 4 * 4 * 2  # two numbers of 4 bytes for each row and process
    last = LoadTable(os.dup(table.descriptor), 2, 1)
    last.note_instances(3, 5)
    assert table.serving_processes(3) == [1]
    last.close()
    table.close()


def test_a_table_is_unmapped() -> None:
    before = {each.name for each in Path("/proc/self/fd").iterdir()}
    table = LoadTable.create(2)
    table.note_requests(table.take_row(), 3)
    table.close()
    assert {each.name for each in Path("/proc/self/fd").iterdir()} <= before
