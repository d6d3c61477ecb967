"""Many models and servers, one archive: unpacked once, on disk once, kept while it is used, cleaned up after crashes."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import fsspec
import numpy as np
import pytest
from environments.served import ASK, add_model, index, told
from environments.web import serving as web_serving
from support.server import ServerProcess

import naiad
from naiad.core.signatures import create_key, sign
from naiad.environments.progress import LogReporter
from naiad.environments.store.archive_digest import digest_of
from naiad.environments.store.entries import read_entries

NAIAD = Path(sys.executable).with_name("naiad")
BACKEND = """
import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("told", Path(__file__).with_name("told.py"))
_TOLD = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_TOLD)
TritonPythonModel = _TOLD.TritonPythonModel
"""


def disk(folder: Path) -> int:
    """Bytes on disk, a file with several names once."""
    facts = {(f.st_dev, f.st_ino): f.st_size for f in (path.lstat() for path in folder.rglob("*") if not path.is_dir())}
    return sum(facts.values())


def env(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([NAIAD, "env", *map(str, arguments)], capture_output=True, text=True, check=False)


def prefixes(server: ServerProcess, *models: str) -> set[str]:
    return {told(server, model)[0] for model in models}


def server(tmp_path: Path, repository: Path | str, *options: str, **settings) -> ServerProcess:
    work = tmp_path / f"work-{len(list(tmp_path.glob('work-*')))}"
    work.mkdir()
    store = f"--env-store={tmp_path / 'store'}"
    return ServerProcess([repository], store, *options, work=work, timeout=120, **settings)


def unpackings(*servers: ServerProcess) -> int:
    return sum(server.log.count("unpacking the environment") for server in servers)


def test_five_models_of_two_backends_need_the_disk_of_one_environment(serving, tmp_path):
    """Named in five ways: by path, beside the model, by name, pinned, and by a shared backend."""
    archive, _ = serving
    repository, backends, shelf = tmp_path / "models", tmp_path / "backends", tmp_path / "shelf"
    shelf.mkdir()
    os.link(archive, shelf / "numeric.tar.gz")
    digest = digest_of(archive, tmp_path / "index", reporter=LogReporter())
    add_model(repository, "by_path", EXECUTION_ENV_PATH=str(archive))
    add_model(repository, "beside", EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/e.tar.gz")
    shutil.copy(archive, repository / "beside" / "e.tar.gz")
    add_model(repository, "by_name", EXECUTION_ENV_PATH="env://numeric")
    add_model(repository, "pinned", EXECUTION_ENV_PATH=f"env://numeric@sha256:{digest}")
    add_model(repository, "shared")
    (backends / "teller").mkdir(parents=True)
    (repository / "shared" / "1" / "model.py").rename(backends / "teller" / "told.py")
    (backends / "teller" / "model.py").write_text(BACKEND)
    (backends / "teller" / "backend.toml").write_text('environment = "env://numeric"\n')
    config = repository / "shared" / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "python"', 'backend: "teller"'))

    with server(tmp_path, repository, f"--env-directory={shelf}", f"--backend-directory={backends}") as running:
        names = ("by_path", "beside", "by_name", "pinned", "shared")
        assert prefixes(running, *names) == {str(tmp_path / "store" / digest / "env")}
        assert unpackings(running) == 1
        (entry,) = read_entries(tmp_path / "store")
        assert [using.model for using in entry.models] == sorted(names)

    assert disk(tmp_path / "store") < 1.1 * disk(entry.folder / "env")


@pytest.mark.endurance
def test_two_servers_and_eight_models_that_start_at_once_unpack_each_archive_once(serving, tmp_path):
    archive, _ = serving
    shutil.copy(archive, tmp_path / "first.tar.gz")
    # Another archive of the same content but for one byte of its header: another digest.
    second = bytearray(archive.read_bytes())
    second[4] ^= 1
    (tmp_path / "second.tar.gz").write_bytes(second)
    repository = tmp_path / "models"
    for number in range(4):
        for name in ("first", "second"):
            add_model(repository, f"{name}_{number}", EXECUTION_ENV_PATH=str(tmp_path / f"{name}.tar.gz"))

    with ExitStack() as stack:
        servers = [server(tmp_path, repository, "--model-load-thread-count=8") for _ in range(2)]
        for one in servers:
            one.start()
            stack.callback(one.stop)
        for one in servers:
            one.wait_health("ready")
        for one in servers:
            assert len(prefixes(one, *(f"first_{number}" for number in range(4)))) == 1
            assert len(prefixes(one, *(f"second_{number}" for number in range(4)))) == 1
        assert unpackings(*servers) == 2
    assert len(read_entries(tmp_path / "store")) == 2


def test_a_remote_repository_has_an_environment_beside_its_models(serving, tmp_path, caplog):
    """Only the models' directories are copied here; the archive is fetched from beside them, once for all."""
    archive, minor = serving
    for name in ("a", "b"):
        add_model(tmp_path / "models", name, EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/../shared_env.tar.gz")
    storage = fsspec.filesystem("memory")
    storage.put(str(tmp_path / "models"), "/bucket/models", recursive=True)
    storage.put_file(str(archive), "/bucket/models/shared_env.tar.gz")
    flags = [f"--env-store={tmp_path / 'store'}"]
    try:
        with (
            caplog.at_level(logging.INFO, "naiad"),
            naiad.Server(model_repository="memory://bucket/models", flags=flags) as running,
        ):
            answers = [
                next(iter(running.model(name).infer(inputs={"ASKED": np.ones(1, np.int32)}))) for name in ("a", "b")
            ]
            found = [answer.outputs["TOLD"].to_string_array()[:2].tolist() for answer in answers]
    finally:
        storage.rm("/bucket", recursive=True)

    assert found[0] == found[1]
    assert found[0][0].startswith(str(tmp_path / "store"))
    assert found[0][1] == minor
    assert caplog.text.count("downloading the environment memory://bucket/models/shared_env.tar.gz") == 1


@pytest.mark.endurance
def test_a_server_takes_what_it_trusts_from_a_broken_line_and_nothing_else(serving, tmp_path):
    archive, minor = serving
    repository, served = tmp_path / "models", tmp_path / "served"
    served.mkdir()
    for name in ("signed.tar.gz", "unsigned.tar.gz"):
        os.link(archive, served / name)
    public = create_key(tmp_path / "release.pem")
    digest = digest_of(archive, tmp_path / "index", reporter=LogReporter())
    sign(served / "signed.tar.gz", digest, tmp_path / "release.pem")
    (tmp_path / "keys.toml").write_text(f'[[keys]]\nname = "release"\npublic = "{public}"\n')
    with web_serving(served) as web:
        web.drops = [10_000_000, 100_000]
        add_model(repository, "good", EXECUTION_ENV_PATH=web.uri("signed.tar.gz"))
        add_model(repository, "bad", EXECUTION_ENV_PATH=web.uri("unsigned.tar.gz"))
        options = [f"--env-trust={tmp_path / 'keys.toml'}", "--exit-on-error=false"]
        with server(tmp_path, repository, *options, wait="loaded") as running:
            assert told(running, "good")[1] == minor
            assert "is refused: it is not signed (there is no" in index(running)["bad"]["reason"]
            assert running.post("/v2/models/bad/infer", ASK).status != 200
            assert unpackings(running) == 1


def test_a_prefetched_store_serves_without_the_archive_it_came_from(serving, tmp_path):
    archive, minor = serving
    served, repository, store = tmp_path / "served", tmp_path / "models", tmp_path / "store"
    served.mkdir()
    shutil.copy(archive, served / "e.tar.gz")
    with web_serving(served) as web:
        add_model(repository, "m", EXECUTION_ENV_PATH=web.uri("e.tar.gz"))
        fetched = env("prefetch", "--model-repository", repository, "--env-store", store)
        assert fetched.stdout.startswith(f"ready: {web.uri('e.tar.gz')} sha256:"), fetched

    with server(tmp_path, repository) as running:
        assert told(running, "m")[1] == minor
        assert unpackings(running) == 0
