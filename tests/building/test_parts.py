"""Parts of building and packing that decide about files, without an interpreter that runs."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.archives.archive_writer import MTIME, OutputMember
from naiad_building import build, collecting, pack, recipe
from naiad_building.base_interpreter import BaseInterpreter, copy_base, inspect_base
from naiad_building.collecting import CHANNEL, HEADER
from naiad_building.declared.conda import _python_version, _requirement
from naiad_building.declared.declaration import read_declaration
from naiad_building.lockfiles import Pin, pin_lines
from naiad_building.recipe import set_variables
from naiad_building.uv_program import Requirements


@pytest.fixture
def collector() -> collecting._MemberCollector:
    return collecting._MemberCollector()


def test_members_are_links_files_and_rewritten_files(tmp_path: Path, collector: collecting._MemberCollector) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("text")
    file.chmod(0o755)
    link.symlink_to("file")
    (tmp_path / "folder").mkdir()

    for name in ("file", "link", "folder"):
        collector.add(str(tmp_path / name), name)
    collector.add_bytes(str(file), b"text", "same")
    collector.add_bytes(str(file), b"other", "changed")
    file.chmod(0o644)
    collector.add(str(file), "plain")

    assert collector.members == {
        "file": OutputMember(name="file", source=file, executable=True),
        "link": OutputMember(name="link", link="file"),
        "same": OutputMember(name="same", source=file, executable=True),
        "changed": OutputMember(name="changed", data=b"other", executable=True),
        "plain": OutputMember(name="plain", source=file, executable=False),
    }


def test_the_prefix_is_left_out_of_scripts_records_and_texts(
    tmp_path: Path, collector: collecting._MemberCollector
) -> None:
    prefix = tmp_path / "environment"
    record = {
        "paths_data": {
            "paths": [
                {"_path": "a", "sha256_in_prefix": "1", "size_in_bytes": 3},
                {"_path": "b", "sha256": "2", "size_in_bytes": 4},
            ]
        },
        "extracted": f"{prefix}/pkgs",
    }
    files = {
        "bin/tool": f"#!{prefix}/bin/python\nprint()\n".encode(),
        "bin/other": b"#!/bin/sh\n",
        "share/tool": f"#!{prefix}/bin/python\n".encode(),
        "conda-meta/a.json": json.dumps(record).encode(),
        "conda-meta/broken.json": b"{",
        "etc/settings": f"at {prefix}".encode(),
    }
    for name, data in files.items():
        collector.members[name] = OutputMember(name=name, data=data, executable=name.startswith("bin/"))
    before = dict(collector.members)

    collecting._normalize_scripts(collector, prefix)
    collecting._normalize_records(collector, prefix)
    is_left = {
        name: collecting._insert_placeholder(collector, prefix, name, str(prefix), mode)
        for name, mode in (("etc/settings", "text"), ("bin/other", "text"), ("share/tool", "binary"))
    }

    data = {name: member.read() for name, member in collector.members.items()}
    assert str(prefix).encode() not in data["bin/tool"]
    start = b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"\n\' \'\'\'\n'
    assert data["bin/tool"] == start + b"print()\n"
    assert {name for name in files if collector.members[name] == before[name]} == {"bin/other", "share/tool"} | {
        name for name in files if name == "conda-meta/broken.json"
    }
    written = json.loads(data["conda-meta/a.json"])
    assert written["paths_data"]["paths"] == [{"_path": "a"}, {"_path": "b", "sha256": "2", "size_in_bytes": 4}]
    assert str(prefix) not in written["extracted"]
    assert is_left == {"etc/settings": True, "bin/other": False, "share/tool": True}
    assert str(prefix).encode() not in data["etc/settings"]


def test_bytecode_gets_the_time_of_its_source_in_the_archive_unless_it_was_stale(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.write_text("")
    time = int(source.stat().st_mtime)
    code = {name: HEADER.pack(b"magi", flags, at, 0) + b"code" for name, (flags, at) in {
        "fresh": (0, time), "stale": (0, time - 1), "hashed": (1, time),
    }.items()}  # fmt: skip

    assert collecting._with_time(code["fresh"], source) == HEADER.pack(b"magi", 0, MTIME, 0) + b"code"
    for unchanged in (code["stale"], code["hashed"], b"short"):
        assert collecting._with_time(unchanged, source) == unchanged
    assert collecting._source_of("a/__pycache__/m.cpython-312.pyc") == "a/m.py"
    assert collecting._source_of("a/m.pyc") == ""


@pytest.mark.parametrize(
    ("record", "is_built"),
    [
        ({"channel": CHANNEL, "link": {"source": "/built"}}, True),
        ({"channel": CHANNEL, "link": {"source": ""}}, False),
        ({"channel": "conda-forge", "link": {"source": "/built"}}, False),
        ({"channel": CHANNEL, "link": None}, False),
        ({}, False),
    ],
)
def test_the_folder_of_a_build_is_in_the_record_of_its_python(tmp_path: Path, record: object, is_built: bool) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "python-3.12.1-0.json").write_text(json.dumps(record))

    assert pack._built_at(tmp_path) == (Path("/built") if is_built else None)


def test_packages_scripts_and_data_of_an_environment_are_copied_and_its_own_parts_are_not(tmp_path: Path) -> None:
    environment, prefix = tmp_path / "venv", tmp_path / "whole"
    packages = environment / "lib" / "site-packages"
    for name in ("adder/__init__.py", "adder/__pycache__/x.pyc", "_virtualenv.py", "adder/_virtualenv.py"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    for name in ("bin/tool", "bin/Activate.ps1", "bin/python3", "share/data", "include/x.h", "pyvenv.cfg"):
        (environment / name).parent.mkdir(exist_ok=True)
        (environment / name).touch()
    for name in ("bin", "share", "packages/adder"):
        (prefix / name).mkdir(parents=True)

    pack._copy_packages(packages, prefix / "packages")
    pack._copy_rest(environment, prefix)

    assert {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()} == {
        *("packages/adder/__init__.py", "packages/adder/_virtualenv.py", "bin/tool", "share/data"),
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("m.pth", "/elsewhere/code\n", "m.pth refers to code in /elsewhere/code, outside of it"),
        ("m.egg-link", "/elsewhere/code\n", "m.egg-link refers to code in"),
        ("__editable___m_finder.py", "", "__editable___m_finder.py refers to code outside of it"),
        ("inside.pth", "{}/lib\nimport x\n", ""),
    ],
)
def test_code_outside_of_an_environment_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text.replace("{}", str(tmp_path)))
    if not why:
        pack._reject_external_code(tmp_path, tmp_path)
        return
    with pytest.raises(ExecutionEnvironmentError, match=why):
        pack._reject_external_code(tmp_path, tmp_path)


@pytest.mark.parametrize(("setting", "uses"), [("true", True), ("false", False), (" TRUE ", True), (None, False)])
def test_a_venv_may_use_the_packages_of_its_python(tmp_path: Path, setting: str | None, uses: bool) -> None:
    line = "" if setting is None else f"include-system-site-packages ={setting}\n"
    (tmp_path / "pyvenv.cfg").write_text(f"home = /opt\n{line}")

    assert pack._uses_system_packages(tmp_path) is uses


def test_files_and_folders_of_a_recipe_are_copied_with_its_variables(tmp_path: Path) -> None:
    (tmp_path / "from" / "folder").mkdir(parents=True)
    (tmp_path / "from" / "folder" / "file").write_text("x")
    for name in ("one", "two"):
        recipe._copy(tmp_path / "from" / "folder" / "file", tmp_path / "to" / "deep" / name)
    recipe._copy(tmp_path / "from" / "folder", tmp_path / "to" / "folder")
    set_variables({"B": "it's", "A": "1"}, tmp_path / "to")
    set_variables({}, tmp_path / "none")

    assert sorted(path.name for path in (tmp_path / "to" / "deep").iterdir()) == ["one", "two"]
    assert (tmp_path / "to" / "folder" / "file").read_text() == "x"
    assert json.loads((tmp_path / "to" / recipe.STATE_FILE).read_text()) == {"env_vars": {"B": "it's", "A": "1"}}
    script = tmp_path / "to" / "etc" / "conda" / "activate.d" / "naiad_variables.sh"
    assert script.read_text() == "export A=1\nexport B='it'\"'\"'s'\n"
    assert not (tmp_path / "none").exists()


def test_the_headers_of_an_interpreter_are_copied_and_folders_named_test_are_not(tmp_path: Path) -> None:
    origin, prefix = tmp_path / "origin", tmp_path / "copy"
    stdlib = origin / "lib" / "python3.12"
    for name in (
        *("bin/python3.12", "include/python3.12/Python.h", "lib/python3.12/os.py", "lib/python3.12/a/tests/t.py"),
        *("lib/python3.12/a/sub/x.py", "lib/python3.12/config-3.12/lib.a", "lib/python3.12/config-3.12/Makefile"),
    ):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).touch()
    prefix.mkdir()

    include = origin / "include" / "python3.12"
    copy_base(BaseInterpreter(origin / "bin" / "python3.12", "3.12.1", origin, stdlib, include, "cpython-312"), prefix)

    copied = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()}
    assert copied == {
        *("bin/python3.12", "include/python3.12/Python.h", "lib/python3.12/os.py", "lib/python3.12/a/sub/x.py"),
        "lib/python3.12/config-3.12/Makefile",
    }


@pytest.mark.parametrize(
    ("lines", "requirements", "constraints", "unlockable", "has_options"),
    [
        ("adder==1\n-c limits.txt\n", ["adder==1"], ["numpy<2"], "", False),
        ("-r more.txt\n", ["six", "seven"], ["numpy<2"], "", False),
        ("adder==1 --hash=sha256:00\n", ["adder==1"], [], "", True),
        ("-e ../adder\n", [], [], "'-e ../adder' in ", True),
        ("./adder.whl\n", [], [], "'./adder.whl' in ", True),
        ("--pre\nadder\n", ["adder"], [], "", True),
        ("-i https://a/simple\nadder\n", ["adder"], [], "", False),
    ],
)
def test_a_requirements_file_has_requirements_limits_and_options(
    tmp_path: Path, lines: str, requirements: list[str], constraints: list[str], unlockable: str, has_options: bool
) -> None:
    (tmp_path / "limits.txt").write_text("numpy<2\n")
    (tmp_path / "more.txt").write_text("six\nseven # why\n-c limits.txt\n")
    file = tmp_path / "requirements.txt"
    file.write_text(lines)

    found = read_declaration(file)

    assert ([*map(str, found.requirements)], [*map(str, found.constraints)]) == (requirements, constraints)
    assert found.unlockable.startswith(unlockable)
    assert bool(found.unlockable) is bool(unlockable)
    assert found.has_options is has_options


def test_versions_and_requirements_beside_conda_packages_are_read() -> None:
    assert [_python_version(text) for text in ("3.12", "3.12.4", "3")] == [(3, 12, 0), (3, 12, 4), (3, 0, 0)]
    assert [
        str(_requirement(line)) for line in ("six==1 --hash=sha256:0", "-r more.txt", "a; python_version < '3'")
    ] == [
        *("six==1", "None", "None"),
    ]
    assert pin_lines([Pin("a", "1", ("b", "sha512:a"))]) == ("a==1 \\\n    --hash=sha256:b \\\n    --hash=sha512:a\n")


@pytest.mark.parametrize("line", ['"1A" = "x"', "A = 1", '"" = "x"'])
def test_variables_of_a_recipe_are_names_and_texts(tmp_path: Path, line: str) -> None:
    (tmp_path / recipe.RECIPE_FILE).write_text(f'name = "r"\n[variables]\n{line}\n')

    with pytest.raises(ConfigError, match="it must map names of variables to strings"):
        recipe.read_recipe(tmp_path)


def test_editable_requirements_are_found_in_included_files(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six\n-r more.txt\n-r https://h/x.txt\n")
    (tmp_path / "more.txt").write_text("-r requirements.txt\n\n-e ../pkg\n")

    with pytest.raises(ConfigError, match=r"more.txt:3 requires '-e ../pkg': .*; write ../pkg without --editable"):
        build._unlocked(read_declaration(tmp_path / "requirements.txt"))
    (tmp_path / "more.txt").write_text("seven\n")
    assert not build._unlocked(read_declaration(tmp_path / "requirements.txt")).is_locked


def test_a_failed_build_removes_what_it_has_created(tmp_path: Path) -> None:
    prefix = tmp_path / "a" / "b"
    created = build._missing_folders(prefix)
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / "x").touch()
    (prefix / "file").touch()
    (prefix / "link").symlink_to("lib")

    build._remove(prefix, created)

    assert created == [prefix, tmp_path / "a"]
    assert list(tmp_path.iterdir()) == []
    prefix.mkdir(parents=True)
    (prefix / "file").touch()
    build._remove(prefix, [])
    assert prefix.is_dir()
    assert list(prefix.iterdir()) == []


def test_requirements_without_a_lock_are_installed_by_their_path(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("six\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\ndependencies = []\n')

    assert build._unlocked(read_declaration(file)) == Requirements(f"-r {file}\n", file, is_locked=False)
    with pytest.raises(ExecutionEnvironmentError, match=r"pyproject\.toml has no lock; write it with `naiad lock"):
        build._unlocked(read_declaration(tmp_path / "pyproject.toml"))


def test_a_recipe_may_name_conda_packages_and_nothing_else_as_such(tmp_path: Path) -> None:
    (tmp_path / recipe.RECIPE_FILE).write_text('name = "r"\nconda = "environment.yml"\n')
    (tmp_path / "environment.yml").write_text("dependencies: [python]\n")

    assert recipe.read_recipe(tmp_path).conda == tmp_path / "environment.yml"
    (tmp_path / "other.txt").touch()
    (tmp_path / recipe.RECIPE_FILE).write_text('name = "r"\nconda = "other.txt"\n')
    with pytest.raises(ConfigError, match=r"names 'other.txt'; it is environment.yml or pixi.lock"):
        recipe.read_recipe(tmp_path)


def test_the_first_cause_of_a_copy_that_failed_is_its_reason() -> None:
    several = shutil.Error([("from", "to", "No space left"), ("from", "to", "another")])

    assert build._reason(several) == "No space left"
    assert build._reason(shutil.Error("same file")) == "same file"
    assert build._reason(OSError(28, "No space left on device")) == "[Errno 28] No space left on device"


def test_the_record_of_a_copied_python_has_its_files_and_those_that_name_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text(f"#!{tmp_path}/bin/python\n")
    (tmp_path / "bin" / "link").symlink_to("tool")
    (tmp_path / "bin" / "binary").write_bytes(b"\0" + str(tmp_path).encode())

    collecting.record_interpreter(tmp_path, "3.12.4")
    collecting.write_history(tmp_path, "3.12.4")

    record = json.loads((tmp_path / "conda-meta" / "python-3.12.4-0.json").read_text())
    assert sorted(file for file in record["files"] if file.startswith("bin/")) == ["bin/binary", "bin/link", "bin/tool"]
    assert record["link"]["source"] == str(tmp_path)
    assert pack._built_at(tmp_path) == tmp_path
    entries = {
        entry["_path"]: entry for entry in map(partial(collecting._entry, tmp_path), (tmp_path / "bin").iterdir())
    }
    assert entries["bin/link"]["path_type"] == "softlink"
    assert entries["bin/tool"]["prefix_placeholder"] == str(tmp_path)
    assert "prefix_placeholder" not in entries["bin/binary"]
    assert f"\n+{CHANNEL}::python-3.12.4-0\n" in (tmp_path / "conda-meta" / "history").read_text()


def test_bytecode_with_the_prefix_is_compiled_again_and_that_of_changed_sources_left_out(
    tmp_path: Path, collector: collecting._MemberCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "environment"
    (prefix / "lib" / "__pycache__").mkdir(parents=True)
    for name in ("own", "plain", "changed"):
        source = prefix / "lib" / f"{name}.py"
        source.write_text("")
        head = HEADER.pack(b"magi", 0, int(source.stat().st_mtime), 0)
        bytecode = prefix / "lib" / "__pycache__" / f"{name}.cpython-312.pyc"
        bytecode.write_bytes(head + (str(prefix).encode() if name == "own" else b"code"))
        for path in (source, bytecode):
            collector.add(str(path), path.relative_to(prefix).as_posix())
    collector.rewrite("lib/changed.py", b"other")

    def compile_files(python: Path, jobs: list[collecting.CompileJob]) -> None:
        assert (python, [job.source.name for job in jobs], jobs[0].shown) == (Path("/python"), ["own.py"], "lib/own.py")
        jobs[0].target.parent.mkdir(parents=True)
        jobs[0].target.write_bytes(HEADER.pack(b"magi", 0, int(jobs[0].source.stat().st_mtime), 0) + b"compiled")

    monkeypatch.setattr(collecting, "compile_files", compile_files)

    collecting._normalize_bytecode(collector, prefix, Path("/python"))

    head = HEADER.pack(b"magi", 0, MTIME, 0)
    found = {Path(name).name: member.read() for name, member in collector.members.items() if name.endswith(".pyc")}
    assert found == {"own.cpython-312.pyc": head + b"compiled", "plain.cpython-312.pyc": head + b"code"}


def test_an_interpreter_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '{}'\necho broken >&2\nexit 3\n")
    python.chmod(0o755)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        inspect_base(python)

    assert caught.value.message == f"{python} does not work: broken"
