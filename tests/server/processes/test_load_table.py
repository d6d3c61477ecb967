"""What processes know of each other's loads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.server.processes.load_table import LoadTable


@pytest.fixture
def boards() -> Iterator[list[LoadTable]]:
    """The boards of three processes, over the same memory."""
    first = LoadTable.create(3)
    made = [first, *(LoadTable(os.dup(first.descriptor), 3, number) for number in (1, 2))]
    yield made
    for table in made:
        table.close()


def test_each_process_reads_the_loads_of_the_others(boards: list[LoadTable]) -> None:
    row = boards[0].take_row()
    for table, requests in zip(boards, (4, 1, 0), strict=True):
        table.note_instances(row, 1)
        table.note_requests(row, requests)

    assert boards[0].better_process(row, 4, 1) == 2
    assert boards[2].better_process(row, 0, 1) is None
    assert [table.requests_elsewhere(row) for table in boards] == [1, 4, 5]


def test_requests_that_were_sent_count_before_they_are_read(boards: list[LoadTable]) -> None:
    row = boards[0].take_row()
    for table in boards:
        table.note_instances(row, 1)

    assert boards[0].better_process(row, 1, 1, {1: 1}) == 2
    assert boards[0].better_process(row, 1, 1, {1: 1, 2: 1}) is None


def test_a_process_without_instances_gets_no_request(boards: list[LoadTable]) -> None:
    row = boards[0].take_row()
    boards[1].note_instances(row, 1)
    boards[0].clear(row, 1)

    assert boards[0].better_process(row, 100, 1) is None


def test_rows_are_empty_when_they_are_used_again(boards: list[LoadTable]) -> None:
    row = boards[0].take_row()
    boards[1].note_instances(row, 1)
    boards[1].note_requests(row, 7)
    boards[0].free_row(row)

    assert boards[0].take_row() == row
    assert boards[0].requests_elsewhere(row) == 0
    assert boards[0].better_process(row, 100, 1) is None


def test_a_table_is_unmapped_once() -> None:
    before = {each.name for each in Path("/proc/self/fd").iterdir()}
    table = LoadTable.create(2)
    table.note_requests(table.take_row(), 3)
    table.close()
    table.close()
    assert {each.name for each in Path("/proc/self/fd").iterdir()} <= before
