"""Environments as a server's users meet them: models answer under the Python they brought, or say why they cannot."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from environments import makers
from environments.makers import member, write_tar
from environments.served import ASK, OWN_MINOR, add_model, index, told
from support.server import ServerProcess

from naiad.environments.archives.manifest import Manifest, host_platform

pytestmark = pytest.mark.timeout(300)

Broken = dict[str, tuple[dict[str, str], str]]
"""A model's parameters and the reason it must give, by the model's name."""
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

    assert answers["host"] == [sys.prefix, OWN_MINOR, np.__version__, "leaks"]
    assert answers["first"] == answers["second"]
    assert answers["first"][1] == minor
    assert answers["first"][3] == "clean"
    assert Path(answers["first"][0]).is_relative_to(tmp_path / "store")
    assert log.count("unpacking the environment") == 1
    assert log.count(f"PYTHONPATH={tmp_path / 'extra'} reaches only models that run under the server's own ") == 1
    assert not list(repository.rglob("__pycache__"))

    with ServerProcess(repository, f"--env-store={tmp_path / 'store'}", **settings) as server:
        assert told(server, "first") == answers["first"]
        assert "unpacking the environment" not in server.log


def test_one_setting_runs_all_models_in_an_environment(serving, tmp_path):
    archive, minor = serving
    repository = tmp_path / "models"
    add_model(repository, "first")
    add_model(repository, "second")
    flags = (f"--env-store={tmp_path / 'store'}", f"--backend-config=python,execution-env-path={archive}")

    with ServerProcess(repository, *flags, work=tmp_path, timeout=120) as server:
        assert told(server, "first")[1] == minor
        assert told(server, "second")[1] == minor


def test_interpreters_and_folders_are_named_by_their_paths(tmp_path):
    """By the setting for all models and by a model's own parameter, as the commands before a server see them."""
    site = Path(np.__file__).parents[1]
    for name in ("default", "own"):
        subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", tmp_path / name], check=True)
        folder = next((tmp_path / name).glob("lib/python3*/site-packages"))
        (folder / "numpy.pth").write_text(str(site))
    python = tmp_path / "default" / "bin" / "python3"
    repository = tmp_path / "models"
    add_model(repository, "plain")
    add_model(repository, "own", PYTHON_VERSION=str(tmp_path / "own"))
    add_model(repository, "lost", PYTHON_VERSION=str(tmp_path / "own" / "bin" / "pyton3"))
    setting = f"--backend-config=python,default-python={python}"
    flags = (f"--env-store={tmp_path / 'store'}", setting, "--exit-on-error=false")

    with ServerProcess(repository, *flags, work=tmp_path, timeout=120, wait="live") as server:
        server.wait_for(lambda: "state" in index(server).get("lost", {}), "the start")
        server.wait_for(lambda: index(server)["plain"]["state"] == "READY", "the models")
        answers = {name: told(server, name) for name in ("plain", "own")}
        reason = index(server)["lost"]["reason"]

    assert answers["plain"] == [str(tmp_path / "default"), OWN_MINOR, np.__version__, "clean"]
    assert answers["own"] == [str(tmp_path / "own"), OWN_MINOR, np.__version__, "clean"]
    assert f"pyton3' does not exist; did you mean '{tmp_path}/own/bin/python3'?" in reason

    stored = f"--env-store={tmp_path / 'store'}"
    naiad = Path(sys.executable).with_name("naiad")
    given = [f"--model-repository={repository}", stored, setting]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [naiad, *arguments, *given]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)

    explained = run("explain", "plain", "--prepare")
    assert f"environment {python}\n" in explained.stdout, explained.stdout
    assert "--backend-config=python,default-python" in explained.stdout
    assert f"in {tmp_path}/default, with numpy {np.__version__}" in explained.stdout
    shutil.rmtree(repository / "lost")
    verified = run("doctor")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def manifest(**changes: object) -> bytes:
    """What an archive would say of itself."""
    made = Manifest(
        name="e",
        made_from="recipe",
        platform=host_platform(),
        glibc="",
        python="3.12.1",
        abi="",
        packages=(),
        files=1,
        size=1,
        recipe={},
    )
    return dataclasses.replace(made, **changes).as_bytes()


class Breaker:
    """Makes archives in a folder, each broken in one way; a method gives parameters of a model that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def archive(self, name: str, *members: tarfile.TarInfo, content: bytes = b"x") -> dict[str, str]:
        path = self.folder / f"{name}.tar.gz"
        write_tar(path, [(info, content if info.isreg() else b"") for info in members])
        return {"EXECUTION_ENV_PATH": str(path)}

    def file(self, name: str, content: bytes) -> dict[str, str]:
        (self.folder / name).write_bytes(content)
        return {"EXECUTION_ENV_PATH": str(self.folder / name)}

    def plainly(self, name: str, prefix: Path) -> dict[str, str]:
        return {"EXECUTION_ENV_PATH": str(makers.pack_plainly(prefix, self.folder / f"{name}.tar"))}

    def unreadable(self, packed: bytes) -> Broken:
        flipped = packed[:-8] + bytes(byte ^ 255 for byte in packed[-8:-4]) + packed[-4:]
        plain = write_tar(self.folder / "plain.tar", [(member("README"), b"x")], "w").read_bytes()
        return {
            "missing": ({"EXECUTION_ENV_PATH": str(self.folder / "no.tar.gz")}, "no.tar.gz' does not exist"),
            "empty": (self.file("empty.tar.gz", b""), "it is empty"),
            "garbage": (self.file("garbage.tar.gz", b"no archive at all"), "it is not an archive"),
            "squashed": (
                self.file("squashed.tar.gz", b"hsqs" + bytes(600)),
                "is truncated or damaged: unsquashfs cannot read it"
                if shutil.which("unsquashfs")
                else "it is a squashfs image",
            ),
            "seven": (self.file("seven.tar.gz", b"7z\xbc\xaf" + bytes(600)), "it is a 7z archive"),
            "truncated": (self.file("truncated.tar.gz", packed[: len(packed) // 2]), "is truncated or damaged"),
            "flipped": (self.file("flipped.tar.gz", flipped), "CRC check failed"),
            "between": (self.file("between.tar", plain[:1024]), "it ends before the end mark of a tar"),
            "hollow": (self.archive("hollow"), "is an empty archive"),
        }

    def unsafe(self) -> Broken:
        leaving, borrowed = ("../../..", "/usr/bin/env")
        found: dict[str, tuple[list[tarfile.TarInfo], str]] = {
            "climbing": ([member("bin/../../evil")], "'bin/../../evil' leads out of the archive"),
            "absolute": ([member("/etc/evil")], "'/etc/evil' is an absolute path"),
            "leaving": ([member("lib", tarfile.SYMTYPE, leaving)], "'lib' is a symbolic link that leaves the archive"),
            "borrowed": (
                [member("bin/tool", tarfile.SYMTYPE, borrowed)],
                "a symbolic link to the absolute path '/usr/bin/env'",
            ),
            "tied": ([member("passwd", tarfile.LNKTYPE, "/etc/passwd")], "'passwd' links to '/etc/passwd'"),
            "through": (
                [member("lib", tarfile.SYMTYPE, "lib64"), member("lib/x")],
                "'lib/x' would be written through 'lib'",
            ),
            "device": ([member("dev/null", tarfile.CHRTYPE)], "'dev/null' is a device node"),
            "pipe": ([member("run/pipe", tarfile.FIFOTYPE)], "'run/pipe' is a named pipe"),
        }
        return {name: (self.archive(name, *members), reason) for name, (members, reason) in found.items()}

    def foreign(self) -> Broken:
        python = member("bin/python", mode=0o755)
        musl = Path(sys.executable).resolve().read_bytes().replace(b"/lib64/ld-linux", b"/lib64/ld-m_sl_", 1)
        described = member("naiad-environment.json")
        said = {
            "says_arm": (manifest(platform="linux-riscv64"), "is for linux-riscv64"),
            "too_new": (manifest(glibc="9.99"), "needs glibc 9.99 or newer"),
            "too_large": (manifest(size=1 << 60), "no space to unpack"),
            "says_nonsense": (b"{}", "is invalid (KeyError('format'))"),
        }
        return {
            "windows": (self.archive("windows", member("python.exe")), "it holds python.exe, made for Windows"),
            "for_arm": (self.archive("for_arm", python, content=ELF_FOR_ARM), "is built for linux aarch64"),
            "musl": (self.archive("musl", python, content=musl), "needs the dynamic loader /lib64/ld-m_sl_"),
            **{name: (self.archive(name, described, content=text), reason) for name, (text, reason) in said.items()},
        }

    def useless(self, good: Path, whole: Path, minor: str) -> Broken:
        broken = shutil.copytree(whole, self.folder / "broken", symlinks=True, copy_function=os.link)
        shutil.rmtree(next(broken.glob("lib/python3*")) / "encodings")
        bare = makers.make_environment(self.folder / "bare", minor, numpy=False)
        dangling = member("bin/python", tarfile.SYMTYPE, "python3.12")
        digest = hashlib.sha256(good.read_bytes()).hexdigest()
        pinned = f"{good}@sha256:{'0' * 64}"
        return {
            "no_python": (self.archive("no_python", member("README")), "has no interpreter: looked for bin/python"),
            "dangling": (self.archive("dangling", dangling), "python3.12, which does not exist"),
            "no_library": (self.plainly("no_library", broken), "No module named 'encodings'"),
            "no_numpy": (self.plainly("no_numpy", bare), "cannot import numpy"),
            "another": ({"EXECUTION_ENV_PATH": pinned}, f"does not match its pin: its SHA-256 is {digest}"),
            "excluded": ({"EXECUTION_ENV_PATH": str(good), "PYTHON_VERSION": "==3.13.39"}, "asks for Python ==3.13.39"),
            "not_installed": ({"PYTHON_VERSION": "==3.13.39"}, "no Python ==3.13.39 on this machine"),
            "not_supported": ({"PYTHON_VERSION": "3.7"}, "models run under Python "),
        }


def test_a_model_whose_environment_cannot_be_used_says_why_and_stops_no_other(serving, whole, minor, tmp_path):
    """Thirty-two kinds, each with words of its own."""
    good, _ = serving
    (tmp_path / "archives").mkdir()
    breaker = Breaker(tmp_path / "archives")
    broken = {
        **breaker.unreadable(good.read_bytes()),
        **breaker.unsafe(),
        **breaker.foreign(),
        **breaker.useless(good, whole, minor),
    }
    assert len(broken) == 32
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
    damaged = [*(["squashed"] if shutil.which("unsquashfs") else []), "flipped", "between"]
    for name, (_, reason) in broken.items():
        assert found[name]["state"] == "UNAVAILABLE"
        assert reason in found[name]["reason"], name
        others = [other for other in broken if other != name and reason in found[other]["reason"]]
        assert others == ([] if reason != "is truncated or damaged" else damaged), name
    # Nothing half-made stays: only the one whole environment, which a model refused for its version.
    assert len([path for path in store.iterdir() if len(path.name) == 64]) == 1
    assert not list((store / "staging").iterdir())
    assert not list(tmp_path.rglob("evil"))
