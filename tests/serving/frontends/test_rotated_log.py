"""SIGHUP makes every process of a server open the log file again."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from serving.frontends.killing import serving
from serving.processes.reaching import connection_of_each
from serving.repositories import repository
from support.server import ServerProcess


def writers(log: Path) -> set[int]:
    """The ids of the processes that wrote the lines of a log."""
    found = (re.match(r"[IWE]\d{4} \S+ (\d+) ", line) for line in log.read_text().splitlines())
    return {int(each.group(1)) for each in found if each is not None}


def test_all_processes_write_to_the_new_file_after_sighup(tmp_path: Path) -> None:
    log, old = tmp_path / "server.log", tmp_path / "server.log.1"
    models = repository(tmp_path / "models", ["identity"])
    with ServerProcess(models, f"--log-file={log}", "--log-verbose=1", "--processes=3", work=tmp_path) as server:
        pids = {each.pid for each in serving(server)}
        assert len(pids) == 3

        def ask_all() -> None:
            with connection_of_each(server) as connections:
                for connection in connections.values():
                    connection.request("GET", "/v2/models/identity/stats")
                    connection.getresponse().read()

        def ask_until_all_have_written(file: Path) -> None:
            def ask() -> bool:
                ask_all()
                return file.exists() and writers(file) >= pids

            server.wait_for(ask, f"lines of all processes in {file.name}")

        ask_until_all_have_written(log)
        log.rename(old)
        os.kill(server.pid, signal.SIGHUP)
        ask_until_all_have_written(log)  # each has reopened it, or would not write there
        size = old.stat().st_size
        for _ in range(5):
            ask_all()
        assert old.stat().st_size == size
