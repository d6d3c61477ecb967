"""Archives become entries of the store once per content, whole or not at all, whoever asks and whoever dies."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from environments import makers

from naiad.core.errors import ExecutionEnvironmentError, OptionError
from naiad.environments.manager import EnvironmentManager

PREPARE = """
import sys
from pathlib import Path
from naiad.environments.manager import EnvironmentManager
class Count:
    unpackings = 0
    def on_progress(self, event):
        self.unpackings += event.step == "unpacking" and event.finished
count = Count()
ready = EnvironmentManager(Path(sys.argv[1]), reporter=count).prepare(Path(sys.argv[2]))
print(count.unpackings, ready.prefix)
"""


def unpackings(recorder) -> int:
    return sum(event.step == "unpacking" and event.finished for event in recorder.events)


def test_the_log_names_an_archive_that_is_unpacked_as_the_reference_does(manager, archive, caplog):
    with caplog.at_level(logging.DEBUG, "naiad.environments"):
        manager.prepare(archive)
        manager.prepare(archive)
    assert caplog.text.count(f"Extracting Python execution env {archive}") == 1


@pytest.fixture
def user(filled, recorder) -> EnvironmentManager:
    """Another server that uses a store where the work is done."""
    return EnvironmentManager(filled, reporter=recorder)


def test_an_archive_becomes_an_environment_that_runs(user, archive, minor):
    ready = user.prepare(archive)

    assert ".".join(map(str, ready.version[:2])) == minor
    assert ready.numpy_version == "0.0.stand-in"
    assert ready.prefix == user.store_root / ready.digest / "env"
    assert makers.run(ready.python, "-c", "import sys; print(sys.prefix)").strip() == str(ready.prefix)


def test_a_second_preparation_reads_and_starts_nothing(user, archive, recorder, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)

    ready = user.prepare(archive)

    assert ready.python.exists()
    assert recorder.events == []


def test_one_content_at_two_paths_is_one_entry(user, archive, tmp_path, recorder):
    copy = shutil.copy(archive, tmp_path / "copy.tgz")

    first, second = user.prepare(archive), user.prepare(Path(copy))

    assert first.prefix == second.prefix
    assert first.digest == second.digest
    assert second.source == tmp_path / "copy.tgz"
    assert unpackings(recorder) == 0


def test_threads_that_ask_at_once_unpack_once(manager, archive, recorder):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(manager.prepare, [archive] * 4))

    assert len(set(found)) == 1
    assert unpackings(recorder) == 1
    assert sum(event.step == "reading" and event.finished for event in recorder.events) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_archive_of_another_user_is_told_how_to_be_shared(archive, tmp_path):
    """conda-pack's archives can be read by their owner alone."""
    script = """
import os
from pathlib import Path
from naiad.environments.store import archive_digest
from naiad.environments.progress import LogReporter
os.setgid(65534), os.setuid(65534)
try:
    archive_digest.digest_of(Path("private.tar.gz"), Path("nowhere"), reporter=LogReporter())
except Exception as error:
    print(error)
"""
    shutil.copy(archive, tmp_path / "private.tar.gz")
    (tmp_path / "private.tar.gz").chmod(0o600)
    tmp_path.chmod(0o755)

    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("cannot read the execution environment private.tar.gz: Permission denied; conda-pack")


@pytest.mark.server
def test_processes_that_ask_at_once_unpack_once(archive, tmp_path):
    command = [sys.executable, "-c", PREPARE, str(tmp_path / "store"), str(archive)]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]

    answers = [process.communicate(timeout=60)[0].split() for process in racing]

    assert sorted(count for count, _ in answers) == ["0", "0", "1"]
    assert len({prefix for _, prefix in answers}) == 1


def test_an_environment_with_bytecode_uses_its_own(user, archive):
    ready = user.prepare(archive)

    assert ready.bytecode is None
    assert ready.environ(os.environ)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_of_several_environments_in_an_archive_none_is_guessed(whole, manager, tmp_path):
    archive = tmp_path / "e.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("envs/one", "envs/two"):
            tar.add(whole, name)

    with pytest.raises(ExecutionEnvironmentError, match="environments are in envs/one, envs/two: name or pack one of "):
        manager.prepare(archive)


def test_a_store_whose_path_cannot_be_in_path_is_refused(tmp_path):
    with pytest.raises(
        OptionError, match="a:b: its path has a ':', which separates the folders in PATH, so that models"
    ):
        EnvironmentManager(tmp_path / "a:b")


def test_an_environment_whose_path_cannot_be_in_path_is_refused(whole, manager, tmp_path):
    shutil.copytree(whole, tmp_path / "a:b", symlinks=True)

    with pytest.raises(ExecutionEnvironmentError, match=r"cannot be used: its path has a ':', .*; rename the folder"):
        manager.prepare(tmp_path / "a:b")


@pytest.mark.server
def test_a_numpy_that_does_not_work_is_not_called_missing(minor, manager, tmp_path):
    prefix = makers.make_environment(tmp_path / "made", minor)
    (prefix / "lib" / f"python{minor}" / "site-packages/numpy/__init__.py").write_text(
        "raise ImportError('libblas.so')"
    )
    archive = makers.pack_plainly(prefix, tmp_path / "e.tar")

    with pytest.raises(
        ExecutionEnvironmentError, match=r"libblas.so.*; it is installed there and does not work: install"
    ):
        manager.prepare(archive)


@pytest.mark.server
def test_remains_of_an_editable_install_are_called_that(minor, manager, tmp_path, caplog):
    prefix = makers.make_environment(tmp_path / "made", minor)
    site = prefix / "lib" / f"python{minor}" / "site-packages"
    (site / "__editable__.shop-1.0.pth").write_text("/srv/somebody/shop/src\n")
    (site / "__editable___tools_1_0_finder.py").write_text("MAPPING = {'tools': '/srv/somebody/tools'}\n")
    (site / "here.pth").write_text(f"{tmp_path}\n")

    with caplog.at_level("WARNING", "naiad.environments"):
        manager.prepare(makers.pack_plainly(prefix, tmp_path / "e.tar"))

    warnings = [record.getMessage() for record in caplog.records]
    assert any(
        "an editable install of 'shop': __editable__.shop-1.0.pth names /srv/somebody/shop/src" in w for w in warnings
    )
    assert any("__editable___tools_1_0_finder.py names /srv/somebody/tools, which is not here" in w for w in warnings)
    assert not any("here.pth" in w for w in warnings)
