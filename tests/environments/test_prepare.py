"""What a model may name as its environment, and what it is told when that cannot be used."""

from __future__ import annotations

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
from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.environments.manager import EnvironmentManager

ELF_HEAD = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00"
FOREIGN = {
    "aarch64": (ELF_HEAD + (183).to_bytes(2, "little") + bytes(100), "is built for linux aarch64"),
    "macos": (b"\xcf\xfa\xed\xfe" + bytes(100), "is built for macos"),
    "windows": (b"MZ" + bytes(100), "is built for windows"),
}


def refusal(manager: EnvironmentManager, source: Path | None, **options) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        manager.prepare(source, **options)
    return caught.value.message


def stored(manager: EnvironmentManager) -> list[Path]:
    """What of environments is in the store."""
    found = (
        [path for path in manager.store_root.iterdir() if len(path.name) == 64] if manager.store_root.exists() else []
    )
    return [*found, *(manager.store_root / "staging").glob("*")]


def test_without_an_environment_the_hosts_own_interpreter_is_used(manager):
    ready = manager.prepare(None)

    assert ready.is_host
    assert ready.python == Path(sys.executable)
    assert ready.version == sys.version_info[:3]
    assert ready.source is None
    assert not manager.store_root.exists()


def test_a_guest_on_the_hosts_interpreter_sees_the_hosts_packages(manager):
    import numpy as np

    ready = manager.prepare(None)
    done = subprocess.run(
        [ready.python, "-c", "import numpy; print(numpy.__file__)"],
        env=ready.environ({"PATH": "/usr/bin"}),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == np.__file__


def test_the_hosts_interpreter_is_used_for_its_own_version(manager):
    own = f"=={sys.version_info.major}.{sys.version_info.minor}"

    assert manager.prepare(None, python=SpecifierSet(own)).is_host


def test_a_version_that_no_interpreter_has_is_reported_as_missing(manager, monkeypatch, whole):
    monkeypatch.setattr(
        "naiad.sources.interpreters.discovery.candidate_paths", lambda _cache: [whole / "bin" / "python"]
    )

    with pytest.raises(InterpreterNotFoundError, match=r"no Python ==3\.99 on this machine: there are 3"):
        manager.prepare(None, python=SpecifierSet("==3.99"))
    flag = "--backend-config=python,default-python"
    with pytest.raises(InterpreterNotFoundError, match=rf"==3\.99 on this machine \(required by {flag}\): there are"):
        manager.prepare(None, python=SpecifierSet("==3.99"), python_origin=flag, label="m")
    with pytest.raises(InterpreterNotFoundError, match=r"==3\.99 on this machine \(required by model 'm'\): there are"):
        manager.prepare(None, python=SpecifierSet("==3.99"), label="m")


def test_another_version_is_found_on_the_machine(manager, monkeypatch, whole, minor):
    monkeypatch.setattr(
        "naiad.sources.interpreters.discovery.candidate_paths", lambda _cache: [whole / "bin" / "python"]
    )
    monkeypatch.setattr(
        "naiad.environments.manager.matches", lambda _required, version: version[:2] != sys.version_info[:2]
    )

    ready = manager.prepare(None, python=SpecifierSet(f"=={minor}"))

    assert ready.python == whole / "bin" / "python"
    assert not ready.is_host
    assert ready.source is None


def test_a_directory_is_used_in_place(manager, whole, minor):
    ready = manager.prepare(whole)

    assert ready.prefix == whole
    assert ready.python == whole / "bin" / "python"
    assert ready.cache_tag == "cpython-" + minor.replace(".", "")
    assert ready.abi.startswith("cpython-")
    assert ready.digest is None
    assert not stored(manager)


def test_a_directory_is_probed_once_until_its_packages_change(manager, whole, tmp_path, monkeypatch):
    mine = shutil.copytree(whole, tmp_path / "mine", symlinks=True)
    assert manager.prepare(mine).numpy_version == "0.0.stand-in"
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", None)
        assert manager.prepare(mine).numpy_version == "0.0.stand-in"

    numpy = next(mine.glob("lib/python3*/site-packages")) / "numpy"
    shutil.rmtree(numpy)

    assert "cannot import numpy" in refusal(manager, mine)


def test_a_venv_is_used_by_its_own_link_to_python(manager, whole, tmp_path):
    subprocess.run([whole / "bin" / "python", "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    shutil.copytree(next(whole.glob("lib/python3*/site-packages/numpy")), site / "numpy")

    ready = manager.prepare(tmp_path / "venv")

    assert ready.python == tmp_path / "venv" / "bin" / "python"
    assert ready.environ({})["VIRTUAL_ENV"] == str(tmp_path / "venv")


def test_a_link_to_a_directory_is_followed_once(manager, whole, tmp_path):
    (tmp_path / "current").symlink_to(whole)

    assert manager.prepare(tmp_path / "current").prefix == whole


def interpreter(path: Path) -> EnvironmentSource:
    return EnvironmentSource(path=path, is_interpreter=True)


def test_an_interpreter_is_started_by_its_own_name_in_its_environment(manager, whole, minor, tmp_path):
    """A venv's is a link to another one: what it is called determines its packages."""
    subprocess.run([whole / "bin" / "python", "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    shutil.copytree(next(whole.glob("lib/python3*/site-packages/numpy")), site / "numpy")
    (tmp_path / "current").symlink_to(tmp_path / "venv")

    plain = manager.prepare(interpreter(whole / "bin" / f"python{minor}"))
    venv = manager.prepare(interpreter(tmp_path / "current" / "bin" / "python"))

    assert (plain.prefix, plain.python, plain.source) == (whole, whole / "bin" / f"python{minor}", plain.python)
    assert (venv.prefix, venv.python) == (tmp_path / "venv", tmp_path / "venv" / "bin" / "python")
    assert venv.environ({})["VIRTUAL_ENV"] == str(tmp_path / "venv")
    assert not stored(manager)


def test_the_servers_own_interpreter_may_be_named(manager):
    assert manager.prepare(interpreter(Path(sys.executable))).is_host


def test_a_file_that_is_no_interpreter_is_refused_with_what_it_is(manager, whole, tmp_path):
    (tmp_path / "text").write_text("hello")
    shutil.copy(whole / "bin" / "python", tmp_path / "python")
    (tmp_path / "python").chmod(0o644)
    (tmp_path / "gone").symlink_to("/gone/python3.9")
    (tmp_path / "arm").write_bytes(FOREIGN["aarch64"][0])
    (tmp_path / "false").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "false").chmod(0o755)

    for name, text in {
        "text": "cannot be used: it is not a program; name a file such as /opt/conda/bin/python, or the folder above bin",
        "none": "cannot be used: it does not exist; name an interpreter, or the folder above bin",
        "gone": "cannot be used: it is a link to /gone/python3.9, which does not exist; name an interpreter",
        "arm": "is for another platform: ",
        "false": "does not work: exit status 3 with no output",
        "python": "cannot be used: it is not executable by this user (mode 644); run `chmod +x ",
    }.items():
        message = refusal(manager, interpreter(tmp_path / name))
        assert message.startswith(f"the interpreter {tmp_path / name} "), (name, message)
        assert text in message, name


def test_the_interpreter_of_an_environment_without_numpy_is_refused_with_what_to_run(manager, minor, tmp_path):
    bare = makers.make_environment(tmp_path / "bare", minor, numpy=False)

    message = refusal(manager, interpreter(bare / "bin" / "python"))

    assert f"the interpreter {bare}/bin/python cannot be used: its Python {minor}" in message
    assert f"install it there (`{bare}/bin/python -m pip install numpy`)" in message


def test_an_interpreter_of_another_version_than_required_is_refused_with_both(manager, whole, minor):
    python = whole / "bin" / "python"

    message = refusal(manager, interpreter(python), python=SpecifierSet("==3.99"), python_origin="the manifest")

    assert message.startswith(f"the execution environment {python} has Python {minor}.")
    assert "but the manifest asks for Python ==3.99; " in message


def test_the_folder_bin_in_place_of_the_environment_is_refused_with_the_folder_above(manager, whole):
    message = refusal(manager, whole / "bin")

    assert message.endswith(f"; name the folder above it, {whole}, or an interpreter in it")


def test_a_missing_path_has_the_references_text_and_more(manager, tmp_path):
    message = refusal(manager, tmp_path / "no" / "such.tar.gz")

    assert message.startswith(f"Failed to get the canonical path for {tmp_path}/no/such.tar.gz.")
    assert f"{tmp_path} exists" in message
    assert "$$TRITON_MODEL_DIRECTORY" in message


def test_a_directory_without_an_interpreter_is_refused(manager, tmp_path):
    (tmp_path / "bin").mkdir()

    message = refusal(manager, tmp_path)

    assert "has no interpreter: looked for bin/python, bin/python3 and bin/python3.*" in message


def test_a_venv_whose_python_is_gone_says_so(manager, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/gone/bin/python3.9")

    assert "is a link to /gone/bin/python3.9, which does not exist" in refusal(manager, tmp_path)


def test_an_archive_without_an_interpreter_is_refused_and_leaves_nothing(manager, tmp_path):
    archive = write_tar(tmp_path / "data.tar.gz", [(member("README"), b"hello")])

    assert "has no interpreter" in refusal(manager, archive)
    assert not stored(manager)


@pytest.mark.parametrize("platform", FOREIGN)
def test_an_environment_for_another_platform_is_refused_without_starting_it(platform, manager, tmp_path):
    content, expected = FOREIGN[platform]
    archive = write_tar(tmp_path / "foreign.tar.gz", [(member("bin/python", mode=0o755), content)])

    message = refusal(manager, archive)

    assert "is for another platform" in message
    assert expected in message
    assert "this machine is linux" in message
    assert not stored(manager)


def test_an_environment_of_windows_is_named_as_such(manager, tmp_path):
    archive = write_tar(tmp_path / "win.tar.gz", [(member("python.exe"), b"MZ"), (member("Scripts/pip.exe"), b"MZ")])

    assert "it holds python.exe, made for Windows" in refusal(manager, archive)


def test_a_missing_dynamic_loader_is_named(manager, tmp_path):
    program = bytearray((Path(sys.executable)).resolve().read_bytes())
    start = program.index(b"/lib64/ld-linux")
    program[start : start + 15] = b"/lib64/ld-m_sl_"
    archive = write_tar(tmp_path / "musl.tar.gz", [(member("bin/python", mode=0o755), bytes(program))])

    assert "needs the dynamic loader /lib64/ld-m_sl_" in refusal(manager, archive)


@pytest.mark.builds
def test_a_damaged_standard_library_is_reported_with_the_last_lines_of_the_interpreter(manager, whole, tmp_path):
    broken = shutil.copytree(whole, tmp_path / "broken", symlinks=True)
    shutil.rmtree(next(broken.glob("lib/python3*")) / "encodings")

    for source in (broken, makers.pack_plainly(broken, tmp_path / "broken.tar.gz")):
        message = refusal(manager, source)
        assert str(source) in message
        assert "does not work: exit status 1: " in message
        assert "ModuleNotFoundError: No module named 'encodings'" in message
    assert not stored(manager)


@pytest.mark.builds
def test_an_environment_without_numpy_is_refused_with_the_cure(manager, tmp_path, minor):
    bare = makers.make_environment(tmp_path / "bare", minor, numpy=False)

    packed = makers.pack_plainly(bare, tmp_path / "bare.tar.gz")
    cures = {bare: "-m pip install numpy", packed: "install it in the environment that the archive was packed from"}
    for source, cure in cures.items():
        message = refusal(manager, source)
        assert "cannot import numpy (ModuleNotFoundError: No module named 'numpy')" in message
        assert cure in message


@pytest.mark.builds
def test_an_archive_that_uses_a_standard_library_elsewhere_is_refused(manager, whole, tmp_path):
    """As a venv whose interpreter was copied instead of linked."""
    subprocess.run(
        [whole / "bin" / "python", "-I", "-m", "venv", "--without-pip", "--copies", tmp_path / "venv"], check=True
    )
    shutil.copytree(whole / "lib", tmp_path / "venv" / "lib", dirs_exist_ok=True, symlinks=True)
    (tmp_path / "venv" / "lib64").unlink(missing_ok=True)

    message = refusal(manager, makers.pack_plainly(tmp_path / "venv", tmp_path / "venv.tar.gz"))

    assert f"is not self-contained: its interpreter uses the standard library at {whole}" in message
    assert not stored(manager)


def test_an_environment_of_another_version_than_asked_for_is_refused(manager, whole):
    message = refusal(manager, whole, python=SpecifierSet("==2.7"), label="m")

    assert f"the execution environment {whole} has Python 3." in message
    assert "model 'm' asks for Python ==2.7" in message


@pytest.mark.builds
def test_an_interpreter_that_does_not_find_its_libpython_gets_a_library_path(manager, minor, tmp_path):
    """A plain copy of an interpreter looks for libpython where it was built."""
    base = makers.base_interpreters()[minor]
    if not list((base / "lib").glob("libpython3*.so*")):
        pytest.skip("this machine's interpreters have libpython linked in")
    copy = makers.make_environment(tmp_path / "copy", minor)
    shutil.copy2(base / "bin" / f"python{minor}", copy / "bin")

    for source in (copy, makers.pack_plainly(copy, tmp_path / "copy.tar.gz")):
        ready = manager.prepare(source)
        assert ready.library_path == ready.prefix / "lib"
        assert ready.environ({})["LD_LIBRARY_PATH"] == str(ready.prefix / "lib")


@pytest.mark.server
def test_an_archive_of_a_venv_runs_with_the_interpreter_it_was_made_from(manager, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "e"], check=True)
    site_packages = next((tmp_path / "e" / "lib").glob("python3*/site-packages"))
    numpy = Path(np.__file__).parents[1]
    (site_packages / "host.pth").write_text(f"{numpy}\n")
    with tarfile.open(tmp_path / "e.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "e", arcname=".")

    ready = manager.prepare(tmp_path / "e.tar.gz")

    assert ready.version == sys.version_info[:3]
    assert ready.prefix.is_relative_to(manager.store_root)
    assert ready.numpy_version == np.__version__


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_device_is_refused_without_reading_it(manager, tmp_path, make):
    make(tmp_path / "env")

    with pytest.raises(ExecutionEnvironmentError, match=r"/env: it is neither a regular file nor a directory; name an"):
        manager.prepare(tmp_path / "env")
