"""The last steps of an entry, with stand-ins for the programs that they start."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.bytecode import HEADER
from naiad.environments.store import finishing
from naiad.environments.store.file_digests import FileState, read_digests, scan_files
from naiad.environments.store.record import read_record

from .made import interpreter, write_environment

MAGIC = b"\x61\x0d\x0d\x0a"


class Steps:
    """The programs that are started, by name, in order; and what they return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.found = interpreter(prefix)
        self.library_path: Path | None = None
        self.completion: dict[str, Any] = {"left": 0}
        self.status = 0
        self.stderr = "no\n"
        for name in ("require_interpreter", "activate", "run_post_link_scripts"):
            monkeypatch.setattr(finishing, name, self._step(name))
        monkeypatch.setattr(finishing, "probe_with_libraries", self._probe)
        monkeypatch.setattr(finishing, "probe_interpreter", lambda python, **more: self.calls.append(("warm", more)))
        monkeypatch.setattr(finishing, "run_script", self._compile)
        monkeypatch.setattr(finishing, "run_clean", self._run)

    def _step(self, name: str):
        def step(prefix: Path, *more: Any, **_: Any) -> Path:
            self.calls.append((name, more[:1]))
            return prefix / "bin" / "python"

        return step

    def _probe(self, python: Path, prefix: Path, probe: Any):
        self.calls.append(("probe", None))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found, self.library_path

    def _compile(self, python: Path, script: Path, *, arguments: list[str], library_path: Path | None, **_: Any):
        self.calls.append(("compile", (arguments, library_path)))
        if isinstance(self.completion, Exception):
            raise self.completion
        for source in arguments[3:]:
            target = Path(source).parent / "__pycache__" / f"{Path(source).stem}.cpython-310.pyc"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(b"compiled")
        return self.completion

    def _run(self, command: list[str], *, library_path: Path | None, **_: Any):
        self.calls.append(("conda-unpack", (command[1:-1], library_path)))
        return subprocess.CompletedProcess(command, self.status, "", self.stderr)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    write_environment(tmp_path / "entry" / "env")
    return tmp_path / "entry"


@pytest.fixture
def steps(entry: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch, entry / "env")


def finish(entry: Path, unpacked: dict[str, UnpackedFile] | None = None, prefix: Path | None = None):
    finishing.finish(entry, prefix or entry / "env", "/e.tar", unpacked or {})
    return read_record(entry)


def test_prefixes_are_fixed_and_scripts_run_before_the_interpreter_is_probed_and_the_record_is_last(entry, steps):
    (entry / "env" / "bin" / "conda-unpack").write_text("")
    (entry / "env" / "lib").mkdir()
    (entry / "env" / "lib" / "libpython3.so.1").write_text("12345")
    (entry / "env" / "lib64").symlink_to("lib")
    steps.library_path = entry / "env" / "lib"
    found = finish(entry)
    assert steps.names()[:3] == ["require_interpreter", "conda-unpack", "activate"]
    assert sorted(steps.names()[3:]) == ["compile", "probe"]
    assert dict(steps.calls)["activate"] == (entry / "activation.json",)
    assert dict(steps.calls)["conda-unpack"] == (["-E", "-s", "-B"], entry / "env" / "lib")
    assert dict(steps.calls)["compile"] == (["250"], entry / "env" / "lib")
    assert (found.library_path, found.bytecode) == (entry / "env" / "lib", None)
    assert json.loads((entry / "ready.json").read_text())["size"] == [3, 5], "without links to folders"
    assert not any(path.stat().st_mode & 0o222 for path in (entry / "env").rglob("*") if path.is_file())


def test_an_environment_in_one_folder_of_its_archive_is_that_folder(entry, steps):
    (entry / "env" / "beside").write_bytes(b"x" * 9)
    prefix = entry / "env" / "deep"
    write_environment(prefix, {"file": b"123"})
    steps.found = interpreter(prefix)
    found = finish(entry, prefix=prefix)
    assert found.prefix == prefix
    assert json.loads((entry / "ready.json").read_text())["size"] == [2, 3]
    assert "beside" in read_digests(entry)
    assert dict(steps.calls)["compile"] == (["250"], None)


@pytest.mark.parametrize(
    ("sources", "answer", "arguments", "has_bytecode"),
    [
        ({"a": "fresh"}, {"left": 0}, [], True),
        ({"a": "fresh", "b": "stale"}, {"left": 0}, ["b"], True),
        ({"a": "fresh", "b": "stale"}, {"left": 1}, ["b"], False),
        ({"a": "fresh", **{f"m{number:03}": "stale" for number in range(250)}}, {"left": 0, "looked": True},
         [f"m{number:03}" for number in range(250)], True),
        ({"a": "fresh", **{f"m{number:03}": "stale" for number in range(251)}}, {"left": 251, "looked": True}, None, False),
        ({"a": "bare"}, {"left": 1, "looked": True}, None, False),
    ],
)  # fmt: skip
def test_few_sources_without_bytecode_are_compiled_and_many_when_they_are_imported(
    entry, steps, sources, answer, arguments, has_bytecode
):
    folder = entry / "env" / "lib"
    unpacked = {}
    for name, kind in sources.items():
        source = folder / f"{name}.py"
        source.parent.mkdir(exist_ok=True)
        source.write_text("x = 1\n")
        if kind == "fresh":
            facts = source.stat()
            head = HEADER.pack(MAGIC, 0, int(facts.st_mtime), facts.st_size)
            target = folder / "__pycache__" / f"{name}.cpython-310.pyc"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(head)
            state = target.stat()
            unpacked[f"lib/__pycache__/{target.name}"] = UnpackedFile(state.st_size, state.st_mtime_ns, "0" * 64, head)
    steps.completion = answer
    found = finish(entry, unpacked)
    compiled = dict(steps.calls)["compile"][0]
    known = (
        [] if arguments is None else ["cpython-310", MAGIC.hex(), *(str(folder / f"{name}.py") for name in arguments)]
    )
    assert compiled == ["250", *known]
    assert found.bytecode == (None if has_bytecode else entry / "bytecode")
    warm = [more for name, more in steps.calls if name == "warm"]
    assert warm == ([] if has_bytecode else [{"library_path": None, "bytecode": entry / "bytecode"}])
    assert set(read_digests(entry)) == set(scan_files(entry)), "what was compiled is recorded, too"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"status": 1}, "cannot be used: its bin/conda-unpack failed: "),
        ({"status": 1, "stderr": "ValueError: negative padding\n"}, "entry/env); use a store with a shorter path (--env-store)"),
        ({"found": ExecutionEnvironmentError("broken")}, "cannot be used: broken"),
        ({"found": ExecutionEnvironmentError("broken"), "completion": ExecutionEnvironmentError("other")}, "used: broken"),
        ({"completion": ExecutionEnvironmentError("other")}, "cannot be used: other"),
        ({"numpy": None, "numpy_error": "No module named 'numpy'"}, "install it in the environment that the archive was"),
        ({"base_prefix": Path("/usr")}, "is not self-contained: its interpreter uses the standard library at /usr, out"),
        ({"libpython": "/usr/lib/libpython3.so"}, "uses the libpython at /usr/lib/libpython3.so, outside of the archive"),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_be_used_has_no_record(entry, steps, change, text):
    (entry / "env" / "bin" / "conda-unpack").write_text("")
    for name, value in change.items():
        if hasattr(steps, name):
            setattr(steps, name, value)
        else:
            steps.found = interpreter(entry / "env", **change)
    with pytest.raises(ExecutionEnvironmentError) as caught:
        finish(entry)
    assert caught.value.message.startswith("the execution environment /e.tar ")
    assert text in caught.value.message
    assert read_record(entry) is None


def test_the_advice_about_numpy_names_the_recipe_of_the_archive(entry, steps):
    steps.found = interpreter(entry / "env", numpy=None, numpy_error="No module named 'numpy'")
    folder = entry / "env" / finishing.RECIPE_FOLDER
    folder.mkdir(parents=True)
    for name in ("b.yaml", "a.yaml"):
        (folder / name).write_text("")
    with pytest.raises(ExecutionEnvironmentError, match=r"add numpy to the requirements of its recipe 'a.yaml', then"):
        finish(entry)


def test_an_interpreter_outside_of_an_archive_of_a_venv_was_accepted_before(entry, steps, tmp_path, caplog):
    outside = tmp_path / "python"
    outside.write_bytes(b"")
    python = entry / "env" / "bin" / "python"
    python.unlink()
    python.symlink_to(outside)
    steps.found = interpreter(entry / "env", base_prefix=tmp_path, site_dirs=("/site",))
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(finishing, "editable_remains", lambda folders: [f"has {folder}" for folder in folders])
        assert finish(entry) is not None
    assert caplog.messages == ["the execution environment /e.tar has /site"]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, ""),
        ({"has_bytecode": False}, ""),
        ({"implementation": "pypy"}, "pypy"),
        ({"numpy": None, "numpy_error": "No module named 'numpy'"}, r"cannot import numpy \(No module named 'numpy'\); add"),
        ({"numpy": None, "numpy_error": "ImportError: libblas.so"}, r"\(ImportError: libblas.so\); require another versi"),
        (ExecutionEnvironmentError("broken"), "the environment of /e.tar cannot be used: broken"),
    ],
)  # fmt: skip
def test_an_environment_that_was_built_is_probed_and_recorded(entry, steps, facts, text):
    steps.found = facts if isinstance(facts, Exception) else interpreter(entry / "env", **facts)
    if text:
        with pytest.raises(ExecutionEnvironmentError, match=text):
            finishing.finish_built(entry, entry / "env", "/e.tar")
        assert read_record(entry) is None
        return
    finishing.finish_built(entry, entry / "env", "/e.tar")
    assert steps.names() == [
        "require_interpreter", "run_post_link_scripts", "probe", "activate", *(["warm"] if facts else [])
    ]  # fmt: skip
    assert read_record(entry).bytecode == (entry / "bytecode" if facts else None)
    assert read_digests(entry) is not None


def test_only_regular_files_with_their_state_count(entry):
    state = FileState("/x", 0o100644, 5, 1)
    assert finishing._size({"a/x": state, "a/y": state._replace(is_folder=True), "b": state}, "a/") == (1, 5)
