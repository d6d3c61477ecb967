"""The queue of the log: bounded, in order, and never in the way of a caller."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading

import pytest
from support.waiting import until

from naiad.core import log_writer
from naiad.core.log_writer import FileDestination, LogWriter
from naiad.core.logs import LogSettings, configure

log = logging.getLogger("naiad.test")


class Reader:
    """A destination that takes lines when the test lets it, and fails when the test says so."""

    def __init__(self):
        self.text = b""
        self.may_take = threading.Event()
        self.problem = None
        self.room = None
        self.is_closed = False

    def write(self, data):
        assert self.may_take.wait(60)
        if self.problem is not None:
            raise self.problem
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        piece = bytes(data[: self.room])
        self.text += piece
        if self.room is not None:
            self.room -= len(piece)
        return len(piece)

    def reopen(self):
        if self.problem is not None:
            raise self.problem

    def close(self):
        self.is_closed = True

    def __str__(self):
        return "the reader"

    @property
    def lines(self):
        return self.text.decode().splitlines()


def report(text):
    return f"REPORT {text}\n".encode()


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def writer(reader):
    writer = LogWriter(reader, report)
    yield writer
    reader.may_take.set()
    writer.close()


def test_lines_are_written_in_order_and_all_of_them_at_the_end(reader, writer):
    for number in range(5000):
        writer.put(b"%d\n" % number, urgent=False)
    reader.may_take.set()
    writer.close()
    assert reader.lines == [str(number) for number in range(5000)]
    assert reader.is_closed


def test_dropped_lines_are_counted_where_they_are_missing(reader, writer, monkeypatch):
    monkeypatch.setattr(log_writer, "_MAX_QUEUED", 1000)
    for number in range(30):
        writer.put(b"%099d\n" % number, urgent=False)
    reader.may_take.set()
    assert writer.flush()
    writer.put(b"last\n", urgent=False)
    assert writer.flush()
    *kept, said, last = reader.lines
    assert [int(line) for line in kept] == list(range(10))
    assert said == "REPORT 20 lines of the log were dropped: the reader was not read fast enough"
    assert last == "last"


def test_errors_find_room_that_other_lines_do_not(reader, writer, monkeypatch):
    monkeypatch.setattr(log_writer, "_MAX_QUEUED", 1000)
    for _ in range(20):
        writer.put(b"x" * 99 + b"\n", urgent=False)
    writer.put(b"it burns\n", urgent=True)
    reader.may_take.set()
    assert writer.flush()
    assert reader.lines[-2:] == [
        "REPORT 10 lines of the log were dropped: the reader was not read fast enough",
        "it burns",
    ]


def test_a_line_longer_than_the_queue_is_written(reader, writer, monkeypatch):
    monkeypatch.setattr(log_writer, "_MAX_QUEUED", 10)
    writer.put(b"x" * 100 + b"\n", urgent=False)
    reader.may_take.set()
    writer.close()
    assert reader.lines == ["x" * 100]


def test_closing_gives_up_on_a_reader_that_takes_nothing(reader, writer, monkeypatch):
    monkeypatch.setattr(log_writer, "_STALL_SECONDS", 0.05)
    writer.put(b"line\n", urgent=True)
    writer.close()
    assert not reader.lines
    reader.may_take.set()
    until(lambda: reader.is_closed, "the thread to end when its reader continues")
    assert reader.lines == ["line"]


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_full_disk_loses_lines_and_writes_one_that_counts_them(reader, is_direct):
    writer = LogWriter(reader, report, is_direct=is_direct)
    reader.may_take.set()
    for number in range(3):
        writer.put(b"before %d\n" % number, urgent=False)
    until(lambda: reader.text.count(b"\n") == 3, "the first lines")
    reader.room = 5
    for number in range(4):
        writer.put(b"while full %d\n" % number, urgent=False)
        until(lambda: reader.room == 0, "the disk to be full")
        assert writer.flush()
    reader.room = None
    writer.put(b"after\n", urgent=False)
    writer.close()
    assert reader.lines == [
        "before 0",
        "before 1",
        "before 2",
        "while",
        "REPORT 4 lines of the log are missing here: No space left on device",
        "after",
    ]


def test_a_file_that_cannot_be_written_is_reported_once_on_stderr(capsys):
    with configure(LogSettings(file="/dev/full"), is_queued=True):
        for _ in range(100):
            log.info("no room for this")
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "cannot write the log /dev/full: No space left on device; lines are dropped until it can be written" in said


@pytest.mark.parametrize("is_queued", [False, True])
def test_reopening_creates_the_file_that_was_renamed(tmp_path, is_queued):
    path = tmp_path / "log"
    with configure(LogSettings(file=path), is_queued=is_queued) as active:
        log.info("one")
        until(lambda: "one" in path.read_text(), "the first line")
        path.rename(tmp_path / "old")
        active.reopen()
        log.info("two")
    assert "one" in (tmp_path / "old").read_text()
    assert "two" in path.read_text()
    assert "one" not in path.read_text()


def test_a_file_that_cannot_be_reopened_stays_in_use(reader, writer):
    reader.may_take.set()
    destination = reader
    writer.put(b"one\n", urgent=False)
    assert writer.flush()
    destination.reopen = lambda: (_ for _ in ()).throw(PermissionError(errno.EACCES, "Permission denied"))
    writer.reopen()
    until(lambda: len(reader.lines) == 2, "the report")
    assert reader.lines[1] == (
        "REPORT cannot reopen the log the reader: Permission denied; the file that was open stays in use"
    )


def test_a_message_that_cannot_be_formatted_is_one_line(tmp_path):
    path = tmp_path / "log"
    with configure(LogSettings(file=path), is_queued=True):
        log.info("%d apples", "many")
    assert path.read_text().count("\n") == 1
    assert "cannot format '%d apples' % ('many',)" in path.read_text()


def test_lines_of_several_threads_stay_whole(tmp_path):
    path = tmp_path / "log"
    with configure(LogSettings(file=path, escape=False), is_queued=True):
        threads = [
            threading.Thread(target=lambda letter=letter: [log.info(letter * 300) for _ in range(200)])
            for letter in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    texts = [line.partition("] ")[2] for line in path.read_text().splitlines()]
    assert sorted(set(texts)) == [letter * 300 for letter in "abcd"]
    assert len(texts) == 800


_DIES = """
import logging, os, sys
from pathlib import Path
from naiad.core.logs import LogSettings, configure
log = logging.getLogger("naiad.test")
with configure(LogSettings(file=Path(sys.argv[1])), is_queued=True):
    for number in range(1000):
        log.info("line %d", number)
    {}
"""


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise ValueError('an error of ours')"])
def test_nothing_is_lost_when_the_process_ends_by_an_error(tmp_path, end):
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", _DIES.format(end), path], capture_output=True, check=False)
    assert done.returncode in {1, 3}
    assert path.read_text().count("\n") == 1000


def test_a_forked_process_writes_its_own_lines_itself(tmp_path):
    program = _DIES.format(
        """
    pid = os.fork()
    log.info("from %s", "the child" if pid == 0 else "the parent")
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""
    )
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert text.count("from the child") == 1
    assert text.count("from the parent") == 1
    assert text.count("line 999") == 1


def test_a_process_ends_although_its_stderr_is_not_read():
    """The reader is stopped and its pipe is full: the end is neither blocked nor an abort of the interpreter."""
    program = """
import logging, sys
from naiad.core import log_writer
from naiad.core.logs import LogSettings, configure
log_writer._STALL_SECONDS = 0.1
with configure(LogSettings(), is_queued=True):
    for number in range(5000):
        logging.getLogger("naiad.test").info("line %d", number)
print("done")
"""
    ours, theirs = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_a_file_is_opened_for_appending_and_not_inherited(tmp_path):
    destination = FileDestination(tmp_path / "log")
    try:
        (tmp_path / "log").write_text("before\n")
        assert destination.write(memoryview(b"after\n")) == 6
        assert (tmp_path / "log").read_text() == "before\nafter\n"
    finally:
        destination.close()
