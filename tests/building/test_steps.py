"""The steps of building, packing and locking and their order, with records in place of interpreters and uv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet

from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.store import Store
from naiad_building import build, pack, recipe, uv_program
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.comparison import PackageChange
from naiad_building.declared import conda, locking, provider, resolving, venv
from naiad_building.declared.conda import CondaDeclaration, CondaPackages
from naiad_building.declared.declaration import _logical_lines, locked_pins, read_declaration
from naiad_building.declared.interpreter import ChosenPython, require_agreement
from naiad_building.declared.locking import LockRequest, check_lock, fetch_locked_wheels, lock_declaration
from naiad_building.declared.provider import DeclaredEnvironments
from naiad_building.indexes import PackageIndex, PackageIndexes
from naiad_building.lockfiles import Pin, open_foreign_lock
from naiad_building.recipe import Recipe, copy_recipe
from naiad_building.uv_program import InstallOptions, Requirements, clean_environ, grouped, locked_requirements

BASE = BaseInterpreter(
    Path("/opt/p/bin/python3.12"), "3.12.4", Path("/opt/p"), Path("/opt/p/lib/python3.12"), Path("/i"), "cpython-312"
)
CHOSEN = ChosenPython(Path("/opt/p/bin/python3.12"), Path("/opt/p"), "3.12.4", "cpython-312-x86_64-linux-gnu")
PYLOCK = (
    'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "adder"\nversion = "{0}"\n'
    'wheels = [{{ path = "adder-{0}-py3-none-any.whl", hashes = {{ sha256 = "ab" }} }}]\n'
)


def refusal(action: Callable[[], object], kind: type[Exception] = ExecutionEnvironmentError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def recorded(monkeypatch: pytest.MonkeyPatch, module: object, *names: str) -> list[tuple[object, ...]]:
    """Replace functions of a module; returns the calls, each a name with its arguments."""
    steps: list[tuple[object, ...]] = []
    for name in names:
        monkeypatch.setattr(module, name, lambda *given, name=name: steps.append((name, *given)))
    return steps


# -- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_system", [False, True])
@pytest.mark.parametrize("has_packages", [False, True])
def test_an_interpreter_is_copied_and_completed_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_system: bool, has_packages: bool
) -> None:
    steps = recorded(
        monkeypatch,
        build,
        *("copy_base", "_require_self_contained", "compile_environment", "record_interpreter", "install"),
        *("relocate_binaries", "copy_recipe", "_require_glibc", "write_history"),
    )
    base = replace(BASE, prefix=Path("/usr")) if is_system else BASE
    made, python, told = Recipe(tmp_path, "r", SpecifierSet()), tmp_path / "bin" / "python3.12", []
    options = InstallOptions(progress=told.append)
    wanted = (Requirements("adder\n", Path("/r/requirements.txt"), is_locked=False), InstallOptions(offline=True))

    found = build._build_in(made, base, tmp_path, [wanted] * has_packages, options)

    installed = [
        ("install", "r", wanted[0], python, wanted[1]),
        ("relocate_binaries", tmp_path, (tmp_path,) if is_system else (base.prefix, tmp_path)),
        ("compile_environment", python, tmp_path, "cpython-312"),
    ]
    assert steps == [
        ("copy_base", base, tmp_path),
        ("_require_self_contained", python, tmp_path, base),
        ("compile_environment", python, tmp_path, "cpython-312"),
        ("record_interpreter", tmp_path, "3.12.4"),
        *(installed if has_packages else []),
        ("copy_recipe", made, tmp_path),
        ("_require_glibc", made, tmp_path),
        ("_require_self_contained", python, tmp_path, base),
        ("write_history", tmp_path, "3.12.4"),
    ]
    assert found == (python, base)
    assert told == [
        f"copying Python 3.12.4 from {base.prefix}",
        *(["installing /r/requirements.txt", "compiling"] if has_packages else []),
        "checking that it runs by itself",
    ]


def test_a_recipe_is_built_in_a_new_folder_and_a_failed_build_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prefix = tmp_path / "recipe", tmp_path / "a" / "env"
    folder.mkdir()
    (folder / recipe.RECIPE_FILE).write_text('name = "r"\npython = ">=3.10"\nrequirements = "requirements.txt"\n')
    (folder / "requirements.txt").write_text("adder==1.0 --hash=sha256:" + "0" * 64 + "\n")
    chosen: list[object] = []

    def choose(made: Recipe, accepted: SpecifierSet, python: str | None) -> Path:
        chosen.append((made.name, str(accepted), python))
        return Path("/python")

    def make(*given: object) -> tuple[Path, BaseInterpreter]:
        assert given[2] == prefix
        assert prefix.is_dir()
        (prefix / "half").touch()
        if len(chosen) > 1:
            raise OSError(28, "No space left on device")
        return prefix / "bin" / "python", BASE

    monkeypatch.setattr(build, "choose_base", choose)
    monkeypatch.setattr(build, "inspect_base", lambda _: BASE)
    monkeypatch.setattr(build, "_build_in", make)

    found = build.build(folder, prefix, python="3.12")

    assert (found.prefix, found.version, found.base) == (prefix, "3.12.4", BASE.executable)
    assert chosen == [("r", ">=3.10", "3.12")]
    assert refusal(lambda: build.build(folder, prefix)).startswith(f"cannot build in {prefix}: it exists already")
    (prefix / "half").unlink()
    assert "cannot build 'r' in" in refusal(lambda: build.build(folder, prefix))
    assert list(prefix.iterdir()) == []
    prefix.rmdir()
    prefix.parent.rmdir()
    assert refusal(lambda: build.build(folder, prefix)).endswith("No space left on device")
    assert not prefix.parent.exists()
    (folder / recipe.RECIPE_FILE).write_text('name = "r"\nplatform = "plan9-mips"\n')
    assert "it is for plan9-mips, this machine is" in refusal(lambda: build.build(folder, prefix))


def test_a_recipe_accepts_the_pythons_of_its_declaration_and_of_its_lock(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "p"\nversion = "1"\nrequires-python = "<3.14"\ndependencies = ["adder"]\n')
    made = Recipe(tmp_path, "r", SpecifierSet(">=3.10"), requirements=file)

    assert build._accepted_versions(replace(made, requirements=None)) == SpecifierSet(">=3.10")
    assert build._accepted_versions(made) == SpecifierSet(">=3.10,<3.14")
    (tmp_path / "pylock.toml").write_text(PYLOCK.format("1.0").replace("[[", 'requires-python = ">=3.11"\n[[', 1))
    assert build._accepted_versions(made) == SpecifierSet(">=3.10,<3.14,>=3.11")
    ((found, _),) = build.requirements_to_install(made, "3.12.1", InstallOptions())
    assert (found.named_in, found.is_locked) == (tmp_path / "pylock.toml", True)
    assert build.requirements_to_install(replace(made, requirements=None), "3.12.1", InstallOptions()) == []


def test_files_that_need_a_newer_glibc_than_the_recipe_allows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.so").touch()
    (tmp_path / "b.so").symlink_to("a.so")
    monkeypatch.setattr(build, "newest_glibc", lambda paths: "2.34" if paths[0].name == "a.so" else "9.9")
    made = Recipe(tmp_path, "r", SpecifierSet())

    for allowed in ("", "2.34", "2.40"):
        build._require_glibc(replace(made, glibc=allowed), tmp_path)

    message = refusal(lambda: build._require_glibc(replace(made, glibc="2.4"), tmp_path))
    assert message.startswith("cannot build 'r': it is to run with glibc 2.4, and a.so needs 2.34; ")


def test_a_copy_that_uses_files_of_the_original_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    itself = SimpleNamespace(prefix=tmp_path, base_prefix=tmp_path, site_dirs=[str(tmp_path / "s")], libpython=None)
    monkeypatch.setattr(build, "probe_interpreter", lambda _: itself)
    build._require_self_contained(tmp_path / "python", tmp_path, BASE)
    for name, value in (("base_prefix", Path("/opt/p")), ("site_dirs", ["/opt/s"]), ("libpython", "/opt/lib.so")):
        other = SimpleNamespace(**{**vars(itself), name: value})
        monkeypatch.setattr(build, "probe_interpreter", lambda _, other=other: other)
        message = refusal(lambda: build._require_self_contained(tmp_path / "python", tmp_path, BASE))
        assert f"still uses {value[0] if isinstance(value, list) else value}; use another" in message


def test_an_environment_has_a_copy_of_its_recipe_with_its_lock(tmp_path: Path) -> None:
    for name in ("env.toml", "requirements.txt", "pylock.toml", "data/words", "other"):
        (tmp_path / "r" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "r" / name).write_text(name)
    folder = tmp_path / "r"
    made = Recipe(
        folder, "r", SpecifierSet(), requirements=folder / "requirements.txt", files=(folder / "data",),
        variables={"A": "1"},
    )  # fmt: skip

    copy_recipe(made, tmp_path / "env")

    copied = {str(path.relative_to(tmp_path / "env")) for path in (tmp_path / "env").rglob("*") if path.is_file()}
    kept = {f"{pack.RECIPE_FOLDER}/r/{name}" for name in ("env.toml", "requirements.txt", "pylock.toml")}
    assert copied == {
        *kept,
        *("share/r/data/words", "conda-meta/state", "etc/conda/activate.d/naiad_variables.sh"),
    }


# -- packing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inherits", [False, True])
def test_a_venv_is_made_whole_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherits: bool) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "pyvenv.cfg").write_text(f"include-system-site-packages = {inherits}\n")
    steps = recorded(
        monkeypatch,
        pack,
        *("copy_base", "compile_environment", "record_interpreter", "_reject_external_code", "_copy_packages"),
        *("_copy_rest", "relocate_scripts", "relocate_binaries", "write_history"),
    )
    monkeypatch.setattr(pack, "inspect_base", lambda _: BASE)
    monkeypatch.setattr(pack, "site_folders", lambda prefix: [prefix / "site"])
    prefix = tmp_path / "whole"
    site, python = prefix / "lib" / "python3.12" / "site-packages", prefix / "bin" / "python"

    pack._make_self_contained(tmp_path, prefix)

    folders = [*([BASE.prefix / "site"] if inherits else []), tmp_path / "site"]
    copies = [step for one in folders for step in (("_reject_external_code", tmp_path, one), ("_copy_packages", one, site))]  # fmt: skip
    assert steps == [
        ("copy_base", BASE, prefix),
        ("compile_environment", python, prefix, "cpython-312"),
        ("record_interpreter", prefix, "3.12.4"),
        *copies,
        ("_copy_rest", tmp_path, prefix),
        ("relocate_scripts", prefix, tmp_path, prefix),
        ("relocate_binaries", prefix, (tmp_path, BASE.prefix, prefix)),
        ("compile_environment", python, prefix, "cpython-312"),
        ("write_history", prefix, "3.12.4"),
    ]
    system = replace(BASE, prefix=Path("/usr"))
    monkeypatch.setattr(pack, "inspect_base", lambda _: replace(system, stdlib=Path("/usr/lib/python3.12")))
    steps.clear()
    pack._make_self_contained(tmp_path, prefix)
    assert ("relocate_binaries", prefix, (tmp_path, prefix)) in steps
    monkeypatch.setattr(pack, "find_interpreter_in", lambda _: None)
    assert "it has no interpreter that runs" in refusal(lambda: pack._make_self_contained(tmp_path, prefix))


def test_what_is_packed_is_copied_first_unless_conda_pack_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, scratch = tmp_path / "env", tmp_path / "scratch"
    (prefix / "conda-meta").mkdir(parents=True)
    scratch.mkdir()
    steps = recorded(monkeypatch, pack, "_make_self_contained")

    def packed() -> Path:
        with pack._self_contained(prefix, scratch) as found:
            return found

    assert "its build was interrupted" in refusal(packed)
    (prefix / "conda-meta" / "history").touch()
    assert packed() == prefix
    assert pack._kind(prefix) == "conda"
    monkeypatch.setattr(pack, "_built_at", lambda _: tmp_path / "before")
    assert pack._kind(prefix) == "recipe"
    assert f"it was built in {tmp_path / 'before'} and moved" in refusal(packed)
    monkeypatch.setattr(pack, "_built_at", lambda _: prefix)
    assert packed() == prefix
    assert not steps
    (prefix / "pyvenv.cfg").touch()
    assert (packed(), pack._kind(prefix)) == (scratch / "whole", "venv")
    assert steps == [("_make_self_contained", prefix, scratch / "whole")]
    other = tmp_path / "other"
    other.mkdir()
    prefix = other
    assert "it is neither a conda environment nor a venv" in refusal(packed)


# -- uv ---------------------------------------------------------------------------------------------------------------


def test_an_installer_gets_neither_secrets_nor_variables_of_python() -> None:
    given = {"PYTHONPATH": "/x", "HOME": "/h", "AWS_SECRET_ACCESS_KEY": "s", "PATH": "/bin"}

    found = clean_environ({**given, **dict.fromkeys(build_secrets(), "secret")})

    assert "PYTHONPATH" not in found
    assert "secret" not in found.values()
    assert (found["HOME"], found["PATH"], found["DEB_PYTHON_INSTALL_LAYOUT"]) == ("/h", "/bin", "deb")


def build_secrets() -> list[str]:
    from naiad.config.server.access import SERVER_SECRETS

    return sorted(SERVER_SECRETS)


def test_packages_are_installed_in_groups_of_their_indexes() -> None:
    local = PackageIndex("https://local", name="local")
    options = InstallOptions(indexes=PackageIndexes(assigned={"b": local}), offline=True)
    pins = [Pin("a", "1", ("x",)), Pin("b", "1", ("y",)), Pin("c", "1", ("z",))]

    groups = grouped(pins, options)

    assert [[pin.name for pin in group] for _, group in groups] == [["a", "c"], ["b"]]
    assert [chosen.indexes.default for chosen, _ in groups] == [None, local]
    assert all(chosen.offline for chosen, _ in groups)
    first, second = locked_requirements(pins, Path("/m/lock"), options)
    assert (first[0].text.count("=="), second[0].text.split()[0]) == (2, "b==1")
    assert first[0].is_locked
    assert first[0].named_in == Path("/m/lock")


# -- locks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """What was resolved: text, versions of Python, and whether it upgrades; in a lock that has adder 1.0."""
    asked: list[tuple[str, str, bool]] = []

    @contextmanager
    def resolve(
        declaration: object, versions: SpecifierSet, base: object, options: object, *, is_upgrade: bool
    ) -> Iterator[Path]:
        assert base == BASE
        asked.append((declaration.text, str(versions), is_upgrade))  # type: ignore[attr-defined] - a Declaration
        folder = tmp_path / "new"
        folder.mkdir(exist_ok=True)
        (folder / "pylock.toml").write_text(PYLOCK.format("1.0"))
        yield folder / "pylock.toml"

    monkeypatch.setattr(locking, "resolved_lock", resolve)
    monkeypatch.setattr(locking, "choose_python", lambda *_: CHOSEN)
    monkeypatch.setattr(locking, "inspect_base", lambda _: BASE)
    return asked


def test_a_lock_and_the_script_that_it_is_of_are_written_together(
    tmp_path: Path, resolved: list[tuple[str, str, bool]]
) -> None:
    file = tmp_path / "model.py"
    file.write_text("print()\n")
    file.chmod(0o700)
    request = LockRequest(
        file=file, cache=tmp_path, required=SpecifierSet(">=3.9"), options=InstallOptions(), is_upgrade=True
    )

    locked = lock_declaration(request, locking.adding(file, ["adder"]))

    assert '# requires-python = ">=3.12"' in file.read_text()
    assert '"adder"' in file.read_text()
    assert '"numpy"' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "pylock.toml").read_text() == PYLOCK.format("1.0")
    assert (locked.lock, locked.python, locked.versions) == (tmp_path / "pylock.toml", "3.12.4", {"adder": "1.0"})
    assert resolved[0][1:] in {(",".join(order), True) for order in ((">=3.12", ">=3.9"), (">=3.9", ">=3.12"))}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.py", "new", "pylock.toml"]
    before = file.read_text()
    lock_declaration(replace(request, is_upgrade=False), locking.removing(file, ["numpy"]))
    assert '"numpy"' not in file.read_text() != before
    assert resolved[1][2] is False
    asked = replace(request, python="3.8")
    assert "--python for ==3.8.*; change one of the two" in refusal(
        lambda: lock_declaration(asked), InterpreterNotFoundError
    )
    lock = tmp_path / "pylock.toml"
    assert "is a lock itself" in refusal(lambda: lock_declaration(replace(request, file=lock)), ConfigError)


def test_files_are_replaced_only_if_all_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("old")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "x").touch()

    message = refusal(lambda: locking._write({tmp_path / "lock": b"new", tmp_path / "no" / "file": b"x"}))

    assert message.startswith(f"cannot write {tmp_path / 'no' / 'file'}: No such file")
    assert (tmp_path / "lock").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "lock"]
    assert f"cannot write {tmp_path / 'gone'}: " in refusal(lambda: locking._write({tmp_path / "gone": b"x"}))
    locking._write({tmp_path / "lock": b"new"})
    assert (tmp_path / "lock").read_text() == "new"


def test_the_difference_of_a_lock_is_shown_and_nothing_is_written(
    tmp_path: Path, resolved: list[tuple[str, str, bool]]
) -> None:
    file, lock = tmp_path / "requirements.txt", tmp_path / "pylock.toml"
    file.write_text("adder\n")
    request = LockRequest(file=file, cache=tmp_path, options=InstallOptions())

    without = check_lock(request)
    assert (without.lock, without.is_current) == (None, False)
    assert without.changes == (PackageChange(name="adder", before="", after="1.0"),)
    assert not lock.exists()
    lock.write_text(PYLOCK.format("0.9"))
    assert check_lock(request).changes == (PackageChange(name="adder", before="0.9", after="1.0"),)
    lock.write_text("broken")
    assert check_lock(request).changes == without.changes
    lock.write_text(PYLOCK.format("1.0"))
    same = check_lock(request)
    assert (same.lock, same.is_current, same.changes) == (lock, True, ())


def test_conda_packages_are_locked_for_what_the_model_and_the_flag_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "environment.yml"
    declaration = CondaDeclaration(file=file, text="")
    python = SimpleNamespace(name=SimpleNamespace(normalized="python"), version="3.12.1")
    packages = CondaPackages(records=(python,), pins=(Pin("six", "1", ("ab",)),))  # type: ignore[arg-type] - a record
    asked: list[object] = []

    def resolve(given: object, folder: Path, cache: Path, required: SpecifierSet, options: object) -> Path:
        asked.append((given, cache.parent, {*required}))
        (folder / "pixi.lock").write_text("new")
        return folder / "pixi.lock"

    monkeypatch.setattr(conda, "read_conda_declaration", lambda _: declaration)
    monkeypatch.setattr(conda, "resolve_conda", resolve)
    monkeypatch.setattr(conda, "read_conda_lock", lambda *given: asked.append(given[0].name) or packages)
    request = LockRequest(
        file=file, cache=tmp_path / "s" / "interpreters", python="3.12", required=SpecifierSet(">=3.9"),
        options=InstallOptions(),
    )  # fmt: skip

    locked = lock_declaration(request)

    assert asked == [(declaration, tmp_path / "s", {*SpecifierSet("==3.12.*,>=3.9")}), "pixi.lock"]
    assert (locked.python, locked.versions, locked.base) == ("3.12.1", {"python": "3.12.1", "six": "1"}, None)
    assert (locked.lock, locked.lock.read_text()) == (tmp_path / "pixi.lock", "new")
    assert check_lock(request).is_current
    locked.lock.write_text("old")
    assert (check_lock(request).is_current, check_lock(request).changes) == (False, ())
    assert "cannot download the conda packages of" in refusal(
        lambda: fetch_locked_wheels(locked, tmp_path / "wheels"), ConfigError
    )


def test_locked_wheels_are_downloaded_by_their_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = PackageIndex("https://local", name="local")
    pins = (Pin("adder", "1", ("a",)), Pin("six", "1", ("b",)))
    locked = locking.LockedDeclaration(
        file=tmp_path / "m.py", lock=tmp_path / "l", python="3.12.4", versions={}, pins=pins, base=BASE,
        options=InstallOptions(indexes=PackageIndexes(assigned={"six": local})),
    )  # fmt: skip
    folder, got = tmp_path / "a" / "wheels", []

    def download(group: list[Pin], to: Path, file: Path, base: object, options: InstallOptions) -> None:
        got.append((group[0].name, to, file, base, options.indexes.default))
        (to / group[0].name).touch()

    monkeypatch.setattr(locking, "download_files", download)

    assert fetch_locked_wheels(locked, folder) == 2
    assert got == [("adder", folder, locked.file, BASE, None), ("six", folder, locked.file, BASE, local)]


# -- declarations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ['{ git = "https://g/x" }', '[{ index = "i" }, { path = "x" }]', '{ index = "i" }'])
def test_packages_that_come_from_no_index_cannot_be_locked(tmp_path: Path, source: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\nname = "p"\nversion = "1"\ndependencies = ["adder"]\n[[tool.uv.index]]\nname = "i"\nurl = "https://i"\n'
        f"[tool.uv.sources]\nadder = {source}\n"
    )

    found = read_declaration(file)

    kind = {"git": "repository of git", "path": "path"}.get(next((k for k in ("git", "path") if k in source), ""), "")
    assert found.unlockable.startswith(f"[tool.uv.sources] takes 'adder' from a {kind}; build a wheel" if kind else "")
    assert bool(found.unlockable) is bool(kind)
    file.write_text('[project]\nname = "p"\ndynamic = ["dependencies"]\n')
    assert read_declaration(file).unlockable.startswith("its dependencies are dynamic")


def test_a_lock_that_was_written_for_other_extras_is_stale_for_the_pythons_that_need_them(tmp_path: Path) -> None:
    file, lock = tmp_path / "requirements.txt", tmp_path / "pylock.toml"
    file.write_text("adder[more]\n")
    recorded_by = '\n[tool.naiad]\nrequirements = ["adder{}"]\n'

    def check(extra: str) -> object:
        lock.write_text(PYLOCK.format("1.0") + recorded_by.format(extra))
        return locked_pins(read_declaration(file), open_foreign_lock(lock), "3.12.4", ())

    assert check("[More]")
    assert "requires 'adder[more]': it was written for 'adder'" in refusal(lambda: check(""))
    assert "it was written without it" in refusal(lambda: check("; python_version < '3.8'"))
    file.write_text("adder; python_version < '3.8'\n")
    assert "does not require 'adder': it was written for 'adder'" in str(refusal(lambda: check("")))
    assert check("; python_version < '3.8'")


def test_lines_of_requirements_have_the_numbers_of_their_beginnings() -> None:
    text = "one # why\n\n# none\ntwo \\\n  --hash=a\nthree\nfour \\"

    assert [*_logical_lines(text)] == [
        (1, "one # why", "one"),
        (4, "two    --hash=a", "two    --hash=a"),
        (6, "three", "three"),
        (7, "four", "four"),
    ]


def test_names_in_locks_that_were_written_with_pip_are_decoded(tmp_path: Path) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text(
        'lock-version = "1.0"\ncreated-by = "pip"\n[[packages]]\nname = "My_Adder"\nversion = "1.0+cpu"\n'
        'wheels = [{ url = "https://h/my_adder-1.0%2Bcpu-py3-none-any.whl", size = 7, hashes = { sha256 = "ab" } }]\n'
        'sdist = { name = "my_adder-1.0%2Bcpu.tar.gz", url = "https://h/x", hashes = { sha512 = "cd" } }\n'
    )

    (pin,) = open_foreign_lock(lock).pins("3.12.4")

    assert (pin.name, pin.version, pin.digests) == ("my-adder", "1.0+cpu", ("ab", "sha512:cd"))
    assert pin.files == ("my_adder-1.0+cpu-py3-none-any.whl", "my_adder-1.0+cpu.tar.gz")
    assert pin.size_for("3.12.4") == 7


def test_places_that_ask_for_other_pythons_are_named() -> None:
    asked = {"it": SpecifierSet(">=3.9"), "the lock": SpecifierSet("<3.13"), "the flag": SpecifierSet("==3.13.*")}

    assert "the lock asks for Python <3.13, and the flag for ==3.13.*; change" in refusal(
        lambda: require_agreement(Path("/m.py"), asked), InterpreterNotFoundError
    )
    asked["the flag"] = SpecifierSet("==3.12.*")
    assert require_agreement(Path("/m.py"), asked) == SpecifierSet(">=3.9,<3.13,==3.12.*")


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["m", ""])
def test_environments_of_both_kinds_are_built_with_what_was_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    root = tmp_path / "store"
    made = DeclaredEnvironments(root, StorePolicy(build=EnvBuild.LOCKED, offline=True), Store(root, LogReporter()))
    steps, pins = recorded(monkeypatch, venv, "build_venv"), [Pin("numpy", "2", ("a",))]
    steps_of_conda = recorded(monkeypatch, conda, "build_conda_environment")
    monkeypatch.setattr(made, "_select", lambda *_: (CHOSEN, pins))
    monkeypatch.setattr(provider, "inspect_base", lambda _: BASE)
    file = tmp_path / "requirements.txt"
    file.write_text("-i https://mine\nnumpy\n")

    plan = made._plan_pypi(file, None, label)
    plan.build(Path("/new"), Path("/final"))

    assert (plan.file, plan.digest) == (file, provider.venv_key(CHOSEN, pins))
    assert steps[0][:-1] == ("build_venv", Path("/new"), Path("/final"), BASE, pins, file, label or file.name)
    options = steps[0][-1]
    assert isinstance(options, InstallOptions)
    assert (options.offline, options.indexes.default) == (True, PackageIndex("https://mine"))
    record = SimpleNamespace(name=SimpleNamespace(normalized="numpy"), version="2", build="0", subdir="s", sha256=b"1")
    packages = CondaPackages(records=(record,))  # type: ignore[arg-type] - a record
    declaration = CondaDeclaration(file=tmp_path / "environment.yml", text="")
    monkeypatch.setattr(conda, "read_conda_declaration", lambda _: declaration)
    monkeypatch.setattr(made, "_select_conda", lambda *_: packages)
    plan = made._plan_conda(declaration.file, None, label)
    plan.build(Path("/new"), Path("/final"))
    assert plan.digest == provider.conda_key(declaration, packages)
    ((_, new, final, declared, selected, cache, name, _),) = steps_of_conda
    assert (new, final, declared, selected) == (Path("/new"), Path("/final"), declaration, packages)
    assert (Path(str(cache)).parent, name) == (root, label or "environment.yml")
    monkeypatch.setattr(made, "_select_conda", lambda *_: CondaPackages(records=()))
    assert f"has no numpy, which every model needs; add it there, and run `naiad lock {declaration.file}`" in refusal(
        lambda: made._plan_conda(declaration.file, None, label)
    )


def test_what_a_closed_or_missing_folder_has_is_known(tmp_path: Path) -> None:
    (tmp_path / "b").touch()

    assert provider._first_file(tmp_path / "no", ["b"]) is None
    assert provider._first_file(tmp_path, ["a", "b"]) == tmp_path / "b"
    assert provider._first_file(tmp_path, ["a"]) is None


def test_a_declaration_without_a_lock_is_resolved_for_the_chosen_python_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked = tmp_path / "store", []
    made = DeclaredEnvironments(root, StorePolicy(build=EnvBuild.ALLOWED), Store(root, LogReporter()))
    file = tmp_path / "requirements.txt"
    file.write_text("adder\n")

    def resolve(resolver: resolving.Resolver) -> Path:
        asked.append((resolver.declaration.file, resolver.base))
        (resolver.folder / "pylock.toml").write_text(PYLOCK.format("1.0"))
        return resolver.folder / "pylock.toml"

    monkeypatch.setattr(provider, "inspect_base", lambda _: BASE)
    monkeypatch.setattr(resolving.Resolver, "resolve_for_one", resolve)
    declaration = read_declaration(file)
    (root / "resolved" / provider.resolution_key(declaration, CHOSEN)).mkdir(parents=True)

    found = [made._resolve(declaration, CHOSEN, "m") for _ in range(2)]

    assert [[pin.name for pin in pins] for pins in found] == [["adder"]] * 2
    assert asked == [(file, BASE)]


@pytest.mark.parametrize(
    ("required", "spec"),
    [
        ("==3.12", "python 3.12.*"),
        ("==3.12.*", "python 3.12.*"),
        ("==3.12.4", "python ==3.12.4"),
        (">=3.10,<3.13", "python <3.13,>=3.10"),
    ],
)
def test_versions_of_python_are_asked_of_conda_in_its_words(required: str, spec: str) -> None:
    assert conda._python_spec(SpecifierSet(required)) == spec


def test_packages_of_a_build_are_those_of_pypi_unless_conda_has_installed_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [SimpleNamespace(name=name, version="1", source=name) for name in ("python", "conda")]
    monkeypatch.setattr(build, "list_packages", lambda _: packages)

    assert build._describe_build(tmp_path, Path("/p"), BASE).packages == (("python", "1"),)
    own = replace(BASE, prefix=tmp_path)
    assert build._describe_build(tmp_path, Path("/p"), own).packages == (("python", "1"), ("conda", "1"))


def test_blank_lines_and_comments_of_mlflows_file_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "python_env.yaml"
    file.write_text("# of mlflow\npython: '3.11.7'\n\ndependencies:\n  # why\n- \"adder\"\n")

    found = read_declaration(file)

    assert [*map(str, found.requirements)] == ["adder"]
    assert found.requires_python == SpecifierSet("==3.11.*")


def test_a_lock_may_have_a_version_before_its_release_and_markers_of_minor_versions(tmp_path: Path) -> None:
    file, lock = tmp_path / "requirements.txt", tmp_path / "pylock.toml"
    file.write_text("adder\n")
    text = PYLOCK.format("1.0rc1").replace("wheels", "marker = \"python_version == '3.12'\"\nwheels")
    lock.write_text(text)

    pins = locked_pins(read_declaration(file), open_foreign_lock(lock), "3.12.4", ())

    assert [(pin.name, pin.version) for pin in pins or ()] == [("adder", "1.0rc1")]
    assert open_foreign_lock(lock).pins("3.11.4") == []


def test_an_index_that_refuses_access_is_asked_again_with_uvs_own_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "uv"
    program.write_text(
        "#!/bin/sh\ncase \"$*\" in *first-index*) echo 'hint: An index URL (https://h) returned a 401 Unauthorized';;\n"
        "*) echo one; echo 'Because adder was not found in the package registry and you require adder';; esac\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(uv_program, "find_uv", lambda: program)

    message = refusal(
        lambda: uv_program.run_uv(["pip"], "m", tmp_path / "model.py", tmp_path / "python", InstallOptions())
    )

    assert message.startswith(
        f"cannot install adder for 'm', named in {tmp_path / 'model.py'}; the error of uv:\n  one"
    )
    assert "An index refuses access, so check its user and password: An index URL (https://h) returned a 401" in message


def test_packages_of_debians_python_are_where_it_looks_for_them(tmp_path: Path) -> None:
    debian = replace(BASE, prefix=Path("/usr"), stdlib=tmp_path / "lib" / "python3.12")
    stdlib = Path("/new/lib/python3.12")

    assert pack.packages_folder(debian, stdlib) == Path("/new/lib/python3/dist-packages")
    assert pack.packages_folder(BASE, stdlib) == stdlib / "site-packages"
    (debian.stdlib / "site-packages").mkdir(parents=True)
    assert pack.packages_folder(debian, stdlib) == stdlib / "site-packages"


def test_links_in_data_of_a_venv_stay_links(tmp_path: Path) -> None:
    (tmp_path / "venv" / "share" / "x").mkdir(parents=True)
    (tmp_path / "venv" / "share" / "x" / "link").symlink_to("nothing")

    pack._copy_rest(tmp_path / "venv", tmp_path / "whole")

    assert (tmp_path / "whole" / "share" / "x" / "link").readlink() == Path("nothing")


def test_a_lock_is_its_own_declaration_and_options_of_several_kinds_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK.format("1.0"))
    (tmp_path / "requirements.txt").write_text("-i https://a --pre\nadder\n")

    assert read_declaration(tmp_path / "pylock.toml").is_lock
    found = read_declaration(tmp_path / "requirements.txt")
    assert (found.is_lock, found.has_options, found.indexes.default) == (False, False, PackageIndex("https://a"))
