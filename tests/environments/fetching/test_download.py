"""Downloads go on where they stopped, never mix two states of a file, and say why they cannot go on."""

from __future__ import annotations

import base64
import io
import os
import socket
import ssl
import urllib.error
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from environments.web import Web, serving

from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.fetching.download import download, metadata_path, read_small_file, read_version

CONTENT = os.urandom(300_000)


@pytest.fixture
def web(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "e.tgz").write_bytes(CONTENT)
    with serving(tmp_path / "served") as web:
        yield web


def fetch(uri: str, into: Path, recorder, pauses=(0.0, 0.0)) -> bytes:
    download(uri, into, reporter=recorder, pauses=pauses)
    return into.read_bytes()


def refusal(uri: str, into: Path, recorder) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        fetch(uri, into, recorder)
    return caught.value.message


def ranges(web: Web) -> list[str]:
    return [asked for _, asked in web.requests]


def test_a_file_arrives_whole_with_its_progress(web, tmp_path, recorder):
    assert fetch(web.uri("e.tgz"), tmp_path / "d" / "e.part", recorder) == CONTENT
    assert (recorder.events[-1].step, recorder.events[-1].done) == ("downloading", len(CONTENT))
    assert recorder.events[-1].total == len(CONTENT)


def test_a_download_is_resumed_where_its_connection_broke(web, tmp_path, recorder):
    web.drops = [100_000, 50_000]

    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == CONTENT
    assert ranges(web) == ["", "bytes=100000-", "bytes=150000-"]


def test_a_partial_download_of_another_process_is_resumed(web, tmp_path, recorder):
    web.drops = [100_000] + [0] * 3
    refusal(web.uri("e.tgz"), tmp_path / "e.part", recorder)

    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == CONTENT
    assert ranges(web)[-1] == "bytes=100000-"


def test_a_complete_download_is_not_repeated(web, tmp_path, recorder):
    fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder)

    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == CONTENT
    assert ranges(web)[1:] == [f"bytes={len(CONTENT)}-"]


def test_a_file_that_has_changed_is_downloaded_from_the_start(web, tmp_path, recorder):
    web.drops = [100_000] + [0] * 3
    refusal(web.uri("e.tgz"), tmp_path / "e.part", recorder)
    (web.folder / "e.tgz").write_bytes(b"shorter")

    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == b"shorter"


@pytest.mark.parametrize("missing", ["ranges", "tags"])
def test_a_server_that_cannot_resume_sends_the_file_from_the_start(missing, web, tmp_path, recorder):
    setattr(web, missing, False)
    web.drops = [100_000]

    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == CONTENT


def test_a_busy_server_is_tried_again(web, tmp_path, recorder):
    web.statuses = [503, 429]
    assert fetch(web.uri("e.tgz"), tmp_path / "e.part", recorder) == CONTENT


def test_a_server_that_stays_busy_is_given_up(web, tmp_path, recorder):
    web.statuses = [503] * 3
    assert refusal(web.uri("e.tgz"), tmp_path / "e.part", recorder) == (
        f"cannot download {web.uri('e.tgz')}: the server answered 503 Service Unavailable; gave "
        "up after 3 attempts without progress at byte 0; the next load resumes there"
    )


@pytest.mark.parametrize(("status", "said"), [(404, "404 Not Found"), (403, "403 Forbidden")])
def test_a_refusal_is_final_and_keeps_what_is_secret(status, said, web, tmp_path, recorder):
    web.statuses = [status]
    message = refusal(web.uri("e.tgz?signature=secret"), tmp_path / "e.part", recorder)

    assert f"{web.uri('e.tgz')}: the server answered {said}; check the address" in message
    assert "secret" not in message
    assert len(web.requests) == 1


def test_a_refused_connection_is_reported(tmp_path, recorder):
    with serving(tmp_path) as web:
        address = web.uri("e.tgz")
    assert "Connection refused" in refusal(address, tmp_path / "e.part", recorder)


def test_a_small_file_is_read_or_missing(web):
    (web.folder / "e.tgz.sig").write_text("x")
    assert read_small_file(web.uri("e.tgz.sig")) == b"x"
    assert read_small_file(web.uri("nothing")) is None


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/e.tgz", CONTENT)
    yield system
    system.rm("/bucket", recursive=True)


def test_object_stores_are_read_through_fsspec(memory, tmp_path, recorder):
    assert fetch("memory://bucket/e.tgz", tmp_path / "e.part", recorder) == CONTENT
    assert read_small_file("memory://bucket/e.tgz") == CONTENT
    assert read_small_file("memory://bucket/nothing") is None


class Breaking(io.BytesIO):
    """A stream of an object store whose connection breaks once, after its first part."""

    reads: ClassVar[list[int]] = []

    def read(self, size: int | None = -1) -> bytes:
        self.reads.append(self.tell())
        if len(self.reads) == 2:
            raise ConnectionResetError("gone")
        return super().read(100_000 if len(self.reads) == 1 else size)


def test_a_download_from_an_object_store_is_resumed(memory, tmp_path, recorder, monkeypatch):
    monkeypatch.setattr(Breaking, "reads", [])
    monkeypatch.setattr(type(memory), "_open", lambda *_, **__: Breaking(CONTENT))

    assert fetch("memory://bucket/e.tgz", tmp_path / "e.part", recorder) == CONTENT
    assert Breaking.reads == [0, 100_000, 100_000, 300_000]


def test_a_partial_download_longer_than_its_file_is_not_resumed(memory, tmp_path, recorder):
    part = tmp_path / "e.part"
    fetch("memory://bucket/e.tgz", part, recorder)
    with part.open("ab") as file:
        file.write(b"what another reader of the same connection made come twice")
    assert metadata_path(part).exists()

    assert fetch("memory://bucket/e.tgz", part, recorder) == CONTENT


def test_asking_for_its_version_opens_no_file_of_an_object_store(memory, monkeypatch):
    version = read_version("memory://bucket/e.tgz")
    monkeypatch.setattr(type(memory), "_open", lambda *_, **__: pytest.fail("opened"))

    assert version
    assert read_version("memory://bucket/e.tgz") == version


def test_a_folder_of_an_object_store_is_refused(memory, tmp_path, recorder):
    assert refusal("memory://bucket", tmp_path / "e.part", recorder).startswith(
        "cannot use the execution environment memory://bucket: it is a folder, and only archives can be downloaded"
    )


def test_a_missing_object_and_an_unknown_scheme_are_named(tmp_path, recorder):
    assert "memory://bucket/no.tgz: not found" in refusal("memory://bucket/no.tgz", tmp_path / "e.part", recorder)
    assert "no driver of fsspec knows its scheme" in refusal("nosuch://x/e.tgz", tmp_path / "e.part", recorder)


def test_possible_secrets_are_not_shown():
    assert redact("https://me:word@host/e.tgz?X-Signature=1#f") == "https://host/e.tgz"
    assert redact("s3://bucket/e.tgz") == "s3://bucket/e.tgz"
    assert str(EnvironmentSource(uri="https://host/e.tgz?key=1", digest="ab")) == "https://host/e.tgz@sha256:ab"


@pytest.mark.parametrize(
    "reason",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate"),
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    ],
)
def test_a_wrong_name_or_certificate_fails_at_once(tmp_path, recorder, monkeypatch, reason):
    attempts = []

    def refuse(*_, **__):
        attempts.append(1)
        raise urllib.error.URLError(reason)

    monkeypatch.setattr("urllib.request.urlopen", refuse)

    message = refusal("https://example.invalid/e.tgz", tmp_path / "e.part", recorder)

    assert len(attempts) == 1
    assert message.startswith("cannot download https://example.invalid/e.tgz: ")
    assert message.endswith("; check the address, and the certificates and the network of this machine")


def test_a_handshake_that_breaks_is_tried_again(tmp_path, recorder, monkeypatch, caplog):
    attempts = []

    def refuse(*_, **__):
        attempts.append(1)
        raise urllib.error.URLError(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))

    monkeypatch.setattr("urllib.request.urlopen", refuse)

    assert "gave up after" in refusal("https://example.invalid/e.tgz", tmp_path / "e.part", recorder)
    assert len(attempts) > 1
    # Nothing was received, so nothing is resumed.
    assert "downloading https://example.invalid/e.tgz failed: EOF occurred" in caplog.text
    assert "resuming" not in caplog.text


def test_a_page_in_place_of_an_archive_is_named_as_such(tmp_path, manager):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "e.tgz").write_text("\n<!DOCTYPE html><title>Log in</title>")
    with serving(tmp_path / "served") as web, pytest.raises(ExecutionEnvironmentError) as caught:
        manager.prepare(EnvironmentSource(uri=web.uri("e.tgz")))

    assert caught.value.message == (
        f"cannot use the execution environment {web.uri('e.tgz')}: the server sent a web page, not an archive; check "
        "the address, and whether it needs a login"
    )


def test_a_user_and_a_password_in_an_address_are_a_login(web, tmp_path, recorder):
    web.login = f"Basic {base64.b64encode(b'ann:a/b@c').decode()}"
    address = web.uri("e.tgz").replace("http://", "http://ann:a%2Fb%40c@")

    assert fetch(address, tmp_path / "e.part", recorder) == CONTENT
    assert "ann" not in metadata_path(tmp_path / "e.part").read_text()
    wrong = refusal(address.replace("ann", "bob"), tmp_path / "f.part", recorder)
    assert "the server answered 401" in wrong
    assert "bob" not in wrong
