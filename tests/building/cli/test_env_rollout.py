"""`naiad env rollout`: a shared archive is replaced, its models reloaded, and all of it undone if one fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from naiad.cli.commands import naiad_group


class FakeServer:
    """Answers as a server in explicit mode; remembers with which archive each model was loaded."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.loaded = {"a": b"old", "b": b"old"}
        self.loads: list[tuple[str, bytes]] = []
        self.fails: tuple[str, bytes] = ("", b"")
        self.headers: set[str | None] = set()
        self.url = ""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server beside an archive `env://e` that models `a`, `b` and `c` use; `c` is not loaded."""
    for name, environment in (("a", "env://e"), ("b", "env://e"), ("c", "env://e"), ("other", "env://other")):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.py").write_text("")
        value = f'{{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
        (tmp_path / "models" / name / "config.pbtxt").write_text(f'backend: "python"\nparameters {value}\n')
    (tmp_path / "envs").mkdir()
    for name, content in (("envs/e.tar.gz", b"old"), ("envs/other.tar", b"x"), ("new.tar.zst", b"new")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "new.tar.zst.sig").write_bytes(b"signature of the new one")
    monkeypatch.setattr("naiad.environments.manager.EnvironmentManager.prepare", lambda *_: None)
    fake = FakeServer(tmp_path / "envs" / "e.tar.gz")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            fake.headers.add(self.headers["x-admin"])
            if self.path == "/v2/repository/index":
                return self._answer(200, [{"name": name, "version": "1", "state": "READY"} for name in fake.loaded])
            model, content = self.path.split("/")[-2], fake.archive.read_bytes()
            if (model, content) == fake.fails:
                return self._answer(400, {"error": "load failed for model 'b': no numpy"})
            fake.loads.append((model, content))
            return self._answer(200, None)

        def _answer(self, status: int, document: object) -> None:
            body = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        fake.url = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        listening.shutdown()
        thread.join()


def rollout(server: FakeServer, *arguments: object) -> Result:
    root = server.archive.parents[1]
    flags = [f"--env-directory={root / 'envs'}", f"--model-repository={root / 'models'}", f"--env-store={root / 's'}"]
    return CliRunner().invoke(naiad_group, ["env", "rollout", "e", *map(str, arguments), *flags], standalone_mode=False)


def new(server: FakeServer) -> Path:
    return server.archive.parents[1] / "new.tar.zst"


def test_the_models_of_an_archive_are_reloaded_and_it_can_be_put_back(server):
    found = rollout(server, new(server), f"--url={server.url}/", "--header=x-admin: key")

    assert found.output.splitlines() == [
        f"{server.archive} is used by a, b, c",
        f"replaced {server.archive}; `naiad env rollout --back` puts the old archive back",
        f"reloaded 'a' at {server.url}",
        f"reloaded 'b' at {server.url}",
        f"'c' is not loaded at {server.url}",
    ]
    assert server.loads == [("a", b"new"), ("b", b"new")]
    assert server.headers == {"key"}
    signature = Path(f"{server.archive}.sig")
    assert signature.read_bytes() == b"signature of the new one"

    assert "put the previous archive back" in rollout(server, "--back", f"--url={server.url}").output

    assert server.loads[2:] == [("a", b"old"), ("b", b"old")]
    assert not signature.exists()
    rollout(server, "--back")
    assert (server.archive.read_bytes(), signature.exists()) == (b"new", True)


def test_a_model_that_fails_takes_the_others_back_to_the_old_archive(server):
    server.fails = ("b", b"new")

    found = rollout(server, new(server), f"--url={server.url}")

    assert str(found.exception) == (
        f"{server.url}: load failed for model 'b': no numpy; the old archive is back, and no model uses the new one"
    )
    assert server.loads == [("a", b"new"), ("a", b"old")]
    assert server.archive.read_bytes() == b"old"
    assert "next: load these models again; servers in poll mode do so" in rollout(server, new(server)).output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name the new ARCHIVE, or give --back"),
        (["--back"], "there is no previous archive"),
        (["{new}", "--header=x"], "'x' is not a header: give NAME:VALUE"),
        (["{new}", "--url=http://127.0.0.1:9"], "cannot reach the server at http://127.0.0.1:9: "),
    ],
)
def test_what_cannot_be_rolled_out_is_refused_and_changes_nothing(server, arguments, text):
    found = rollout(server, *(each.format(new=new(server)) for each in arguments))

    assert text in str(found.exception)
    assert server.archive.read_bytes() == b"old"
    assert server.loads == []


def test_a_pinned_archive_and_a_directory_are_refused_and_nothing_is_changed_to_look(server):
    assert rollout(server, "--dry-run").output == f"{server.archive} is used by a, b, c\n"
    config = server.archive.parents[1] / "models" / "c" / "config.pbtxt"
    config.write_text(config.read_text().replace("env://e", f"env://e@sha256:{'0' * 64}"))
    assert "model 'c' pins its content with @sha256:000" in str(rollout(server, new(server)).exception)
    server.archive.unlink()
    (server.archive.parent / "e").mkdir()
    assert "is a directory, and only archives are replaced as a whole" in str(rollout(server, new(server)).exception)
