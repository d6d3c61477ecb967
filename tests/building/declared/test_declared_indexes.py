"""Indexes that a declaration names are used to resolve it, to install what was resolved, and to download it."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from environments import makers
from environments.index import Indexes, add_to_index, serving_indexes
from environments.wheels import offer_wheels, write_wheel

from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.locking import LockedDeclaration, LockRequest, fetch_locked_wheels, lock_declaration
from naiad_building.indexes import PackageIndex, parse_options
from naiad_building.uv_program import InstallOptions

pytestmark = pytest.mark.builds


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Indexes]:
    """The indexes `main`, which pip's configuration names, and `local`, which alone has `adder 1.0+cpu`."""
    root = tmp_path / "indexes"
    for wheel in offer_wheels(tmp_path / "made").glob("*.whl"):
        add_to_index(root / "main", wheel)
    for version in ("1.0+cpu", "2.0"):
        files = {"adder/__init__.py": f'VERSION = "{version} of local"\n'}
        add_to_index(root / "local", write_wheel(tmp_path / "made", "adder", version, files))
    with serving_indexes(root) as web:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{web.address}/main")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        yield web


def write_script(folder: Path, settings: str, *dependencies: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    listed = ", ".join(f'"{one}"' for one in dependencies)
    lines = ['requires-python = ">=3.10"', f"dependencies = [{listed}]", *settings.splitlines()]
    file = folder / "model.py"
    file.write_text("".join(f"# {line}\n" for line in ("/// script", *lines, "///")))
    return file


def assigned(web: Indexes) -> str:
    index = f'[[tool.uv.index]]\nname = "local"\nurl = "{web.address}/local"\nexplicit = true\n'
    return f'{index}[tool.uv.sources]\nadder = {{ index = "local" }}'


def lock(file: Path, **options: object) -> LockedDeclaration:
    given = {"options": InstallOptions(), "cache": file.parent / "cache", **options}
    return lock_declaration(LockRequest(file=file, **given))  # type: ignore[arg-type] - as given


def imported(tmp_path: Path, file: Path) -> str:
    """The version of `adder` in the environment that a server that resolves nothing builds."""
    manager = EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=StorePolicy(build=EnvBuild.LOCKED))
    return makers.run(manager.prepare(file).python, "-c", "import adder; print(adder.VERSION)").strip()


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        action()
    return caught.value.message


def test_a_package_assigned_to_an_index_is_installed_from_it_alone(tmp_path: Path, web: Indexes) -> None:
    file = write_script(tmp_path / "m", assigned(web), "adder==2.0", "numpy")
    locked = lock(file)

    # The other index has the same version, with other content.
    assert imported(tmp_path, file) == "2.0 of local"
    assert fetch_locked_wheels(locked, tmp_path / "wheels") == 2


@pytest.mark.parametrize("python", [">=3.10", f"=={sys.version_info[0]}.{sys.version_info[1]}.*"])
def test_the_lock_of_a_script_names_neither_an_index_nor_a_folder(
    tmp_path: Path, web: Indexes, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same lock is good for machines with other indexes; locked again, it stays as it is."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "made"))
    file = write_script(tmp_path / "m", assigned(web), "adder==2.0", "numpy")
    file.write_text(file.read_text().replace(">=3.10", python))
    path = lock(file).lock
    written = path.read_text()

    assert "hash = " in written
    assert not [
        part
        for part in (str(web.address), str(tmp_path))
        if part in written.replace(f'index = "{web.address}/local"', "")
    ]
    lock(file)
    assert path.read_text() == written
    assert imported(tmp_path, file) == "2.0 of local"


def test_an_index_with_some_wheels_of_a_version_does_not_hide_those_of_others(tmp_path: Path, web: Indexes) -> None:
    """`extra` has adder 2.0 for another Python alone, and is asked first; `main` has it for all."""
    other = write_wheel(tmp_path / "other", "adder", "2.0", {"adder/__init__.py": ""})
    add_to_index(web.folder / "extra", other.rename(other.with_name("adder-2.0-cp38-none-any.whl")))
    file = write_script(tmp_path / "m", f'[tool.uv]\nextra-index-url = ["{web.address}/extra"]', "adder==2.0", "numpy")

    lock(file)

    assert imported(tmp_path, file) == "2.0"


def test_a_package_is_assigned_to_a_folder_that_has_the_name_of_its_index(tmp_path: Path, web: Indexes) -> None:
    shutil.copytree(web.folder / "local" / "adder", tmp_path / "m" / "files")
    index = '[[tool.uv.index]]\nname = "files"\nurl = "files"\nformat = "flat"\nexplicit = true\n'
    table = f'{index}[tool.uv.sources]\nadder = {{ index = "files" }}'
    file = write_script(tmp_path / "m", table, "adder==2.0", "numpy")

    lock(file)

    assert imported(tmp_path, file) == "2.0 of local"


@pytest.mark.parametrize("versions", [">=3.8", f"=={sys.version_info[0]}.{sys.version_info[1]}.*"])
def test_a_project_assigns_packages_to_an_index(tmp_path: Path, web: Indexes, versions: str) -> None:
    file = tmp_path / "pyproject.toml"
    project = f'[project]\nname = "p"\nversion = "1"\nrequires-python = "{versions}"\n'
    file.write_text(f'{project}dependencies = ["adder==2.0", "numpy"]\n{assigned(web)}')

    lock(file)

    assert imported(tmp_path, file) == "2.0 of local"


@pytest.mark.parametrize("kind", ["model.py", "pyproject.toml", "requirements.txt", "included"])
def test_an_additional_index_is_used_for_resolving_and_installing(tmp_path: Path, web: Indexes, kind: str) -> None:
    local, requirements = f"{web.address}/local", ("adder==1.0+cpu", "numpy")
    folder = tmp_path / "m"
    if kind == "model.py":
        file = write_script(folder, f'[tool.uv]\nextra-index-url = ["{local}"]', *requirements)
    else:
        folder.mkdir()
        file = folder / ("pyproject.toml" if kind == "pyproject.toml" else "requirements.txt")
        project = f'[project]\nname = "p"\nversion = "1"\ndependencies = {list(requirements)}\n'
        text = f'{project}[[tool.uv.index]]\nname = "local"\nurl = "{local}"\n'
        if kind != "pyproject.toml":
            text = f"--extra-index-url {local}\n" + "\n".join(requirements) + "\n"
        if kind == "included":
            (folder / "base.txt").write_text(text)
            text = "-r base.txt\n"
        file.write_text(text)

    locked = lock(file)

    assert imported(tmp_path, file) == "1.0+cpu of local"
    assert fetch_locked_wheels(locked, tmp_path / "wheels") == 2


def test_an_index_that_replaces_the_default_is_used_in_place_of_pips(
    tmp_path: Path, web: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDEX", f"{web.address}/local")
    add_to_index(
        web.folder / "local",
        write_wheel(tmp_path / "made", "numpy", "0.1", {"numpy/__init__.py": "__version__ = '0.1'\n"}),
    )
    file = tmp_path / "m" / "requirements.txt"
    file.parent.mkdir()
    file.write_text("--index-url ${INDEX}\nadder==2.0\nnumpy\n")

    lock(file)

    assert imported(tmp_path, file) == "2.0 of local"
    assert not [path for path in web.requests if path.startswith("/main")]


def test_pinned_requirements_with_an_index_are_their_own_lock(tmp_path: Path, web: Indexes) -> None:
    file = tmp_path / "m" / "requirements.txt"
    file.parent.mkdir()
    wheels = [next(web.folder.glob(f"*/*/{name}")) for name in ("adder-1.0+cpu*.whl", "numpy*.whl")]
    pins = [
        f"{'=='.join(wheel.name.split('-')[:2])} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
        for wheel in wheels
    ]
    file.write_text(f"--extra-index-url {web.address}/local\n{''.join(pins)}")

    assert imported(tmp_path, file) == "1.0+cpu of local"


@pytest.mark.parametrize("written", ["./files", "'files/'", "files/../files"])
def test_paths_of_indexes_are_relative_to_the_script(tmp_path: Path, web: Indexes, written: str) -> None:
    shutil.copytree(web.folder / "local" / "adder", tmp_path / "m" / "files")
    quoted = written if written.startswith("'") else f'"{written}"'
    file = write_script(tmp_path / "m", f"[tool.uv]\nfind-links = [{quoted}]", "adder==1.0+cpu", "numpy")

    lock(file)

    assert imported(tmp_path, file) == "1.0+cpu of local"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "requirements.txt",
            "numpy\n./adder-1.0-py3-none-any.whl\n",
            "'./adder-1.0-py3-none-any.whl' in {file} is not a version of a package",
        ),
        ("requirements.txt", "-e ../adder\n", "'-e ../adder' in {file} is not a version of a package"),
        ("requirements.in", "adder @ file:///tmp/adder.whl\n", "it takes 'adder' from file:///tmp/adder.whl"),
        (
            "pyproject.toml",
            '[project]\nname = "p"\nversion = "1"\ndynamic = ["dependencies"]\n',
            (
                "its dependencies are dynamic, so only its build backend knows them; list them under 'dependencies' in "
                "[project], or in a requirements.txt, and name that"
            ),
        ),
        (
            "pyproject.toml",
            '[project]\nname = "p"\nversion = "1"\ndependencies = ["adder"]\n[tool.uv.sources]\nadder = { path = "../a" }\n',
            "[tool.uv.sources] takes 'adder' from a path",
        ),
    ],
)
def test_a_package_that_no_index_has_is_refused_before_a_lock_is_written(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    file = tmp_path / name
    file.write_text(text)

    message = refusal(lambda: lock(file))

    assert message.startswith(f"cannot lock {file}: {reason.format(file=file)}")
    assert "dynamic" in reason or message.endswith(
        "; build a wheel of it, name the folder of that with --wheels (for a server, --env-wheels), and require its version"
    )
    assert not (tmp_path / "pylock.toml").exists()


def test_an_index_that_refuses_access_is_named(tmp_path: Path, web: Indexes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("adder==1.0\n")
    web.locked.add("main")
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.address}/main".replace("://", "://user:wrong@"))

    message = refusal(lambda: lock(file))

    assert "\n  An index refuses access, so check its user and password: " in message
    assert f"{web.address}/main" in message
    assert "401" in message
    assert "wrong@" not in message


def test_the_files_of_a_lock_are_downloaded_with_the_password_of_their_index(
    tmp_path: Path, web: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.passwords["main"] = "us@er", "pa ss"
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.address}/main".replace("://", "://us%40er:pa%20ss@"))
    file = tmp_path / "requirements.txt"
    file.write_text("adder==1.0\nnumpy\n")
    told: list[str] = []

    locked = lock(file, options=InstallOptions(progress=told.append))
    told.clear()
    assert fetch_locked_wheels(locked, tmp_path / "wheels") == 2

    assert {path.name for path in (tmp_path / "wheels").iterdir()} == {
        "adder-1.0-py3-none-any.whl",
        "numpy-0.1-py3-none-any.whl",
    }
    assert told == ["downloading adder-1.0-py3-none-any.whl", "downloading numpy-0.1-py3-none-any.whl"]
    # What is there is not downloaded again; and a login in ~/.netrc is used, too.
    told.clear()
    assert fetch_locked_wheels(locked, tmp_path / "wheels") == 2
    assert told == []
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login us@er password pa\\ ss\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.address}/main")
    assert fetch_locked_wheels(locked, tmp_path / "again") == 2


def test_a_file_that_is_not_the_locked_one_is_not_downloaded(
    tmp_path: Path, web: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("adder==1.0\nnumpy\n")
    locked = lock(file)
    (page,) = web.folder.glob("main/adder")
    changed = write_wheel(tmp_path / "made", "adder", "1.0", {"adder/__init__.py": "VERSION = 'evil'\n"})
    (page / changed.name).write_bytes(changed.read_bytes())

    # The index still has the old digest in its page.
    message = refusal(lambda: fetch_locked_wheels(locked, tmp_path / "wheels"))
    assert message.startswith(f"cannot use {web.address}/main/adder/adder-1.0-py3-none-any.whl: its digest is ")
    assert not list((tmp_path / "wheels").glob("*adder*"))

    add_to_index(web.folder / "main", changed)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "new-cache"))  # uv keeps pages for minutes
    message = refusal(lambda: fetch_locked_wheels(locked, tmp_path / "wheels"))
    assert message.startswith("cannot find a file of adder 1.0 for Python ")
    assert "the indexes have adder-1.0-py3-none-any.whl; lock again" in message


def test_an_index_that_fails_for_a_moment_is_asked_again(tmp_path: Path, web: Indexes) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("adder==1.0\n")
    web.failures = 1

    lock(file)

    assert web.failures == 0


def test_the_proxy_of_pips_settings_is_used(tmp_path: Path, web: Indexes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", web.address)
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/main")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.invalid")
    file = tmp_path / "requirements.txt"
    file.write_text("adder==1.0\n")

    lock(file)

    assert "http://index.invalid/main/adder/" in web.requests


def test_options_of_requirements_files_are_read_in_all_their_spellings(tmp_path: Path) -> None:
    assert parse_options("-rbase.txt") == [("-r", "base.txt")]
    assert parse_options("--no-index --find-links=a -f b") == [("--no-index", ""), ("--find-links", "a"), ("-f", "b")]
    assert parse_options("adder --hash=sha256:0") == []
    file = tmp_path / "requirements.txt"
    file.write_text("-i https://one/simple --trusted-host one\n-f wheels\n--no-index\n")

    indexes = read_declaration(file).indexes

    assert indexes.default == PackageIndex("https://one/simple")
    assert indexes.trusted_hosts == ("one",)
    assert indexes.find_links == indexes.places == (str(tmp_path / "wheels"),)
    assert indexes.only_links
