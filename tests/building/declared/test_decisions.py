"""What is decided before an environment is built, and what a build calls, with records in place of programs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ConfigError, ExecutionEnvironmentError, InterpreterNotFoundError, StaleLockError
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.store import Store
from naiad_building import build, uv_program
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.declared import conda, interpreter, package_files, provider, resolving, venv
from naiad_building.declared.conda import CondaDeclaration, CondaPackages, build_conda_environment
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.interpreter import ChosenPython, choose_python
from naiad_building.declared.package_files import PackageFile
from naiad_building.declared.provider import DeclaredEnvironments
from naiad_building.indexes import PackageIndex, PackageIndexes
from naiad_building.lockfiles import Pin, open_foreign_lock
from naiad_building.recipe import RECIPE_FILE, Recipe
from naiad_building.uv_program import InstallOptions, Requirements, install

rattler = pytest.importorskip("rattler")

BASE = BaseInterpreter(
    Path("/usr/bin/python3.12"), "3.12.4", Path("/p"), Path("/p/lib/python3.12"), Path("/p/i"), "cpython-312"
)
CHOSEN = ChosenPython(Path("/usr/bin/python3.12"), Path("/usr"), "3.12.4", "cpython-312-x86_64-linux-gnu")
ADDER, NUMPY = Pin("adder", "1.0", ("aa",)), Pin("numpy", "2.0", ("bb",))
MINE = ChosenPython(Path("/opt/python3.11"), Path("/opt"), "3.11.2", "cpython-311-x86_64-linux-gnu")


def record(name: str, version: str, url: str = "https://channel/linux-64/{}.conda") -> rattler.RepoDataRecord:
    built = rattler.BuildString("0")
    package = rattler.PackageRecord(
        name=name, version=version, build=built, build_number=0, subdir="linux-64", sha256=bytes(32)
    )
    file = f"{name}-{version}-0"
    return rattler.RepoDataRecord(package, f"{file}.conda", url.format(file), "https://channel/")


def refusal(action: Callable[[], object], kind: type[Exception] = ExecutionEnvironmentError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


# -- conda packages ---------------------------------------------------------------------------------------------------

DECLARED = CondaDeclaration(
    file=Path("/m/environment.yml"),
    text="",
    channels=("https://channel",),
    specs=("python>=3.10", "zlib=1.2.*"),
    requirements=("six>=1", "-r more.txt", "old; python_version < '3'"),
    variables={"A": "1"},
)
PACKAGES = CondaPackages(
    records=(record("python", "3.12"), record("zlib", "1.2.13")), pins=(Pin("Six", "1.1", ("a",)),)
)


@pytest.mark.parametrize(
    ("packages", "python", "why"),
    [
        (PACKAGES, None, ""),
        (PACKAGES, ">=3.12", ""),
        (PACKAGES, ">=3.13", "has Python 3.12, and the model asks for Python >=3.13"),
        (replace(PACKAGES, records=PACKAGES.records[:1]), None, "requires 'zlib=1.2.*': it has no zlib"),
        (
            replace(PACKAGES, records=(record("python", "3.9"), PACKAGES.records[1])),
            None,
            "requires 'python>=3.10': it has python 3.9",
        ),
        (replace(PACKAGES, pins=()), None, "requires 'six>=1': it has no six"),
        (replace(PACKAGES, pins=(Pin("six", "0.9", ("a",)),)), None, "requires 'six>=1': it has six 0.9"),
        (replace(PACKAGES, pins=(Pin("six", "1.2rc1", ("a",)),)), None, ""),
    ],
)
def test_a_lock_of_conda_packages_must_have_what_is_declared(
    packages: CondaPackages, python: str | None, why: str
) -> None:
    def check() -> None:
        required = None if python is None else SpecifierSet(python)
        conda._require_current(Path("/m/lock"), DECLARED, packages, required)

    if why:
        message = refusal(check, StaleLockError)
        assert why in message
        assert message.endswith("; update it with `naiad lock /m/environment.yml`")
    else:
        check()


def test_what_a_lock_of_conda_packages_selects_is_its_identity() -> None:
    assert PACKAGES.versions == {"python": "3.12", "zlib": "1.2.13", "six": "1.1"}
    assert PACKAGES.identity == [
        ["python", "3.12", "0", "linux-64", "0" * 64],
        ["zlib", "1.2.13", "0", "linux-64", "0" * 64],
        ["six", "1.1", ["a"]],
    ]
    wrong = replace(DECLARED, specs=("=",))
    assert "'=' is not a conda package" in refusal(
        lambda: conda._require_current(Path("/m/lock"), wrong, PACKAGES, None), ConfigError
    )


def test_conda_packages_that_are_not_here_are_refused_offline(tmp_path: Path) -> None:
    (tmp_path / "zlib-1.2.13-0").mkdir()
    here, local = PACKAGES.records[1], record("teller", "1", "file:///channel/{}.conda")

    conda._require_present([here, local], tmp_path, DECLARED)

    message = refusal(lambda: conda._require_present(PACKAGES.records, tmp_path, DECLARED))
    assert "offline: python-3.12-0 of https://channel/ is not on this machine" in message


def test_wheels_beside_conda_packages_have_digests_in_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(
        "packages:\n- pypi: https://h/six.whl\n  name: six\n  version: '1'\n- conda: https://h/zlib.conda\n"
    )
    wheel = PackageFile(package="six", version="1", url="https://h/six.whl", digest="ab")

    conda._add_digests(lock, [wheel])

    assert lock.read_text() == (
        "packages:\n- pypi: https://h/six.whl\n  name: six\n  version: '1'\n  sha256: ab\n- conda: https://h/zlib.conda\n"
    )


@pytest.mark.parametrize("offline", [False, True])
def test_an_environment_of_conda_packages_is_built_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    prefix, final, cache = tmp_path / "new", tmp_path / "final", tmp_path / "cache"
    for name in ("python-3.12-0", "zlib-1.2.13-0"):
        (cache / name).mkdir(parents=True)
    (prefix / "bin").mkdir(parents=True)
    steps: list[object] = []

    def installed(records: object, prefix: Path, **given: object) -> None:
        assert records == PACKAGES.records
        steps.append(("conda", given["final"]))
        (prefix / "bin" / "python").touch()
        (prefix / "bin" / "tool").write_text(f"#!{prefix}/bin/python\n")

    def wheels(label: str, requirements: Requirements, python: Path, options: InstallOptions) -> None:
        steps.append((label, requirements.text, requirements.is_locked, python.name, options.offline))

    monkeypatch.setattr(conda, "install_packages", installed)
    monkeypatch.setattr(conda, "install", wheels)
    monkeypatch.setattr(conda, "find_interpreter_in", lambda prefix: prefix / "bin" / "python")
    monkeypatch.setattr(conda, "inspect_base", lambda _: BASE)
    monkeypatch.setattr(conda, "compile_with_fixed_times", lambda *given: steps.append(("compile", given[1])))
    told: list[str] = []

    build_conda_environment(
        prefix, final, DECLARED, PACKAGES, cache, "m", InstallOptions(offline=offline, progress=told.append)
    )

    assert steps == [
        ("conda", final),
        ("m", "Six==1.1 \\\n    --hash=sha256:a\n", True, "python", offline),
        ("compile", prefix),
    ]
    assert (prefix / "bin" / "tool").read_text() == f"#!{final}/bin/python\n"
    assert (prefix / "conda-meta" / "state").is_file()
    assert told == ["installing 2 conda packages", "installing 1 packages of PyPI for Python 3.12.4"]
    if offline:
        (cache / "zlib-1.2.13-0").rmdir()
        given = (prefix, final, DECLARED, PACKAGES, cache, "m", InstallOptions(offline=True))
        assert "zlib-1.2.13-0" in refusal(lambda: build_conda_environment(*given))


def test_conda_packages_are_solved_for_the_python_that_the_model_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    wheel = PackageFile(package="six", version="1.1", url="https://h/six-1.1-py3-none-any.whl", digest="ab" * 32)

    def solve(channels: object, specs: list[str], file: Path) -> list[rattler.RepoDataRecord]:
        asked.append(specs)
        return [*PACKAGES.records]

    def uv(file: Path, lines: list[str], base: BaseInterpreter, options: InstallOptions) -> list[PackageFile]:
        asked.append((lines, [index.url for index in options.indexes.extra]))
        return [wheel]

    monkeypatch.setattr(conda, "solve_packages", solve)
    monkeypatch.setattr(conda, "install_packages", lambda records, *_, **__: asked.append(len(records)))
    monkeypatch.setattr(conda, "find_interpreter_in", lambda prefix: prefix / "bin" / "python")
    monkeypatch.setattr(conda, "inspect_base", lambda _: BASE)
    monkeypatch.setattr(conda, "resolve_into_environment", uv)
    declared = replace(DECLARED, requirements=("--extra-index-url https://more", "six>=1"))
    told: list[str] = []
    given = (tmp_path, tmp_path / "cache")

    lock = conda.resolve_conda(declared, *given, SpecifierSet("==3.12.*"), InstallOptions(progress=told.append))

    assert asked == [
        ["python>=3.10", "zlib=1.2.*", "python 3.12.*"],
        2,
        (["six>=1"], ["https://more"]),
    ]
    assert told[0] == "solving for 3 conda packages from https://channel"
    found = conda.read_conda_lock(lock, declared, None)
    assert found.versions == PACKAGES.versions
    assert found.pins == (Pin("six", "1.1", (wheel.digest,)),)
    stale = replace(declared, specs=("zlib=9",))
    assert "requires 'zlib=9'" in refusal(lambda: conda.read_conda_lock(lock, stale, None), StaleLockError)
    asked.clear()
    conda.resolve_conda(replace(DECLARED, requirements=()), *given, None, InstallOptions())
    assert asked == [["python>=3.10", "zlib=1.2.*"]]
    offline = InstallOptions(offline=True)
    assert "https://channel" in refusal(lambda: conda.resolve_conda(DECLARED, *given, None, offline))


@pytest.mark.parametrize("python", [None, "3.12"])
def test_a_recipe_of_conda_packages_is_built_beside_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    (tmp_path / "recipe").mkdir()
    file = tmp_path / "recipe" / "environment.yml"
    file.write_text("channels: [https://channel]\ndependencies: [python]\nvariables: {A: '1', B: '2'}\n")
    (tmp_path / "recipe" / RECIPE_FILE).write_text('name = "r"\n')
    recipe = Recipe(tmp_path / "recipe", "r", SpecifierSet(">=3.10"), conda=file, variables={"B": "3"})
    asked: list[object] = []

    def resolve(declaration: object, folder: Path, cache: Path, required: SpecifierSet | None, *_: object) -> Path:
        asked.append({*SpecifierSet(str(required))})
        return folder / "lock"

    def built(prefix: Path, final: Path, *_: object) -> None:
        asked.append((prefix.parent.parent, final))
        (prefix / "bin").mkdir()
        (prefix / "bin" / "python").touch()

    def fail(*_: object) -> None:
        raise OSError("a script failed")

    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(conda, "resolve_conda", resolve)
    monkeypatch.setattr(conda, "read_conda_lock", lambda *_: PACKAGES)
    monkeypatch.setattr(conda, "build_conda_environment", built)
    monkeypatch.setattr(build, "inspect_base", lambda _: BASE)
    prefix = tmp_path / "out" / "env"
    prefix.parent.mkdir()

    executable, base = build._build_conda(recipe, prefix, python, InstallOptions())

    wanted = {*SpecifierSet(">=3.10" + (",==3.12.*" if python else ""))}
    assert asked == [wanted, (prefix.parent, prefix)]
    assert (executable, base) == (prefix / "bin" / "python", BASE)
    assert (prefix / "conda-meta" / "state").read_text().count('"3"') == 1
    assert [path.name for path in prefix.parent.iterdir()] == ["env"]
    described = build._describe_build(prefix, executable, BASE)
    assert (described.prefix, described.python, described.packages) == (prefix, executable, ())
    assert "give a version instead of /usr/bin/python3" in refusal(
        lambda: build._build_conda(recipe, prefix, "/usr/bin/python3", InstallOptions()), ConfigError
    )
    shutil.rmtree(prefix)
    monkeypatch.setattr(build, "run_post_link_scripts", fail)
    assert refusal(lambda: build._build_conda(recipe, prefix, python, InstallOptions()), OSError)
    assert list(prefix.parent.iterdir()) == []


# -- virtual environments ---------------------------------------------------------------------------------------------


def test_a_virtual_environment_gets_packages_by_their_indexes_and_times_that_are_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, final, local = tmp_path / "new", tmp_path / "final", PackageIndex("https://local", name="local")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "p").mkdir(parents=True)
    (prefix / "lib" / "p" / "own.py").touch()
    os.link(prefix / "lib" / "p" / "own.py", prefix / "lib" / "p" / "shared.py")
    (prefix / "lib" / "p" / "alone.py").touch()
    (prefix / "bin" / "tool").write_text(f"#!{prefix}/bin/python\n")
    steps: list[object] = []

    def run(command: list[object]) -> subprocess.CompletedProcess[str]:
        steps.append([str(part) for part in command][1:])
        return subprocess.CompletedProcess(command, 0, "")

    def wheels(label: str, requirements: Requirements, python: Path, options: InstallOptions) -> None:
        default = options.indexes.default
        steps.append(
            (label, requirements.text.split()[0], requirements.is_locked, None if default is None else default.url)
        )
        assert python == prefix / "bin" / "python"

    monkeypatch.setattr(venv, "run_to_end", run)
    monkeypatch.setattr(venv, "install", wheels)
    monkeypatch.setattr(
        venv, "compile_environment", lambda python, *_, left_out: steps.append(("compile", sorted(left_out)))
    )
    told: list[str] = []
    options = InstallOptions(indexes=PackageIndexes(assigned={"adder": local}), progress=told.append)

    venv.build_venv(prefix, final, BASE, [ADDER, NUMPY], Path("/m/model.py"), "m", options)

    assert steps[0][-4:] == ["--without-pip", "--python", str(BASE.executable), str(prefix)]
    assert steps[1:] == [
        ("m", "adder==1.0", True, "https://local"),
        ("m", "numpy==2.0", True, None),
        ("compile", ["test", "tests"]),
    ]
    assert (prefix / "bin" / "tool").read_text() == f"#!{final}/bin/python\n"
    assert (prefix / "lib" / "p" / "alone.py").stat().st_mtime == 315_532_800
    assert (prefix / "lib" / "p" / "own.py").stat().st_mtime != 315_532_800
    assert told == ["installing 2 packages for Python 3.12.4", "compiling"]
    monkeypatch.setattr(venv, "run_to_end", lambda command: subprocess.CompletedProcess(command, 1, "no room"))
    given = (prefix, final, BASE, [ADDER], Path("/m/model.py"), "m", options)
    assert refusal(lambda: venv.build_venv(*given)).endswith(f"in {prefix}: no room")


@pytest.mark.parametrize("is_locked", [True, False])
def test_uv_installs_what_is_locked_without_further_packages(monkeypatch: pytest.MonkeyPatch, is_locked: bool) -> None:
    seen: list[tuple[list[str], str]] = []

    def run(arguments: list[str], *_: object) -> None:
        seen.append((arguments[:-1], Path(arguments[-1]).read_text()))

    monkeypatch.setattr(uv_program, "run_uv", run)

    install("m", Requirements("adder==1\n", Path("/m/r.txt"), is_locked), Path("/p"), InstallOptions())

    locked = ["--no-deps", "--require-hashes"] if is_locked else []
    command = ["pip", "install", "--break-system-packages", "--link-mode=copy", *locked, "-r"]
    assert seen == [(command, "adder==1\n")]


def test_wheels_for_an_environment_are_those_that_uv_would_add(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def run(arguments: list[str], *_: object) -> list[str]:
        seen.update(arguments=arguments[:-1], text=Path(arguments[-1]).read_text())
        return ["Resolved 2 packages", " + six==1.0", " + adder==2", " ~ other==3"]

    monkeypatch.setattr(resolving, "run_uv", run)
    monkeypatch.setattr(resolving, "locate_files", lambda added, *_: [added])

    found = resolving.resolve_into_environment(Path("/m/e.yml"), ["six", "adder>1"], BASE, InstallOptions())

    assert found == [{"six": "1.0", "adder": "2"}]
    assert seen == {
        "arguments": ["pip", "install", "--dry-run", "--only-binary=:all:", "-r"],
        "text": "six\nadder>1\n",
    }


# -- interpreters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "asked"), [(0, ">=3.12,<3.13"), (1, "==3.12.*"), (0, "<3")])
def test_uv_fetches_a_python_that_is_not_here(monkeypatch: pytest.MonkeyPatch, code: int, asked: str) -> None:
    fetched: list[list[str]] = []

    def run(command: list[object]) -> subprocess.CompletedProcess[str]:
        fetched.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, code, "no such version")

    def choose(required: SpecifierSet, cache: Path) -> ChosenPython:
        if not fetched or code:
            raise InterpreterNotFoundError(f"no Python {required} in {cache}")
        return CHOSEN

    monkeypatch.setattr(uv_program, "find_uv", lambda: Path("/uv"))
    monkeypatch.setattr(uv_program, "run_to_end", run)
    monkeypatch.setattr(interpreter, "_installed_python", choose)
    told: list[str] = []

    def fetch() -> ChosenPython:
        return choose_python(SpecifierSet(asked), Path("/cache"), told.append)

    if asked == "<3":
        assert refusal(fetch, InterpreterNotFoundError)
        assert not fetched
        return
    if code:
        assert refusal(fetch, InterpreterNotFoundError) == "no Python ==3.12.* in /cache"
        assert told[-1] == "uv has not installed Python 3.12: no such version"
    else:
        assert fetch() == CHOSEN
        assert fetch() == CHOSEN  # it is there now
    assert len(fetched) == 1
    assert fetched[0][:5] == ["/uv", "python", "install", "--no-config", "--no-bin"]
    assert SpecifierSet(fetched[0][5]) == SpecifierSet(asked)
    assert told[0] == "downloading Python 3.12 with uv"


# -- which packages ---------------------------------------------------------------------------------------------------


def environments(tmp_path: Path, **policy: object) -> DeclaredEnvironments:
    root = tmp_path / "store"
    return DeclaredEnvironments(root, StorePolicy(**policy), Store(root, LogReporter()))  # type: ignore[arg-type] - as given


def requirements(tmp_path: Path, *names: str, files: str = "adder-1.0-py3-none-any.whl") -> Path:
    """A file of requirements with a lock that has adder 1.0, in these files, and numpy 2.0."""
    file = tmp_path / "m" / "requirements.txt"
    file.parent.mkdir()
    file.write_text("".join(f"{name}\n" for name in names))
    packages = [("adder", "1.0", files), ("numpy", "2.0", "numpy-2.0-py3-none-any.whl")]
    digest = hashlib.sha256(b"").hexdigest()
    file.with_name("pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "x"\n'
        + "".join(
            f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{{ path = "{wheel}", hashes = {{ sha256 = '
            f'"{digest}" }} }}]\n'
            for name, version, wheel in packages
            if name in " ".join(names)
        )
    )
    return file


def test_a_lock_selects_the_packages_for_the_chosen_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "choose_python", lambda *_: CHOSEN)
    file = requirements(tmp_path, "adder", "numpy")

    chosen, pins = environments(tmp_path)._select(read_declaration(file), None, "m")

    assert chosen == CHOSEN
    assert [(pin.name, pin.version) for pin in pins] == [("adder", "1.0"), ("numpy", "2.0")]


def test_an_environment_must_have_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "choose_python", lambda *_: CHOSEN)
    file = requirements(tmp_path, "adder")

    message = refusal(lambda: environments(tmp_path)._select(read_declaration(file), None, "m"))

    assert message == (
        f"the environment of {file} has no numpy, which every model needs; add it there, and run `naiad lock {file}`"
    )


@pytest.mark.parametrize("has_other", [True, False])
def test_another_python_is_taken_if_the_lock_has_files_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_other: bool
) -> None:
    asked: list[str] = []

    def choose(required: SpecifierSet, *_: object) -> ChosenPython:
        asked.append(str(required))
        if "!=3.12.*" not in str(required):
            return CHOSEN
        if not has_other:
            raise InterpreterNotFoundError("none")
        return MINE

    monkeypatch.setattr(provider, "choose_python", choose)
    file = requirements(tmp_path, "adder", "numpy", files="adder-1.0-cp311-none-any.whl")

    chosen, pins = environments(tmp_path)._select(read_declaration(file), SpecifierSet(">=3.10"), "m")

    assert chosen == (MINE if has_other else CHOSEN)
    assert [pin.name for pin in pins] == ["adder", "numpy"]
    assert {*SpecifierSet(asked[-1])} == {*SpecifierSet(">=3.10,!=3.12.*")}


def test_what_was_resolved_is_remembered_and_only_where_that_is_allowed(tmp_path: Path) -> None:
    file = requirements(tmp_path, "adder", "numpy")
    declaration, known, made = read_declaration(file), tmp_path / "store" / "resolved" / ("a" * 64), []
    lock = file.with_name("pylock.toml").read_text()

    def resolve(folder: Path) -> Path:
        made.append(folder)
        (folder / "pylock.toml").write_text(lock)
        return folder / "pylock.toml"

    locked = environments(tmp_path, build=EnvBuild.LOCKED)
    message = refusal(lambda: locked._resolved(declaration, known, resolve, "m"))
    assert "has no lock, and --env-build=locked resolves no requirements: looked for pylock.toml in" in message
    allowed = environments(tmp_path, build=EnvBuild.ALLOWED)

    paths = [each._resolved(declaration, known, resolve, "m") for each in (allowed, allowed, locked)]

    assert paths == [known / "pylock.toml"] * 3
    assert len(made) == 1
    assert [pin.name for pin in open_foreign_lock(paths[0]).pins("3.12.4")] == ["adder", "numpy"]


def test_what_is_done_now_is_known_by_the_model(tmp_path: Path) -> None:
    made = environments(tmp_path)

    made._progress("m")("downloading numpy, 0 B of 16.9 MB")

    assert made.activity() == {"m": "downloading numpy, 0 B of 16.9 MB"}
    assert "--env-trust requires a signature" in refusal(
        lambda: environments(tmp_path, trust=object()).acquire(tmp_path / "model.py")
    )


def test_files_of_locked_packages_are_downloaded_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {name: tmp_path / "index" / f"{name}-1.0-py3-none-any.whl" for name in ("adder", "six")}
    (tmp_path / "index").mkdir()
    digests = {}
    for name, wheel in wheels.items():
        wheel.write_bytes(name.encode())
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    other = "adder-1.0-cp27-none-any.whl"

    def run(arguments: list[str], *_: object) -> None:
        assert Path(arguments[-1]).read_text() == "adder==1.0\nsix==1.0\n"
        assert arguments[:-4] == [*uv_program.PYLOCK_COMMAND][: len(arguments) - 4]
        text = "".join(
            f'[[packages]]\nname = "{name}"\nversion = "1.0"\nwheels = [{{ url = "file://{tmp_path}/{other}", hashes = '
            f'{{ sha256 = "0" }} }}, {{ url = "file://{wheel}", hashes = {{ sha256 = "{digests[name]}" }} }}]\n'
            for name, wheel in wheels.items()
        )
        Path(arguments[-2]).write_text(text)

    monkeypatch.setattr(package_files, "run_uv", run)
    folder, told = tmp_path / "wheels", []
    folder.mkdir()
    pins = [Pin(name, "1.0", ("0", digest)) for name, digest in digests.items()]
    given = (folder, Path("/m/model.py"), BASE, InstallOptions(progress=told.append))

    package_files.download_files(pins, *given)
    package_files.download_files(pins, *given)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        wheel.name: name.encode() for name, wheel in wheels.items()
    }
    assert told == [f"downloading {wheel.name}" for wheel in wheels.values()]
    (folder / wheels["six"].name).write_bytes(b"half")
    wheels["six"].write_bytes(b"another")
    assert f"and the lock of /m/model.py has {digests['six']}; the index has another file" in refusal(
        lambda: package_files.download_files(pins, *given)
    )
    strangers = [Pin(name, "1.0", ("99",)) for name in digests]
    assert "cannot find a file of adder 1.0 for Python 3.12.4 with a digest of the lock" in refusal(
        lambda: package_files.download_files(strangers, *given)
    )
    assert package_files.locate_files({}, Path("/m"), BASE, InstallOptions()) == []


def test_addresses_get_the_login_of_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine other login me password p@ss\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    indexes = PackageIndexes(default=PackageIndex("https://a/s"), extra=(PackageIndex("https://u:p@host/simple"),))

    found = [package_files._with_login(f"https://{host}/x.whl", indexes) for host in ("host", "other", "third")]

    assert found == ["https://u:p@host/x.whl", "https://me:p%40ss@other/x.whl", "https://third/x.whl"]


def test_a_model_gets_the_entry_of_its_packages_and_its_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "choose_python", lambda *_: CHOSEN)
    file, made = requirements(tmp_path, "adder", "numpy"), environments(tmp_path)
    plans: list[object] = []
    monkeypatch.setattr(made, "_get_or_build", lambda plan, label: plans.append((plan.file, label)) or "entry")
    made._progress("m")("compiling")

    assert made.acquire(file, label="m") == "entry"
    assert plans == [(file, "m")]
    assert made.activity() == {}
    file.with_name("pylock.toml").write_text("broken")
    assert "cannot read" in refusal(lambda: made.acquire(file, label="m"))


def test_a_lock_of_conda_packages_that_is_stale_is_resolved_again_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(DECLARED, file=tmp_path / "environment.yml")
    declared.lock.write_text("old")

    def read(path: Path, *_: object) -> CondaPackages:
        if path.read_text() == "old":
            raise StaleLockError("it is old")
        return PACKAGES

    def resolve(declaration: object, folder: Path, *_: object) -> Path:
        (folder / declared.lock.name).write_text("new")
        return folder / declared.lock.name

    monkeypatch.setattr(conda, "read_conda_lock", read)
    monkeypatch.setattr(conda, "resolve_conda", resolve)

    def select(build: EnvBuild) -> CondaPackages:
        return environments(tmp_path, build=build)._select_conda(declared, None, "m")

    assert refusal(lambda: select(EnvBuild.LOCKED), StaleLockError) == "it is old"
    assert select(EnvBuild.ALLOWED) == PACKAGES
    declared.lock.write_text("current")
    assert select(EnvBuild.LOCKED) == PACKAGES


def test_packages_of_a_remembered_lock_are_read_for_the_chosen_python(tmp_path: Path) -> None:
    file, made = requirements(tmp_path, "adder", "numpy"), environments(tmp_path)
    declaration, lock = read_declaration(file), file.with_name("pylock.toml")
    known = tmp_path / "store" / "resolved" / provider.resolution_key(declaration, CHOSEN)
    known.mkdir(parents=True)
    remembered = lock.rename(known / lock.name)

    assert [pin.name for pin in made._resolve(declaration, CHOSEN, "m")] == ["adder", "numpy"]
    remembered.write_text("broken")
    assert "cannot read" in refusal(lambda: made._resolve(declaration, CHOSEN, "m"))


@pytest.mark.parametrize("limit", [0, 5])
def test_an_environment_is_built_once_and_the_store_is_shrunk_where_it_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    made, shrunk, built = environments(tmp_path, max_bytes=limit), [], []
    known: dict[str, str] = {}
    plan = provider._Plan(file=tmp_path / "model.py", digest="a" * 64, build=lambda prefix, final: None)

    def build(digest: str, build: object, *, origin: str, label: str) -> str:
        built.append((origin, label))
        return known.setdefault(digest, "entry")

    monkeypatch.setattr(made._store, "get", known.get)
    monkeypatch.setattr(made._store, "get_or_build", build)
    monkeypatch.setattr(provider, "shrink_store", lambda *given: shrunk.append(given[2]))

    for _ in range(2):
        entry, lease = made._get_or_build(plan, "m")
        assert entry == "entry"
        lease.release()

    assert built == [(str(plan.file), "m")]
    assert shrunk == [limit] * bool(limit)
    known.clear()
    never = environments(tmp_path, build=EnvBuild.NEVER)
    assert "and --env-build=never builds none" in refusal(lambda: never._get_or_build(plan, "m"))
