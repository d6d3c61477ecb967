"""What a guest prints: whole lines, at a limited rate, in short steps, with what was dropped counted."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace

import pytest
from fakes.clock import turns
from support.waiting import until_async

from naiad.guests import output
from naiad.guests.output import GuestLog, LineReader, TokenBucket, describe_dropped


class Output:
    """A pipe of a guest, and what was made of it."""

    def __init__(self, rate=0):
        self.lines, self.dropped = [], []
        loop = asyncio.get_running_loop()
        self.log = GuestLog(rate, lambda lines, size: self.dropped.append((lines, size)), loop)
        ours, self.write_end = os.pipe()
        self.reader = LineReader(os.fdopen(ours, "rb", 0), self.lines.append, self.log, loop)

    def write(self, data):
        while data:
            data = data[os.write(self.write_end, data) :]

    def end(self):
        os.close(self.write_end)
        self.reader.close()
        self.log.close()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\ntw", b"o"], ["one", "two"]),
        ([b"\n\nafter empty lines\n"], ["", "", "after empty lines"]),
        ([b"windows\r\n"], ["windows"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b""], []),
    ],
)
async def test_lines_are_passed_on_whole(parts, expected):
    out = Output()
    for part in parts:
        if part:
            out.write(part)
            await asyncio.sleep(0.001)
    out.end()
    await until_async(lambda: len(out.lines) == len(expected))
    assert (out.lines, list(out.reader.last_lines)) == (expected, expected)


@pytest.mark.parametrize("has_end", [True, False])
async def test_a_long_line_is_cut_with_a_note_and_the_next_line_is_whole(has_end):
    out = Output()
    long = b"x" * 30_000
    out.write(long)
    await until_async(lambda: out.lines)
    out.write(long + (b"\nnext\n" if has_end else b""))
    out.end()
    cut = "x" * 16384 + " ... [the line is cut after 16384 bytes]"
    assert out.lines == ([cut, "next"] if has_end else [cut])


async def test_many_lines_are_passed_on_in_short_steps():
    out = Output()
    out.write(b"x\n" * 4000)
    most, before = 0, 0
    turn = asyncio.Event()
    while len(out.lines) < 4000:
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()
        turn.clear()
        most, before = max(most, len(out.lines) - before), len(out.lines)
    out.end()
    assert most <= 2 * output._LINES_A_TURN


@pytest.mark.parametrize("first", [49, 50, 51, 99, 100, 150, 200])
async def test_lines_are_passed_on_whatever_number_came_before_them(first):
    """After 100 lines, those of the next turn waited for ever, and the reader asked for them in every turn of the loop."""
    log, passed = GuestLog(0, lambda lines, size: None, asyncio.get_running_loop()), []
    for number in range(first):
        log.put(1, passed.append, number)
    await turns(first // 50 + 1)
    for number in range(first, first + 60):
        log.put(1, passed.append, number)
    await turns(5)
    assert not log.has_backlog
    assert passed == list(range(first + 60))


async def test_lines_beyond_the_rate_are_counted_and_the_last_ones_kept_for_the_exit_report():
    out = Output(rate=10)
    out.write(b"".join(b"%d\n" % number for number in range(5000)))
    await until_async(lambda: out.reader.last_lines and out.reader.last_lines[-1] == "4999")
    out.end()
    assert 100 <= len(out.lines) <= 200, "the burst, and what a slow machine adds to it"
    assert out.lines == [str(number) for number in range(len(out.lines))] or int(out.lines[-1]) > len(out.lines)
    assert sum(lines for lines, _ in out.dropped) == 5000 - len(out.lines)
    assert list(out.reader.last_lines) == [str(number) for number in range(4980, 5000)]


def test_long_lines_count_for_more():
    bucket = TokenBucket(1, now=0)
    assert bucket.take(8, now=0)
    assert bucket.take(8, now=0), "what is there is enough to begin with"
    assert not bucket.take(1, now=0)
    assert bucket.is_empty(now=6.9)
    assert bucket.take(1, now=7)


def test_the_bucket_holds_ten_seconds_and_no_more():
    bucket = TokenBucket(5, now=0)
    assert sum(bucket.take(1, now=1000) for _ in range(100)) == 50


async def test_a_guest_whose_lines_are_dropped_does_not_wait():
    out = Output(rate=1)
    program = "import os; os.write(1, b'x\\n' * 2_000_000); os.write(1, b'last\\n')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=out.write_end)
    await process.wait()
    out.end()
    assert out.reader.last_lines[-1] == "last"
    assert sum(lines for lines, _ in out.dropped) + len(out.lines) == 2_000_001


async def test_dropped_lines_are_reported_while_more_are_dropped(monkeypatch):
    monkeypatch.setattr(output, "_REPORT_SECONDS", 0.01)
    out = Output(rate=1)
    for _ in range(2):
        out.write(b"x\n" * 100)
        reports = len(out.dropped)
        await until_async(lambda reports=reports: len(out.dropped) > reports)
    out.end()
    assert sum(lines for lines, _ in out.dropped) == 200 - len(out.lines)


async def test_a_process_that_never_stops_writing_does_not_delay_the_exit():
    out = Output(rate=1)
    process = await asyncio.create_subprocess_exec("yes", stdout=out.write_end)
    try:
        await until_async(lambda: out.lines)
        out.reader.close()
        out.log.close()
    finally:
        process.kill()
        await process.wait()
        os.close(out.write_end)


def test_dropped_lines_are_described_with_the_way_to_see_them():
    assert describe_dropped(12, 345, 1000) == (
        "12 lines (345 bytes) of its output were dropped: more than 1000 a second (--guest-log-rate)"
    )


class Loop:
    """A loop that a test turns by hand."""

    def __init__(self):
        self.soon, self.timers = [], []

    def call_soon(self, function):
        self.soon.append(function)

    def call_later(self, delay, function):
        self.timers.append([delay, function])
        return SimpleNamespace(cancel=lambda timer=self.timers[-1]: timer.clear())

    def turn(self):
        now, self.soon = self.soon, []
        for function in now:
            function()


def test_lines_that_wait_are_few_in_bytes_and_those_beyond_are_reported_once(monkeypatch):
    monkeypatch.setattr(output, "_MAX_WAITING", 1000)
    loop, passed, dropped = Loop(), [], []
    log = GuestLog(0, lambda *counts: dropped.append(counts), loop)
    assert all(log.put(1, passed.append, number) for number in range(50))
    assert (len(passed), log.has_backlog, log.is_dropping) == (50, False, False)
    kept = [log.put(100, passed.append, number) for number in range(50, 60)]
    assert kept == [True] * 4 + [False] * 6, "each costs 300 bytes, and 1000 may wait"
    log.drop(2, 50)
    assert (dropped, [delay for delay, _ in loop.timers]) == ([], [1.0])
    loop.turn()
    assert passed == list(range(54))
    assert log.put(100, passed.append, 54), "there is room again"
    loop.timers.pop()[1]()
    assert dropped == [(8, 650)]
    log.drop(1, 5)
    log.close()
    assert (dropped, loop.timers) == ([(8, 650), (1, 5)], [[]])
    log.close()
    assert len(dropped) == 2


def test_at_the_end_most_lines_are_passed_on_at_once_and_the_others_in_turns(monkeypatch):
    monkeypatch.setattr(output, "_LINES_AT_END", 30)
    loop, passed = Loop(), []
    log = GuestLog(0, lambda *_: None, loop)
    for number in range(150):
        log.put(1, passed.append, number)
    log.close()
    assert len(passed) == 80
    for count in (130, 150, 150):
        loop.turn()
        assert len(passed) == count
    assert (passed, log.has_backlog) == (list(range(150)), False)
    loop.turn()
    assert loop.soon == []
