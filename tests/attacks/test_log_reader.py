"""Whoever reads the server's log stops reading: everything else goes on, and the log says what it lacks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from serving.written import evaluate, write_model
from support.server import ServerProcess
from support.waiting import until

_BURST = "[print('x' * 1000) for _ in range(12)]"
_CALLS = 40
"""Bursts that together are several times what a pipe of Linux holds, and well below what the server queues."""


class UnreadServer(ServerProcess):
    """A server whose stdout and stderr are a pipe that the test reads, or does not."""

    def __init__(self, work: Path, *options: str) -> None:
        write_model(work / "models", "prints")
        super().__init__(work / "models", *options, work=work, timeout=240)
        self.log_path = work / "pipe"
        os.mkfifo(self.log_path)
        self.reader = os.open(
            self.log_path, os.O_RDWR | os.O_NONBLOCK
        )  # both ways: opening the other end must not wait
        self.received = b""

    @property
    def log(self) -> str:
        return self.received.decode(errors="replace")

    def read(self) -> None:
        """Read what is in the pipe."""
        while True:
            try:
                self.received += os.read(self.reader, 1 << 16)
            except BlockingIOError:
                return


@pytest.fixture
def unread(tmp_path):
    server = UnreadServer(tmp_path, "--guest-log-rate=0")
    try:
        with server:
            yield server
    finally:
        os.close(server.reader)


def test_a_stopped_reader_stops_only_the_log(unread):
    for number in range(_CALLS):
        assert evaluate(unread, "prints", f"print('call {number}') or {_BURST} and {number}")
    assert unread.get("/v2/health/live").status == 200

    def read_to_the_last():
        unread.read()
        return unread.log.count("x" * 1000) == 12 * _CALLS

    until(read_to_the_last, "all lines, once the reader reads on")
    calls = [line for line in unread.log.splitlines() if "] call " in line]
    assert [line.rsplit("call ", 1)[1].rstrip('"') for line in calls] == [str(number) for number in range(_CALLS)]


def test_a_server_whose_log_is_not_read_ends_on_sigterm(unread):
    for _ in range(_CALLS):
        evaluate(unread, "prints", _BURST)
    os.kill(unread.pid, signal.SIGTERM)
    assert unread.wait_exit() == 0


def test_sighup_reopens_the_log_and_the_trace_file(tmp_path):
    repository, log, traces = tmp_path / "models", tmp_path / "log", tmp_path / "traces"
    write_model(repository, "prints")
    with ServerProcess(
        repository,
        f"--log-file={log}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={traces}",
        work=tmp_path,
    ) as server:
        for number in range(2):
            for _ in range(70):
                evaluate(server, "prints", f"print('round {number}')")
            # All of them: one that came later would be in the next file.
            until(lambda text=f"round {number}": log.read_text().count(text) == 70, "the lines of the model")
            until(traces.exists, "the trace file")
            log.rename(f"{log}.{number}")
            traces.rename(f"{traces}.{number}")
            os.kill(server.pid, signal.SIGHUP)
            until(log.exists, "the log file to be created again")
            until(lambda: "SIGHUP: reopened the files" in log.read_text(), "the line about that")
    assert "round 0" not in Path(f"{log}.1").read_text()
    for number in range(2):
        text = Path(f"{traces}.{number}").read_text()
        assert text.startswith("[")
        assert text.endswith("]")
