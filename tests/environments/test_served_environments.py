"""Environments as a server's users meet them: models answer under the Python they brought, or say why they cannot."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from environments.makers import member, write_tar
from environments.served import ASK, OWN_MINOR, add_model, index, told
from support.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ELF_FOR_ARM = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + (183).to_bytes(2, "little") + bytes(100)


def test_models_that_share_an_archive_unpack_it_once_and_answer_under_its_python(serving, tmp_path):
    """By an absolute path, and by one that begins at the model's own folder; a second start unpacks nothing."""
    archive, minor = serving
    repository = tmp_path / "models"
    add_model(repository, "host")
    add_model(repository, "first", EXECUTION_ENV_PATH=str(archive))
    add_model(repository, "second", EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/environment.tar.gz")
    shutil.copy(archive, repository / "second" / "environment.tar.gz")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "of_the_host.py").write_text("")
    settings = {"work": tmp_path, "timeout": 120, "environ": {"PYTHONPATH": str(tmp_path / "extra")}}

    with ServerProcess(repository, f"--env-store={tmp_path / 'store'}", **settings) as server:
        answers = {name: told(server, name) for name in ("host", "first", "second")}
        log = server.log

    assert answers["host"] == [sys.prefix, OWN_MINOR, np.__version__, "clean"]
    assert answers["first"] == answers["second"]
    assert answers["first"][1] == minor
    assert answers["first"][3] == "clean"
    assert Path(answers["first"][0]).is_relative_to(tmp_path / "store")
    assert log.count("unpacking the environment") == 1
    assert not list(repository.rglob("__pycache__"))

    with ServerProcess(repository, f"--env-store={tmp_path / 'store'}", **settings) as server:
        assert told(server, "first") == answers["first"]
        assert "unpacking the environment" not in server.log


def broken_environments(folder: Path, good: Path) -> dict[str, tuple[dict[str, str], str]]:
    """A model's parameters and the reason it must give, by the model's name."""

    def archive(name: str, *members: tarfile.TarInfo, content: bytes = b"x") -> dict[str, str]:
        path = folder / f"{name}.tar.gz"
        write_tar(path, [(info, content if info.isreg() else b"") for info in members])
        return {"EXECUTION_ENV_PATH": str(path)}

    def file(name: str, content: bytes) -> dict[str, str]:
        (folder / name).write_bytes(content)
        return {"EXECUTION_ENV_PATH": str(folder / name)}

    packed = good.read_bytes()
    return {
        "missing": ({"EXECUTION_ENV_PATH": str(folder / "no.tar.gz")}, "does not exist"),
        "empty": (file("empty.tar.gz", b""), "it is empty"),
        "garbage": (file("garbage.tar.gz", b"no archive at all"), "it is no archive"),
        "truncated": (file("truncated.tar.gz", packed[: len(packed) // 2]), "is truncated or damaged"),
        "climbing": (archive("climbing", member("bin/../../evil")), "'bin/../../evil' leads out of the archive"),
        "absolute": (archive("absolute", member("/etc/evil")), "'/etc/evil' is an absolute path"),
        "leaving": (
            archive("leaving", member("lib", tarfile.SYMTYPE, "../../..")),
            "'lib' is a symbolic link that leaves the archive",
        ),
        "device": (archive("device", member("dev/null", tarfile.CHRTYPE)), "'dev/null' is a device node"),
        "no_python": (archive("no_python", member("README")), "has no interpreter: looked for bin/python"),
        "for_arm": (
            archive("for_arm", member("bin/python", mode=0o755), content=ELF_FOR_ARM),
            "is built for linux aarch64",
        ),
        "excluded": ({"EXECUTION_ENV_PATH": str(good), "PYTHON_VERSION": "2.7"}, "asks for Python ==2.7.*"),
        "not_installed": ({"PYTHON_VERSION": "3.99"}, "no Python ==3.99.* on this machine"),
    }


def test_a_model_whose_environment_cannot_be_used_says_why_and_stops_no_other(serving, tmp_path):
    good, _ = serving
    (tmp_path / "archives").mkdir()
    broken = broken_environments(tmp_path / "archives", good)
    repository, store = tmp_path / "models", tmp_path / "store"
    add_model(repository, "healthy")
    for name, (parameters, _) in broken.items():
        add_model(repository, name, **parameters)
    options = ["--exit-on-error=false", f"--env-store={store}"]

    with ServerProcess(repository, *options, work=tmp_path, wait="live", timeout=120) as server:
        found = index(server)
        assert told(server, "healthy")[0] == sys.prefix
        refused = server.post("/v2/models/truncated/infer", ASK)
        ready = {name: server.get(f"/v2/models/{name}/ready").status for name in ("healthy", "truncated")}

    assert found["healthy"]["state"] == "READY"
    assert ready == {"healthy": 200, "truncated": 400}
    assert refused.error == "Request for unknown model: 'truncated' has no available versions"
    for name, (_, reason) in broken.items():
        assert found[name]["state"] == "UNAVAILABLE"
        assert reason in found[name]["reason"], name
    # Nothing half-made stays: only the one whole environment, which a model refused for its version.
    assert len([path for path in store.iterdir() if len(path.name) == 64]) == 1
    assert not list((store / "staging").iterdir())
    assert not list(tmp_path.rglob("evil"))
