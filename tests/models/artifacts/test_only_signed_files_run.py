"""A folder whose models must be signed: which files that were added or changed since can reach an interpreter.

Each test does something to the folder of a running server, and then asks for a model. The files that were put there
leave a mark when they are executed.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from environments import served
from models.artifacts.repositories import ASK, CODE, make_repository
from models.artifacts.signing import pull_signed
from support.server import ServerProcess, still_running

from naiad import InternalError, ModelControlMode, Server
from naiad.core.errors import RegistryError
from naiad.core.signatures import read_trusted_keys
from naiad.environments.store.pulled import copies_folder
from naiad.models.artifacts.copies import SignedCopies

MODEL = """
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "tools.zip")]
import helper
import zipped


class TritonPythonModel:
    def execute(self, requests):
        with open(os.path.join(here, "..", "words.txt")) as file:
            words = " ".join([helper.WORD, zipped.WORD, file.read()])
        said = pb_utils.Tensor("Y", np.array([words.encode()], dtype=object))
        return [pb_utils.InferenceResponse([said]) for _ in requests]
"""
BACKEND = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "words.txt")) as file:
            said = pb_utils.Tensor("Y", np.array([file.read().encode()], dtype=object))
        return [pb_utils.InferenceResponse([said]) for _ in requests]
"""


def make_project(folder):
    """A model that imports a module and a zip file and reads data, and a model with a shared backend that does."""
    models = make_repository(folder)
    shutil.rmtree(models / "packed")
    version = models / "plain" / "1"
    (version / "model.py").write_text(MODEL)
    (version / "helper.py").write_text("WORD = 'signed'\n")
    with zipfile.ZipFile(version / "tools.zip", "w") as archive:
        archive.writestr("zipped.py", "WORD = 'packed'\n")
    (models / "plain" / "words.txt").write_text("words")
    with (models / "plain" / "config.pbtxt").open("a") as config:
        config.write('output [ { name: "L" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } ]\n')
    (models / "plain" / "labels.txt").write_text("cat\n")
    backend = folder / "backends" / "loud"
    (backend / "model.py").write_text(BACKEND)
    (backend / "words.txt").write_text("loud")
    (backend / "backend.toml").write_text('requires-python = ">=3.8"\n')
    return folder


class Attack:
    """What can be done to a folder."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self.folder = folder
        self.outside = outside
        self.mark = outside / "executed"
        self.code = f"open({str(self.mark)!r}, 'w').close()\n"

    def write(self, path: str, content: str | bytes = b"") -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def bytecode(self, path: str, source: str) -> None:
        """Bytecode that Python runs without a look at the source beside it (PEP 552: unchecked hash)."""
        code = compile(self.code + source, path, "exec")
        data = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
        self.write(path, data)

    def link(self, path: str, target: Path) -> None:
        place = self.folder / path
        if place.is_dir():
            shutil.move(place, self.outside / "moved")
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def pipe(self, path: str) -> None:
        (self.folder / path).unlink()
        os.mkfifo(self.folder / path)


TAG = sys.implementation.cache_tag
HELPER = "WORD = 'evil'\n"
EVIL = CODE % "evil"


def package(attack: Attack, name: str) -> Path:
    """A package outside of the folder."""
    (attack.outside / name).mkdir()
    (attack.outside / name / "__init__.py").write_text(attack.code + HELPER)
    return attack.outside / name


def version(attack: Attack) -> Path:
    """A version of a model outside of the folder."""
    (attack.outside / "version").mkdir()
    (attack.outside / "version" / "model.py").write_text(attack.code + EVIL)
    return attack.outside / "version"


# What is done, the model that is loaded, and what the error says.
REFUSED = {
    "changed code": (
        lambda do: do.write("plain/1/model.py", do.code + EVIL), "plain", "'plain/1/model.py' was changed: signed as sha256:"),
    "changed module": (lambda do: do.write("plain/1/helper.py", HELPER), "plain", "'plain/1/helper.py' was changed"),
    "package before a module": (
        lambda do: do.write("plain/1/helper/__init__.py", do.code + HELPER), "plain",
        "'plain/1/helper/__init__.py' was added after the signature"),
    "bytecode in place of a module": (
        lambda do: do.bytecode("plain/1/helper.pyc", HELPER), "plain", "'plain/1/helper.pyc' was added"),
    "extension module": (
        lambda do: do.write("plain/1/helper.abi3.so", b"\x7fELF"), "plain", "'plain/1/helper.abi3.so' was added"),
    "library of a native backend": (
        lambda do: do.write("plain/libtriton_python.so", b"\x7fELF"), "plain", "'plain/libtriton_python.so' was added"),
    "stub of the model": (
        lambda do: do.write("plain/triton_python_backend_stub", do.code), "plain",
        "'plain/triton_python_backend_stub' was added"),
    "changed zip file": (lambda do: do.write("plain/1/tools.zip", b"PK"), "plain", "'plain/1/tools.zip' was changed"),
    "path file": (
        lambda do: do.write("plain/1/evil.pth", f"import os; {do.code}"), "plain", "'plain/1/evil.pth' was added"),
    "sitecustomize": (
        lambda do: do.write("plain/1/sitecustomize.py", do.code), "plain", "'plain/1/sitecustomize.py' was added"),
    "usercustomize": (
        lambda do: do.write("plain/usercustomize.py", do.code), "plain", "'plain/usercustomize.py' was added"),
    "virtual environment": (
        lambda do: do.write("plain/env/pyvenv.cfg", "home = /tmp\n"), "plain", "'plain/env/pyvenv.cfg' was added"),
    "changed data": (lambda do: do.write("plain/words.txt", "evil"), "plain", "'plain/words.txt' was changed"),
    "changed labels": (lambda do: do.write("plain/labels.txt", "dog\n"), "plain", "'plain/labels.txt' was changed"),
    "changed configuration": (
        lambda do: do.write("plain/config.pbtxt", 'backend: "loud"'), "plain", "'plain/config.pbtxt' was changed"),
    "another configuration": (
        lambda do: do.write("plain/configs/big.pbtxt", 'backend: "loud"'), "plain", "'plain/configs/big.pbtxt' was added"),
    "removed module": (
        lambda do: (do.folder / "plain/1/helper.py").unlink(), "plain", "'plain/1/helper.py' was removed"),
    "new version": (
        lambda do: do.write("plain/2/model.py", do.code + EVIL), "plain", "'plain/2/model.py' was added"),
    "empty version": (
        lambda do: (do.folder / "shared" / "2").mkdir(), "shared", "'shared/2/' was added after the signature"),
    "link to a package": (
        lambda do: do.link("plain/1/helper", package(do, "helper")), "plain",
        "'plain/1/helper' is a symbolic link, and a signature is of files"),
    "link in place of a file": (
        lambda do: do.link("plain/1/helper.py", package(do, "other") / "__init__.py"), "plain",
        "'plain/1/helper.py' is a symbolic link"),
    "link to a version": (
        lambda do: do.link("plain/2", version(do)), "plain", "'plain/2' is a symbolic link"),
    "link in place of a version": (
        lambda do: do.link("plain/1", version(do)), "plain", "'plain/1' is a symbolic link"),
    "link to a model's own folder": (
        lambda do: do.link("plain/1/again", do.folder / "plain"), "plain", "'plain/1/again' is a symbolic link"),
    "link in place of backends": (
        lambda do: do.link(".naiad/backends", package(do, "loud").parent), "shared",
        "'.naiad/backends' is a symbolic link"),
    "link in place of a backend": (
        lambda do: do.link(".naiad/backends/loud", package(do, "loud")), "shared",
        "'.naiad/backends/loud' is a symbolic link"),
    "pipe in place of code": (
        lambda do: do.pipe("plain/1/model.py"), "plain", "'plain/1/model.py' is neither a file nor a folder"),
    "changed backend": (
        lambda do: do.write(".naiad/backends/loud/model.py", do.code + EVIL), "shared",
        "'.naiad/backends/loud/model.py' was changed"),
    "changed data of a backend": (
        lambda do: do.write(".naiad/backends/loud/words.txt", "evil"), "shared",
        "'.naiad/backends/loud/words.txt' was changed"),
    "changed manifest of a backend": (
        lambda do: do.write(".naiad/backends/loud/backend.toml", 'environment = "env"'), "shared",
        "'.naiad/backends/loud/backend.toml' was changed"),
    "environment of a backend": (
        lambda do: do.write(".naiad/backends/loud/environment.tar.gz"), "shared",
        "'.naiad/backends/loud/environment.tar.gz' was added"),
    "another backend": (
        lambda do: do.write(".naiad/backends/python/triton_python_backend_stub", do.code), "plain",
        "'.naiad/backends/python/triton_python_backend_stub' was added"),
    "a name with a line break": (
        lambda do: do.write("plain/1/x\nsigned by 'build'.py"), "plain",
        """"plain/1/x\\nsigned by 'build'.py" was added"""),
}  # fmt: skip
# What the server ignores: it is not in what the guests see.
IGNORED = {
    "bytecode of the code": lambda do: do.bytecode(f"plain/1/__pycache__/model.{TAG}.pyc", EVIL),
    "bytecode of a module": lambda do: do.bytecode(f"plain/1/__pycache__/helper.{TAG}.pyc", HELPER),
    "bytecode of a backend": lambda do: do.bytecode(f".naiad/backends/loud/__pycache__/model.{TAG}.pyc", EVIL),
    "link in place of bytecode": lambda do: do.link("plain/1/__pycache__", package(do, "cache")),
    "code beside signatures": lambda do: do.write(".naiad/signatures/evil.py", do.code),
    "pins of environments": lambda do: do.write("environments.lock", "[["),
    "module beside models": lambda do: do.write("helper.py", do.code + HELPER),
}
BYTECODE = [name for name in IGNORED if "bytecode" in name]


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    work = tmp_path_factory.mktemp("signed")
    project = make_project(work / "project")
    return pull_signed(project, work, f"--backend-directory={project / 'backends'}")


@pytest.fixture(scope="module")
def server(signed, tmp_path_factory):
    """A server of a copy of the signed folder, with no model loaded."""
    work = tmp_path_factory.mktemp("server")
    shutil.copytree(signed.folder, work / "models")
    flags = [f"--model-repository={work / 'models'}", *signed.flags[1:], f"--env-store={work / 'store'}"]
    with ServerProcess(None, *flags, "--model-control-mode=explicit", work=work) as running:
        yield running
    assert not [path for path in (work / "store" / "artifacts" / "copies").iterdir() if path.is_dir()]


@pytest.fixture
def attack(server, signed, tmp_path):
    """The folder of the server as it was signed."""
    folder = server.work / "models"
    for model in ("plain", "shared"):
        server.post(f"/v2/repository/models/{model}/unload")
    shutil.rmtree(folder)
    shutil.copytree(signed.folder, folder)
    (tmp_path / "outside").mkdir()
    return Attack(folder, tmp_path / "outside")


def load(server, model):
    return server.post(f"/v2/repository/models/{model}/load", {})


def said(server, model="plain"):
    reply = server.post(f"/v2/models/{model}/infer", {**ASK, "outputs": [{"name": "Y"}]})
    assert reply.status == 200, reply.body
    return reply.json()["outputs"][0]["data"][0]


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_model_with_something_that_was_not_signed_is_refused_by_its_name(server, attack, name):
    change, model, error = REFUSED[name]
    change(attack)

    reply = load(server, model)

    assert reply.status == 500
    assert f"model '{model}' in {attack.folder} is refused: " in reply.error
    assert error in reply.error
    assert not attack.mark.exists()


@pytest.mark.parametrize("name", list(IGNORED))
def test_a_file_that_no_guest_can_see_has_no_effect(server, attack, name):
    IGNORED[name](attack)

    assert load(server, "plain").status == 200
    assert load(server, "shared").status == 200

    assert said(server) == "signed packed words"
    assert said(server, "shared") == "loud"
    assert not attack.mark.exists()


@pytest.mark.parametrize("name", [*REFUSED, *BYTECODE, "pins of environments", "module beside models"])
def test_verify_names_unsigned_files(attack, signed, naiad, name):
    IGNORED[name](attack) if name in IGNORED else REFUSED[name][0](attack)

    code, out, err = naiad.run("verify", attack.folder, f"--env-trust={signed.trusted}")

    assert code == 1, err
    assert f"{attack.folder}: not as a trusted key signed it" in out
    if name in REFUSED:
        assert REFUSED[name][2] in out
    else:
        assert "was added after the signature" in out or "is a symbolic link" in out


def test_an_unchanged_folder_is_served(server, attack):
    assert load(server, "plain").status == 200

    assert said(server) == "signed packed words"


def test_a_guest_that_is_restarted_runs_what_was_signed_when_it_was_loaded(server, attack):
    assert load(server, "plain").status == 200
    before = server.children()
    for path in (attack.folder / "plain").rglob("*.py"):
        path.write_text(attack.code + EVIL)

    for guest in before:
        guest.kill()
    assert still_running(before, 30) == []
    server.wait_for(lambda: server.get("/v2/models/plain/ready").status == 200, "the next guest")

    assert said(server) == "signed packed words"
    assert not attack.mark.exists()
    assert load(server, "plain").status == 500
    assert said(server) == "signed packed words"


@pytest.mark.parametrize("files", [{}, {"file:1/model.py": "cGFzcw=="}])
def test_a_load_request_cannot_bring_a_configuration_or_files(server, attack, files):
    config = '{"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp/env"}}}'
    reply = server.post("/v2/repository/models/plain/load", {"parameters": {"config": config, **files}})

    assert reply.status == 500
    what = "files" if files else "configuration"
    assert (
        f"model 'plain' is refused: its {what} came with a load request, and --require-signature accepts models of "
        "signed repositories only"
    ) in reply.error


def test_a_repository_that_a_program_registers_is_checked_as_well(attack, signed, tmp_path):
    (tmp_path / "empty").mkdir()
    attack.write("plain/1/helper.py", attack.code + HELPER)
    flags = [*signed.flags[1:], f"--env-store={tmp_path / 'store'}"]
    mode = ModelControlMode.EXPLICIT
    with Server(model_repository=tmp_path / "empty", model_control_mode=mode, flags=flags) as running:
        running.register_model_repository(str(attack.folder))

        with pytest.raises(InternalError, match=r"'plain/1/helper\.py' was changed"):
            running.load("plain")

        assert running.load("shared").ready()
    assert not attack.mark.exists()


def test_a_copy_has_the_signed_content_however_often_the_source_changes_meanwhile(signed, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(signed.folder, source)
    helper = source / "plain" / "1" / "helper.py"
    good, evil = helper.read_bytes(), b"WORD = 'evils!'\n"
    assert len(good) == len(evil)
    ended = threading.Event()

    def replace():
        while not ended.is_set():
            for content in (evil, good):
                (tmp_path / "next").write_bytes(content)
                (tmp_path / "next").replace(helper)

    writer = threading.Thread(target=replace)
    writer.start()
    outcomes, errors = set(), []
    try:
        for count in range(1000):
            if count > 50 and len(outcomes) > 1:
                break
            copies = SignedCopies(source, read_trusted_keys(signed.trusted), tmp_path / "store")
            try:
                copies.update("plain")
            except RegistryError as error:
                outcomes.add("refused")
                errors.append(error.message)
                assert not (copies.directory / "plain").exists()
            else:
                outcomes.add("copied")
                assert (copies.directory / "plain" / "1" / "helper.py").read_bytes() == good
            finally:
                copies.close()
    finally:
        ended.set()
        writer.join()
    assert outcomes == {"copied", "refused"}
    assert all("'plain/1/helper.py' was changed" in error for error in errors)


def test_a_copy_is_updated_and_files_no_longer_signed_are_removed(signed, tmp_path):
    copies = SignedCopies(signed.folder, read_trusted_keys(signed.trusted), tmp_path / "store")

    assert copies.update("shared") == copies.update("plain") == "build"

    found = {path.relative_to(copies.directory).as_posix() for path in copies.directory.rglob("*") if path.is_file()}
    backend = {f".naiad/backends/loud/{name}" for name in ("model.py", "words.txt", "backend.toml")}
    own = {f"plain/{name}" for name in ("config.pbtxt", "labels.txt", "words.txt", "1/model.py", "1/helper.py")}
    assert found == {*backend, *own, "plain/1/tools.zip", "shared/config.pbtxt", "shared/1/settings.txt"}
    assert not any(os.access(copies.directory / path, os.W_OK) for path in found) or os.geteuid() == 0
    before = (copies.directory / "plain" / "1" / "model.py").stat()
    (copies.directory / "plain" / "1" / "leftover.py").touch()
    copies.update("plain")
    assert not (copies.directory / "plain" / "1" / "leftover.py").exists()
    assert (copies.directory / "plain" / "1" / "model.py").stat().st_mtime_ns == before.st_mtime_ns
    copies.close()
    assert not copies.directory.exists()


def test_two_servers_have_copies_of_their_own_and_the_next_removes_those_of_a_killed_one(signed, tmp_path):
    def open_copies():
        return SignedCopies(signed.folder, read_trusted_keys(signed.trusted), tmp_path / "store")

    first, second = open_copies(), open_copies()
    assert first.directory != second.directory
    killed = first.directory.with_name("0123456789ab-0")
    (killed / "plain").mkdir(parents=True)

    third = open_copies()

    assert not killed.exists()
    assert first.directory.is_dir()
    for copies in (first, second, third):
        copies.close()
    fourth = open_copies()
    assert fourth.directory == first.directory  # the same paths, for which the store may have bytecode
    fourth.close()


def test_a_store_that_cannot_be_written_is_no_obstacle(signed, tmp_path):
    (tmp_path / "file").touch()
    store = tmp_path / "file" / "store"

    copies = SignedCopies(signed.folder, read_trusted_keys(signed.trusted), store)

    assert copies.update("plain") == "build"
    assert copies.directory.parent == copies_folder(store)
    assert not copies.directory.is_relative_to(tmp_path / "file")
    copies.close()


def test_an_environment_of_a_signed_folder_needs_no_signature_of_its_own(serving, tmp_path):
    archive, minor = serving
    served.add_model(tmp_path / "project" / "models", "packed", EXECUTION_ENV_PATH=str(archive))
    signed = pull_signed(tmp_path / "project", tmp_path)
    flags = [*signed.flags, f"--env-store={tmp_path / 'store'}"]

    with ServerProcess(None, *flags, work=tmp_path) as running:
        assert served.told(running, "packed")[1] == minor

    (tmp_path / "other" / ".naiad" / "environments" / "x").mkdir(parents=True)
    unsigned = shutil.copy2(archive, tmp_path / "other" / ".naiad" / "environments" / "x")
    project = tmp_path / "outside" / "project"
    served.add_model(project / "models", "packed", EXECUTION_ENV_PATH=str(unsigned))
    run = subprocess.run(
        [sys.executable, "-m", "naiad", "env", "prefetch", str(unsigned), f"--env-trust={signed.trusted}",
         f"--env-store={tmp_path / 'store'}"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert run.returncode == 1
    assert "is refused: it is not signed" in run.stderr
