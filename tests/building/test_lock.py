"""Locks say exactly what is installed, hold for what they were resolved from, and name no place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from environments.packages import offer_greeter, write_recipe

from naiad.cli.commands import naiad_group
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad_building import lockfiles
from naiad_building.build import build, requirements_to_install
from naiad_building.declared.declaration import is_locked
from naiad_building.lockfiles import Pin, open_foreign_lock, pin_lines
from naiad_building.recipe import read_recipe
from naiad_building.uv_program import InstallOptions

_ENVS = Path(__file__).parents[2] / "envs"
_A, _B = "a" * 64, "b" * 64

PYLOCK = """
lock-version = "1.0"
created-by = "a test"
extras = ["fast"]
[[packages]]
name = "numpy"
version = "2.2.6"
marker = "python_version >= '3.10'"
[[packages.wheels]]
url = "https://example.invalid/numpy-2.2.6-cp312-cp312-manylinux_2_17_x86_64.whl"
hashes = { sha256 = "HASH" }
[[packages]]
name = "orjson"
version = "3.10.0"
marker = "'fast' in extras"
sdist = { url = "https://example.invalid/orjson-3.10.0.tar.gz", hashes = { sha256 = "HASH" } }
""".replace("HASH", _A)
UV_LOCK = """
version = 1
[[package]]
name = "mine"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "numpy", version = "1.24.4", marker = "python_full_version < '3.9'" },
                { name = "numpy", version = "2.2.6", marker = "python_full_version >= '3.9'" }]
[package.optional-dependencies]
fast = [{ name = "httpx", extra = ["http2"] }]
[[package]]
name = "numpy"
version = "1.24.4"
source = { registry = "https://example.invalid/simple" }
wheels = [{ url = "https://example.invalid/numpy.whl", hash = "sha256:HASH" }]
[[package]]
name = "numpy"
version = "2.2.6"
source = { registry = "https://example.invalid/simple" }
wheels = [{ url = "https://example.invalid/numpy.whl", hash = "sha256:HASH" }]
[[package]]
name = "httpx"
version = "0.27.0"
source = { registry = "https://example.invalid/simple" }
sdist = { url = "https://example.invalid/httpx.tar.gz", hash = "sha256:HASH" }
[package.optional-dependencies]
http2 = [{ name = "h2" }]
[[package]]
name = "h2"
version = "4.1.0"
source = { registry = "https://example.invalid/simple" }
wheels = [{ url = "https://example.invalid/h2.whl", hash = "sha256:HASH" }]
[[package]]
name = "of-nobody"
version = "1.0"
source = { registry = "https://example.invalid/simple" }
wheels = [{ url = "https://example.invalid/of.whl", hash = "sha256:HASH" }]
""".replace("HASH", _A)


def _file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("3.12.1", [("numpy", "2.2.6")]),
        ("3.9.18", []),
    ],
)
def test_a_pylock_is_read_for_one_python(tmp_path: Path, python: str, expected: list[tuple[str, str]]) -> None:
    pins = open_foreign_lock(_file(tmp_path, "pylock.toml", PYLOCK)).pins(python)
    assert [(pin.name, pin.version) for pin in pins] == expected
    assert all(pin.digests == (_A,) for pin in pins)


def _pylock(*packages: str, version: str = '"1.0"', head: str = "") -> str:
    tables = "".join(f"[[packages]]\n{package}\n" for package in packages)
    return f"lock-version = {version}\ncreated-by = 'a test'\n{head}\n{tables}"


def _wheel(name: str = "adder", version: str = "1.0", more: str = "", file: str = "") -> str:
    file = file or f"{name}-{version}-py3-none-any.whl"
    wheel = f"{{ url = 'https://example.invalid/{file}', hashes = {{ sha256 = '{_A}' }} }}"
    return f"name = '{name}'\nversion = '{version}'\n{more}\nwheels = [{wheel}]"


@pytest.mark.parametrize("version", ["99.0", "2.0", "0.9"])
def test_a_pylock_of_another_major_version_is_rejected(tmp_path: Path, version: str) -> None:
    file = _file(tmp_path, "pylock.toml", _pylock(_wheel(), version=f'"{version}"'))
    with pytest.raises(ExecutionEnvironmentError) as caught:
        open_foreign_lock(file)
    assert caught.value.message == (
        f"cannot read {file}: it has lock-version {version}, and naiad knows 1.0; lock again with a tool that writes "
        "1.0, for example `uv pip compile --format pylock.toml`"
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [("1.0", "Unexpected type float (expected str)"), ('"one"', "Invalid version: 'one'"), ("", "")],
)
def test_a_pylock_without_a_version_is_rejected(tmp_path: Path, version: str, said: str) -> None:
    text = _pylock(_wheel(), version=version) if version else _pylock(_wheel()).partition("\n")[2]
    file = _file(tmp_path, "pylock.toml", text)
    said = said or "Missing required value"
    with pytest.raises(ExecutionEnvironmentError) as caught:
        open_foreign_lock(file)
    assert caught.value.message == (
        f"cannot read {file}: {said} in 'lock-version'; PEP 751 says what it must have, lock again"
    )


@pytest.mark.parametrize(("version", "warnings"), [("1.0", 0), ("1", 0), ("1.1", 1), ("1.20", 1)])
def test_a_pylock_of_a_newer_minor_version_is_read_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, warnings: int
) -> None:
    file = _file(tmp_path, "pylock.toml", _pylock(_wheel(), version=f'"{version}"', head="new-key = 3"))
    (pin,) = open_foreign_lock(file).pins("3.12.1")
    assert pin == Pin("adder", "1.0", (_A,))
    expected = (
        f"{file} has lock-version {version}, and naiad knows 1.0: it ignores what {version} added; if packages are "
        "missing, lock again with a tool that writes 1.0"
    )
    assert [record.getMessage() for record in caplog.records] == [expected] * warnings


@pytest.mark.parametrize(("groups", "expected"), [("[]", []), ("['serving']", ["served"])])
def test_a_pylock_selects_its_default_groups_and_no_extras(tmp_path: Path, groups: str, expected: list[str]) -> None:
    text = _pylock(
        _wheel("served", more="marker = \"'serving' in dependency_groups\""),
        _wheel("fast", more="marker = \"'fast-path' in extras\""),
        head=f"extras = ['fast-path']\ndefault-groups = {groups}",
    )
    pins = open_foreign_lock(_file(tmp_path, "pylock.toml", text)).pins("3.12.1")
    assert [pin.name for pin in pins] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            _pylock(_wheel(), _wheel(version="1.1")),
            "selects 'adder' twice, version 1.0 and version 1.1; lock again, or make the markers of the two exclude",
        ),
        (
            _pylock(_wheel(more="requires-python = '>=3.13'")),
            "has 'adder' for Python >=3.13, not for 3.12.1; lock again for it",
        ),
        (
            _pylock(_wheel(), head="requires-python = '>=3.13'"),
            "is for Python >=3.13, not for 3.12.1; lock again for it",
        ),
        (
            _pylock(_wheel(), head="environments = [\"os_name == 'x'\"]"),
            "is for os_name == 'x', which this machine is not",
        ),
    ],
)
def test_a_pylock_for_another_python_or_with_two_of_a_package_is_rejected(tmp_path: Path, text: str, said: str) -> None:
    file = _file(tmp_path, "pylock.toml", text)
    with pytest.raises(ExecutionEnvironmentError) as caught:
        open_foreign_lock(file).pins("3.12.1")
    assert f"{file} {said}" in caught.value.message


def test_a_pylock_may_select_one_of_two_versions_of_a_package_by_their_markers(tmp_path: Path) -> None:
    text = _pylock(
        _wheel(more="marker = \"python_version < '3.12'\""),
        _wheel(version="1.1", more="marker = \"python_version >= '3.12'\"\nrequires-python = '>=3.12'"),
    )
    found = open_foreign_lock(_file(tmp_path, "pylock.toml", text))
    assert [found.pins(python)[0].version for python in ("3.11.4", "3.12.1", "3.13.0rc1")] == ["1.0", "1.1", "1.1"]


def test_a_pylock_may_spell_names_as_packages_and_urls_do(tmp_path: Path) -> None:
    text = _pylock(
        _wheel("ruamel.yaml", file="ruamel.yaml-1.0-py3-none-any.whl"),
        _wheel("torch", "2.1.0+cpu", file="torch-2.1.0%2Bcpu-py3-none-any.whl"),
    )
    pins = open_foreign_lock(_file(tmp_path, "pylock.toml", text)).pins("3.12.1")
    assert [(pin.name, pin.version) for pin in pins] == [("ruamel-yaml", "1.0"), ("torch", "2.1.0+cpu")]


def test_all_files_of_a_package_may_be_installed_also_those_for_other_pythons(tmp_path: Path) -> None:
    wheels = ", ".join(
        f"{{ path = 'w/adder-1.0-{tag}.whl', hashes = {{ sha256 = '{digest}' }} }}"
        for tag, digest in (("cp39-cp39-win32", _A), ("cp313-cp313-linux_x86_64", _B))
    )
    text = _pylock(f"name = 'adder'\nversion = '1.0'\nwheels = [{wheels}]")
    (pin,) = open_foreign_lock(_file(tmp_path, "pylock.toml", text)).pins("3.12.1")
    assert pin.digests == (_A, _B)


@pytest.mark.parametrize(
    ("files", "has_some"),
    [
        ((), True),
        (("adder-1.0-py3-none-any.whl",), True),
        (("adder-1.0.tar.gz", "adder-1.0-cp39-cp39-linux_x86_64.whl"), True),
        (("adder-1.0-cp310-cp310-linux_x86_64.whl", "adder-1.0-cp312-cp312-win_amd64.whl"), False),
        (("adder-1.0-cp312-cp312-linux_x86_64.whl",), True),
        (("adder-1.0-cp38-abi3-linux_x86_64.whl",), True),
    ],
)
def test_a_package_has_a_file_for_a_python_of_this_machine_or_not(monkeypatch, files, has_some):
    monkeypatch.setattr("packaging.tags.platform_tags", lambda: iter(["linux_x86_64"]))
    monkeypatch.setattr(lockfiles, "_usable_tags", lockfiles._usable_tags.__wrapped__)
    assert Pin("adder", "1.0", ("0",), files).has_file_for("3.12.1") is has_some


def test_the_sizes_of_files_are_read_as_far_as_a_lock_has_them(tmp_path: Path) -> None:
    wheel = _wheel().replace("hashes", "size = 1234, hashes")
    (pin,) = open_foreign_lock(_file(tmp_path, "pylock.toml", _pylock(wheel))).pins("3.12.1")
    assert pin.size_for("3.12.1") == 1234
    uv_lock = UV_LOCK.replace('numpy.whl"', 'numpy-2.2.6-py3-none-any.whl", size = 55')
    (pin,) = open_foreign_lock(_file(tmp_path, "uv.lock", uv_lock)).pins("3.12.1")
    assert pin.size_for("3.12.1") == 55
    (pin,) = open_foreign_lock(_file(tmp_path, "uv.lock", UV_LOCK)).pins("3.12.1")
    assert pin.size_for("3.12.1") == 0
    assert Pin("adder", "1.0", ("0",), ("adder-1.0-cp27-none-any.whl",), (5,)).size_for("3.12.1") == 0


def test_a_file_may_have_another_digest_of_pips(tmp_path: Path) -> None:
    hashes = ("sha512 = 'cd'", f"sha512 = 'cd', sha256 = '{_A}'", "md5 = '0', sha384 = 'ef'")
    wheels = ", ".join(
        f"{{ path = 'adder-1.0-py3{n}-none-any.whl', hashes = {{ {each} }} }}" for n, each in enumerate(hashes)
    )
    text = _pylock(f"name = 'adder'\nversion = '1.0'\nwheels = [{wheels}]")
    (pin,) = open_foreign_lock(_file(tmp_path, "pylock.toml", text)).pins("3.12.1")
    assert (
        pin_lines([pin]) == f"adder==1.0 \\\n    --hash=sha256:{_A} \\\n    --hash=sha384:ef \\\n    --hash=sha512:cd\n"
    )


@pytest.mark.parametrize(("python", "version"), [("3.12.1", "2.2.6"), ("3.8.18", "1.24.4")])
def test_a_uv_lock_is_followed_from_the_project_on_without_its_extras(
    tmp_path: Path, python: str, version: str
) -> None:
    pins = open_foreign_lock(_file(tmp_path, "uv.lock", UV_LOCK)).pins(python)
    assert [(pin.name, pin.version) for pin in pins] == [("numpy", version)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "pylock.toml",
            _pylock("name = 'x'\ndirectory = { path = '../x' }"),
            r"takes 'x' from the folder ../x, and locked packages come from an index; build a wheel of it, name the folder",
        ),
        (
            "pylock.toml",
            _pylock("name = 'x'\nvcs = { type = 'git', url = 'https://h/x.git', commit-id = 'ab' }"),
            "takes 'x' from the repository https://h/x.git, and",
        ),
        (
            "pylock.toml",
            _pylock("name = 'x'\narchive = { url = 'https://h/x.zip', hashes = { sha256 = 'ab' } }"),
            "takes 'x' from the archive https://h/x.zip, and",
        ),
        (
            "pylock.toml",
            _pylock("name = 'x'\nversion = '1'\nsdist = { path = 'x-1.tar.gz', hashes = { md5 = 'ab' } }"),
            r"has 'x' without version or digest \(sha256, sha384 or sha512\), as from a folder",
        ),
        (
            "pylock.toml",
            "lock-version = '1.0'",
            "cannot read .*pylock.toml: Missing required value in 'created-by'; PEP",
        ),
        ("pylock.toml", _pylock("version = '1'"), r"pylock.toml: Missing required value in 'packages\[0\].name'; PEP"),
        ("pylock.toml", _pylock("name = 'x'"), "pylock.toml: .*must be set .* in 'packages"),
        (
            "pylock.toml",
            _pylock("name = 'x'\nversion = '1'\nwheels = [{ path = 'x-1-py3-none-any.whl' }]"),
            r"pylock.toml: Missing required value in 'packages\[0\].wheels\[0\].hashes'; PEP",
        ),
        (
            "pylock.toml",
            _pylock(
                "name = 'x'\nversion = '1'\nmarker = 'no'\nsdist = { path = 'x-1.zip', hashes = { sha256 = 'a' } }"
            ),
            r"pylock.toml: .* in 'packages\[0\].marker'; PEP",
        ),
        (
            "pylock.toml",
            _pylock("name = 3"),
            r"pylock.toml: Unexpected type int \(expected str\) in 'packages\[0\].name'",
        ),
        ("pylock.toml", "lock-version = '1.0'\ncreated-by = 'x'\npackages = 3", "pylock.toml: .* in 'packages'; PEP"),
        (
            "pylock.toml",
            "lock-version = '1.0'\ncreated-by = 'x'\npackages = [3]",
            "pylock.toml: .* in 'packages.0.'; PEP",
        ),
        ("pylock.toml", "x = ", "cannot read .*pylock.toml"),
        ("uv.lock", "package = 3", "is invalid: TypeError"),
    ],
)
def test_an_unusable_foreign_lock_is_reported_with_its_path(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ExecutionEnvironmentError, match=said):
        open_foreign_lock(_file(tmp_path, name, text)).pins("3.12.1")


@pytest.mark.parametrize(
    ("named", "files", "locked_by"),
    [
        ("pylock.toml", {"pylock.toml": PYLOCK}, "pylock.toml"),
        ("requirements.txt", {"requirements.txt": "numpy>=2\n", "pylock.toml": PYLOCK}, "pylock.toml"),
        ("requirements.txt", {"requirements.txt": f"numpy==2.2.6 --hash=sha256:{_A}\n"}, "requirements.txt"),
        (
            "pyproject.toml",
            {"pyproject.toml": '[project]\nname = "mine"\ndependencies = ["numpy"]\n', "uv.lock": UV_LOCK},
            "uv.lock",
        ),
    ],
)
def test_a_recipe_is_locked_as_a_model_is(tmp_path: Path, named: str, files: dict[str, str], locked_by: str) -> None:
    for name, text in files.items():
        _file(tmp_path, name, text)
    _file(tmp_path, "env.toml", f'name = "x"\nrequirements = "{named}"\n')
    recipe = read_recipe(tmp_path)
    ((found, _),) = requirements_to_install(recipe, "3.12.1", InstallOptions())
    assert found.text == f"numpy==2.2.6 \\\n    --hash=sha256:{_A}\n"
    assert (found.is_locked, found.named_in) == (True, tmp_path / locked_by)
    assert {path.name for path in recipe.sources} == set(files)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"requirements.txt": "numpy<2\n", "pylock.toml": PYLOCK},
            r"pylock.toml does not match .*requirements.txt, which requires 'numpy<2': it has numpy 2.2.6; update it",
        ),
        (
            {"pyproject.toml": '[project]\nname = "mine"\ndependencies = ["numpy"]\n'},
            r"pyproject.toml has no lock; write it with `naiad lock .*pyproject.toml`, or list its dependencies in a",
        ),
    ],
)
def test_a_recipe_with_a_stale_lock_or_a_project_without_one_is_rejected(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        _file(tmp_path, name, text)
    _file(tmp_path, "env.toml", f'name = "x"\nrequirements = "{next(iter(files))}"\n')
    with pytest.raises(ExecutionEnvironmentError, match=said):
        requirements_to_install(read_recipe(tmp_path), "3.12.1", InstallOptions())


def test_a_lock_of_an_earlier_naiad_is_rejected_with_two_ways_on(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "r", "numpy\n")
    former = _file(folder, "requirements.lock", f"numpy==2.2.6 --hash=sha256:{_A}\n")
    with pytest.raises(ConfigError) as caught:
        read_recipe(folder)
    assert caught.value.message == (
        f"cannot use {former}: a recipe is locked by a pylock.toml now; remove it and run `naiad lock {folder}`, or "
        "rename it to requirements.txt, which is then its own lock"
    )


@pytest.mark.parametrize("recipe", [path for path in _ENVS.iterdir() if path.is_dir()], ids=lambda path: path.name)
def test_recipes_that_come_with_naiad_are_locked_and_name_no_place(recipe: Path) -> None:
    file = recipe / "requirements.txt"
    pythons = [minor for minor in range(8, 15) if f"3.{minor}.0" in read_recipe(recipe).python]
    assert pythons
    assert all(is_locked(file, (3, minor, 0)) for minor in pythons)
    assert "://" not in file.read_text()
    assert "/" not in "".join(line for line in file.read_text().splitlines() if not line.startswith("#"))


def _naiad(*arguments: str | Path) -> str:
    done = CliRunner().invoke(naiad_group, list(map(str, arguments)), standalone_mode=False)
    assert done.exception is None, done.output
    return done.stdout


@pytest.mark.builds
def test_exactly_the_locked_files_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "recipe", "greeter\n", more="")

    facts = json.loads(_naiad("lock", recipe, "--download", tmp_path / "downloaded", "--json"))
    file = recipe / "pylock.toml"
    assert (facts["lock"], facts["packages"]) == (str(file), [{"name": "greeter", "version": "1.2"}])
    assert [path.name for path in (tmp_path / "downloaded").iterdir()] == ["greeter-1.2-py3-none-any.whl"]
    built = build(recipe, tmp_path / "prefix")
    assert built.version.startswith(f"{facts['python']}.")
    assert built.packages == (("greeter", "1.2"),)
    assert (built.prefix / "share/naiad/recipe/recipe/pylock.toml").read_text() == file.read_text()

    (pin,) = open_foreign_lock(file).pins(built.version)
    file.write_text(file.read_text().replace(pin.digests[0], _A))
    with pytest.raises(
        ExecutionEnvironmentError, match=r"cannot install greeter.* for 'recipe', named in .*pylock\.toml"
    ):
        build(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_recipe_without_packages_has_nothing_to_lock(tmp_path: Path) -> None:
    _file(tmp_path, "env.toml", 'name = "bare"\n')
    done = CliRunner().invoke(naiad_group, ["lock", str(tmp_path)], standalone_mode=False)
    assert (
        str(done.exception) == f"nothing to lock in {tmp_path}: its env.toml names neither 'requirements' nor 'conda'"
    )


def test_the_lock_of_a_script_says_which_requirements_it_was_written_for(tmp_path: Path) -> None:
    recorded = (
        '[manifest]\nrequirements = [{ name = "adder", extras = ["more"], specifier = ">=1", marker = "python_version > '
        '\'3\'" }, { name = "numpy" }]\n'
    )
    lock = open_foreign_lock(_file(tmp_path, "model.py.lock", f"version = 1\npackage = []\n{recorded}"))

    assert [str(one) for one in lock.requirements or ()] == ['adder[more]>=1; python_version > "3"', "numpy"]
