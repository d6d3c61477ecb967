"""Environments that lie elsewhere are brought once, kept to what they were, and used without network after that."""

from __future__ import annotations

import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from environments import makers
from environments.makers import member, write_tar
from environments.web import serving
from support.waiting import until

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.fetching import download
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.store.archive_digest import digest_of


@pytest.fixture
def web(archive, tmp_path):
    (tmp_path / "served").mkdir()
    os.link(archive, tmp_path / "served" / "e.tar")
    with serving(tmp_path / "served") as web:
        yield web


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0))


def refusal(manager: EnvironmentManager, source: EnvironmentSource) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        manager.prepare(source)
    return caught.value.message


def other(folder: Path) -> Path:
    return write_tar(folder / "e.tar", [(member("README"), b"x")])


def test_a_remote_archive_becomes_an_environment_and_is_kept_once(manager, web, archive, recorder, caplog):
    """On a connection that breaks, with the permissions of the archive, and without a copy of the download."""
    web.drops = [1_000_000]
    with caplog.at_level(logging.WARNING):
        ready = manager.prepare(EnvironmentSource(uri=web.uri("e.tar")), label="m")

    digest = digest_of(archive, manager.store_root / "index", reporter=recorder)
    assert makers.run(ready.python, "-c", "import sys; print(sys.prefix)").strip() == str(ready.prefix)
    assert ready.digest == digest
    assert str(ready.source) == web.uri("e.tar")
    assert f"name it {web.uri('e.tar')}@sha256:{digest}" in caplog.text
    assert not list((manager.store_root / "downloads").glob("*.part*"))


def test_a_second_preparation_needs_no_network(manager, web):
    source = EnvironmentSource(uri=web.uri("e.tar"))
    first = manager.prepare(source)
    asked = len(web.requests)

    assert manager.prepare(source) == first
    assert len(web.requests) == asked


def test_a_pinned_archive_that_is_in_the_store_already_needs_no_network(filled, recorder, archive):
    digest = digest_of(archive, filled / "index", reporter=recorder)
    manager = EnvironmentManager(filled, reporter=recorder)

    assert manager.prepare(EnvironmentSource(uri="https://nowhere.invalid/e.tar", digest=digest)).digest == digest


def test_an_archive_with_another_digest_than_the_pinned_one_is_refused(manager, web, recorder):
    message = refusal(manager, EnvironmentSource(uri=web.uri("e.tar"), digest="0" * 64))

    assert message.startswith(
        f"the execution environment {web.uri('e.tar')} is refused: it has changed, its SHA-256 is "
    )
    assert message.endswith(
        f"the model or environments.lock pins {'0' * 64}; put back the pinned archive, or pin the digest of this one"
    )
    assert not any(event.step == "unpacking" for event in recorder.events)
    assert not list((manager.store_root / "downloads").glob("*.part*"))


def test_a_uri_with_other_content_than_at_first_is_refused_until_the_new_digest_is_accepted(manager, web):
    source = EnvironmentSource(uri=web.uri("e.tar"))
    entry = manager.prepare(source).prefix.parent
    # The store was cleaned up, and the file there replaced.
    entry.rename(entry.with_name("gone"))
    (web.folder / "e.tar").unlink()
    other(web.folder)

    assert f"naiad env prefetch --accept-changed {web.uri('e.tar')}" in refusal(manager, source)

    manager.accept_changed(web.uri("e.tar"))
    assert "has no interpreter" in refusal(manager, source)


def test_a_uri_whose_content_changed_is_reported_although_the_first_content_is_used(manager, web, recorder, caplog):
    """A new store would use the other content: servers with this one must not differ from it in silence."""
    source = EnvironmentSource(uri=web.uri("e.tar"))
    ready = manager.prepare(source)
    assert manager.explain_changed(source) == ""
    (web.folder / "e.tar").unlink()
    other(web.folder)

    changed = manager.explain_changed(source)

    assert changed.startswith(f"the execution environment {web.uri('e.tar')} has changed since its first use with this")
    assert f"`naiad env prefetch --accept-changed {web.uri('e.tar')}`" in changed
    server = EnvironmentManager(manager.store_root, reporter=recorder, policy=StorePolicy(reports_changed=True))
    assert server.prepare(source) == ready
    until(lambda: "has changed since its first use" in caplog.text, "the server's warning")
    assert manager.explain_changed(EnvironmentSource(uri=web.uri("e.tar"), digest="0" * 64)) == ""


def test_a_server_that_requires_digests_refuses_archives_without_one(tmp_path, recorder):
    manager = EnvironmentManager(tmp_path / "store", reporter=recorder, policy=StorePolicy(require_digest=True))

    assert refusal(manager, EnvironmentSource(uri="https://nowhere.invalid/e.tar")) == (
        "the execution environment https://nowhere.invalid/e.tar is refused: it has no digest, and this server "
        "requires one (--env-require-digest); append @sha256: and the digest that `sha256sum` prints"
    )


def test_an_unusable_archive_is_not_remembered(manager, web):
    (web.folder / "e.tar").unlink()
    other(web.folder)
    refusal(manager, EnvironmentSource(uri=web.uri("e.tar")))

    assert not list((manager.store_root / "remote").glob("*")) if (manager.store_root / "remote").exists() else True


def test_threads_that_need_one_uri_download_it_once(manager, web):
    source = EnvironmentSource(uri=web.uri("e.tar"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(manager.prepare, [source] * 4))

    assert len({ready.prefix for ready in found}) == 1
    assert len(web.requests) == 1


def test_a_local_archive_with_another_digest_than_the_pinned_one_is_refused(manager, archive):
    with pytest.raises(ExecutionEnvironmentError, match=f"its SHA-256 is [0-9a-f]+, pinned is {'0' * 64}"):
        manager.prepare(EnvironmentSource(path=archive, digest="0" * 64))


def test_a_directory_cannot_be_pinned(manager, whole):
    with pytest.raises(
        ExecutionEnvironmentError, match="is a directory, and only archives have digests and signatures"
    ):
        manager.prepare(EnvironmentSource(path=whole, digest="0" * 64))


@pytest.mark.server
def test_an_archive_in_a_models_own_repository_is_downloaded_again_only_when_it_has_changed(
    manager, web, whole, tmp_path
):
    source = EnvironmentSource(uri=web.uri("e.tar"), is_mutable=True)
    first = manager.prepare(source)
    assert manager.prepare(source) == first
    changed = shutil.copytree(whole, tmp_path / "changed", symlinks=True, copy_function=os.link)
    (changed / "more.txt").write_text("more")
    (web.folder / "e.tar").unlink()
    makers.pack_plainly(changed, web.folder / "e.tar")

    second = manager.prepare(source)

    assert second.digest != first.digest
    assert (second.prefix / "more.txt").exists()
    # A look and the archive, a look, a look and the archive.
    assert len(web.requests) == 5
