"""The helper that judges servers must itself notice what it is there to notice."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from support.forked_servers import ForkedServer
from support.server import ServerError, ServerProcess, free_ports
from support.waiting import until

FAKE = textwrap.dedent('''
    """Answers 200 to everything; does one thing more, named by --misdeed."""
    import http.server, signal, subprocess, sys

    options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
    misdeed = options.get("misdeed")
    if misdeed == "ends":
        sys.exit("cannot start: no reason given")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    if misdeed == "leaves":
        print("LEFT BEHIND BY THE ENGINE: plain_0_0: 1 borrowed blocks", flush=True)
    if misdeed == "orphans":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    server = http.server.HTTPServer(("127.0.0.1", int(options["http-port"])), Handler)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if misdeed == "stays" else lambda *_: sys.exit(3))
    server.serve_forever()
''')


@pytest.fixture
def fake(tmp_path):
    program = tmp_path / "fake.py"
    program.write_text(FAKE)

    def make(*options: str, **settings) -> ServerProcess:
        return ServerProcess(tmp_path, *options, work=tmp_path, command=[sys.executable, program], **settings)

    return make


def test_server_that_behaves_is_started_asked_and_ended(fake):
    with fake() as server:
        assert server.get("/anything").json() == {}
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)


def test_server_that_ends_while_starting_is_an_error_with_its_log(fake):
    with (
        pytest.raises(ServerError, match=r"ended with code 1\n--- log\ncannot start: no reason given"),
        fake("--misdeed=ends"),
    ):
        pytest.fail("entered")


def test_process_left_behind_is_an_error_and_is_ended(fake):
    server = fake("--misdeed=orphans", wait="live", grace=0.2)
    with pytest.raises(ServerError, match="left processes behind"), server:
        [orphan] = server.children()
    until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, "the orphan to end")


def test_what_the_engine_still_has_at_the_end_is_an_error(fake):
    with pytest.raises(ServerError, match="plain_0_0: 1 borrowed blocks"), fake("--misdeed=leaves"):
        pass


def test_server_deaf_to_sigterm_is_an_error_and_is_ended(fake):
    server = fake("--misdeed=stays", timeout=2)
    with pytest.raises(ServerError, match="did not end on SIGTERM within 2 s"), server:
        pass
    assert not psutil.pid_exists(server.pid)


def test_a_failure_of_the_test_is_not_hidden_by_one_of_the_server(fake):
    with pytest.raises(ZeroDivisionError), fake("--misdeed=orphans"):
        1 / 0  # noqa: B018


def test_environment_of_the_server_is_kept_apart(fake, tmp_path: Path):
    server = fake(environ={"HOME": None, "MINE": "1"})
    assert server._environ["XDG_CACHE_HOME"] == str(tmp_path / "cache")
    assert "HOME" not in server._environ
    assert server._environ["MINE"] == "1"


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


def test_a_forked_server_that_has_ended_can_be_killed_before_its_end_is_reported(tmp_path, monkeypatch):
    server = ServerProcess(tmp_path, "--model-control-mode=explicit", work=tmp_path)
    server.start()
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(server.pid), "it to end")
    with monkeypatch.context() as patch:
        patch.setattr(ForkedServer, "poll", lambda _: None)
        server._process.kill()
    server.kill()
