"""`naiad top` against real servers: one with its page, others without, none at all."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess, free_ports

from naiad.cli.main import main

ADD_SUB = Path(__file__).parents[3] / "examples" / "add_sub" / "models"
REQUEST = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} for name in ("LEFT", "RIGHT")
    ]
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    work = tmp_path_factory.mktemp("top")
    (work / "password").write_text("a long password\n")
    broken = work / "broken" / "no_code"
    (broken / "1").mkdir(parents=True)
    (broken / "config.pbtxt").write_text('backend: "nosuch"\n')
    options = ("--ui=true", f"--ui-password={work / 'password'}", "--exit-on-error=false")
    with ServerProcess([ADD_SUB, broken.parent], *options, work=work, wait="loaded") as server:
        yield server


@pytest.fixture(autouse=True)
def _no_width(monkeypatch):
    """Processes that run tests side by side have a width in their environment."""
    monkeypatch.delenv("COLUMNS", raising=False)


def top(capsys, *arguments):
    code = main(["top", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_all_figures_are_read_from_a_server_with_its_page(served, capsys):
    password = f"--ui-password={served.work / 'password'}"
    assert served.post("/v2/models/add_sub/infer", REQUEST).status == 200

    def read():
        code, out, err = top(capsys, f"http://{served.http_url}", password, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        return found if all(guest["cpu"] is not None for guest in found["guests"]) else None

    found = served.wait_for(read, "figures of the processes")
    assert [(row["name"], row["state"]) for row in found["models"]] == [
        ("no_code", "UNAVAILABLE"),
        ("add_sub", "READY"),
    ]
    assert "nosuch" in found["models"][0]["reason"]
    (guest,) = (row for row in found["guests"] if row["model"] == "add_sub")
    assert guest["pid"] in {child.pid for child in served.children()}
    assert guest["memory"] > 1 << 20
    assert (guest["state"], guest["restarts"]) == ("ready", 0)
    code, out, _ = top(capsys, served.http_url, password, "--once")
    assert code == 0
    assert "1 model ready, 1 failed" in out
    assert str(guest["pid"]) in out
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    # The tables are as wide as what they contain, and no reason is cut.
    assert len(next(line for line in out.splitlines() if line.startswith("Model "))) < 100
    assert found["models"][0]["reason"] in out


def test_columns_limit_the_width_of_piped_output(served, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    password = f"--ui-password={served.work / 'password'}"
    code, out, _ = top(capsys, served.http_url, password, "--once")
    assert (code, max(map(len, out.splitlines())) <= 70) == (0, True)


def test_a_page_that_needs_a_password_is_told(served, capsys):
    code, _, err = top(capsys, f"http://{served.http_url}", "--once")
    assert (code, err) == (
        1,
        f"cannot read the server at http://{served.http_url}: its page needs a password; add --ui-password=FILE\n",
    )


@pytest.mark.parametrize("end", ["q", "Ctrl-C"])
def test_a_terminal_is_redrawn_and_sorted_by_a_key_until_the_user_ends_it(served, end):
    controller, terminal = pty.openpty()
    settings = termios.tcgetattr(terminal)
    command = [
        Path(sys.executable).with_name("naiad"),
        *("top", served.http_url, f"--ui-password={served.work / 'password'}", "--interval=0.1"),
    ]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        shown = b""
        try:
            while shown.count(b"add_sub_0 of add_sub") < 3:
                shown += os.read(controller, 65536)
            assert b"sort: attention" in shown
            os.write(controller, b"s")
            while "sort: Model ↑".encode() not in shown:
                shown += os.read(controller, 65536)
            if end == "q":
                os.write(controller, b"q")
            else:
                process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # closed by the last process that had it
                while True:  # a terminal that nobody reads blocks its writer
                    os.read(controller, 65536)
            assert process.wait(30) == 0
            assert process.stderr.read() == b""
            assert termios.tcgetattr(controller)[:6] == settings[:6], "the terminal is as it was"
        finally:
            process.kill()
            os.close(controller)


def test_a_page_that_is_not_served_here_is_told(tmp_path, capsys):
    with ServerProcess(ADD_SUB, "--ui=true", work=tmp_path) as server:
        code, _, err = top(capsys, server.http_url, "--once", "--header=X-Forwarded-For:10.0.0.7")
        assert code == 1
        assert "its page is not served to this address; start it with --ui-password=FILE or --ui-address" in err


def test_a_server_without_a_page_is_told_to_have_none(tmp_path, capsys):
    with ServerProcess(ADD_SUB, work=tmp_path) as server:
        for url in (server.http_url, server.metrics_url):
            code, _, err = top(capsys, url, "--once")
            assert code == 1
            problem = "it has no page at /ui, whose figures these are; start it with --ui=true, or name its HTTP port"
            assert err == f"cannot read the server at http://{url}: {problem}\n"
        code, _, err = top(capsys, server.grpc_url)
        assert code == 1
        assert "HTTP status 400 Bad Request: This port speaks HTTP/2" in err


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("http://127.0.0.1:{closed}", 1, "connection refused; start one with `naiad serve`, or name the address"),
        ("http://127.0.0.1:99999999", 2, "is not the address of a server"),
        ("ftp://127.0.0.1", 2, "is not the address of a server; give http://HOST:PORT"),
    ],
)
def test_an_address_without_a_server_is_told(url, code, text, capsys):
    found, out, err = top(capsys, url.format(closed=free_ports(1)[0]))
    assert (found, out) == (code, "")
    assert text in err
    assert len(err.splitlines()) == 1
