"""Locks say exactly what is installed, hold for what they were resolved from, and name no place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from environments.packages import offer_greeter, write_recipe
from packaging.specifiers import SpecifierSet

from naiad.cli.commands import naiad_group
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.archives.manifest import host_platform
from naiad_building.base_interpreter import version_preferences
from naiad_building.build import build
from naiad_building.lockfiles import Pin, lock_text, open_foreign_lock, read_head, require_current, sources_digest
from naiad_building.locking import lock
from naiad_building.recipe import read_recipe
from naiad_building.requirements import requirements_to_install

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


def test_a_lock_joins_what_was_chosen_under_each_python(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path / "r", "numpy\n"))
    text = lock_text(
        recipe,
        {
            "3.9": [Pin("Num.Py", "2.0.2", (_A,)), Pin("both", "1.0", (_A,))],
            "3.10": [Pin("Num.Py", "2.2.6", (_A,)), Pin("both", "1.0", (_B,))],
        },
    )

    assert text.splitlines()[1:] == [
        "# python: 3.9 3.10",
        f"# platform: {host_platform()}",
        f"# sources: {sources_digest(recipe)}",
        "both==1.0 \\",
        f"    --hash=sha256:{_A} \\",
        f"    --hash=sha256:{_B}",
        'num-py==2.0.2 ; python_version == "3.9" \\',
        f"    --hash=sha256:{_A}",
        'num-py==2.2.6 ; python_version == "3.10" \\',
        f"    --hash=sha256:{_A}",
    ]


@pytest.mark.parametrize(
    ("lines", "python", "said"),
    [
        ("numpy<2\n", "3.9", "does not match the requirements of the recipe; update it with"),
        ("numpy\n", "3.8", "not for 3.8; add that version with `naiad env lock .* --python 3.9 --python 3.8`$"),
        ("# remark\nnumpy\n\n", "3.9", None),
    ],
)
def test_a_lock_for_other_requirements_or_versions_of_python_is_refused(
    tmp_path: Path, lines: str, python: str, said: str | None
) -> None:
    folder = write_recipe(tmp_path / "r", "numpy\n")
    file = _file(folder, "requirements.lock", lock_text(read_recipe(folder), {"3.9": [Pin("numpy", "2.0.2", (_A,))]}))
    (folder / "requirements.txt").write_text(lines)
    recipe = read_recipe(folder)
    assert recipe.lock == file
    if said is None:
        require_current(recipe, file, python)
        return
    with pytest.raises(ConfigError, match=said):
        require_current(recipe, file, python)


def test_a_lock_for_another_platform_is_refused(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "r", "numpy\n")
    text = lock_text(read_recipe(folder), {"3.9": []}).replace(host_platform(), "linux-riscv128")
    file = _file(folder, "requirements.lock", text)
    with pytest.raises(ConfigError, match=f"is for linux-riscv128, this machine is {host_platform()}; update it with"):
        require_current(read_recipe(folder), file, "3.9")


def test_only_locked_versions_of_python_are_looked_for_the_newest_first(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "r", "numpy\n")
    _file(folder, "requirements.lock", lock_text(read_recipe(folder), {"3.9": [], "3.10": [], "3.12": []}))
    recipe = read_recipe(folder)
    expected = [SpecifierSet(f"=={minor}.*") for minor in ("3.12", "3.9", "3.10")]
    assert sorted(map(str, version_preferences(recipe, None, (3, 10)))) == sorted(map(str, expected))
    assert str(version_preferences(recipe, None, (3, 10))[0]) == "==3.12.*"
    assert str(version_preferences(recipe, None, (3, 10))[-1]) == "==3.10.*"  # the host's, by the recipe's preference


@pytest.mark.parametrize(
    ("python", "extras", "expected"),
    [
        ("3.12.1", (), [("numpy", "2.2.6")]),
        ("3.9.18", (), []),
        ("3.12.1", ("fast",), [("numpy", "2.2.6"), ("orjson", "3.10.0")]),
    ],
)
def test_a_pylock_is_read_for_one_python(
    tmp_path: Path, python: str, extras: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    pins = open_foreign_lock(_file(tmp_path, "pylock.toml", PYLOCK)).pins(python, extras)
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
    with pytest.raises(ConfigError) as caught:
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
    with pytest.raises(ConfigError) as caught:
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


@pytest.mark.parametrize(
    ("groups", "extras", "expected"),
    [("[]", (), []), ("['serving']", (), ["served"]), ("[]", ("Fast_Path",), ["fast"])],
)
def test_a_pylock_selects_its_default_groups_and_the_extras_by_their_normalized_names(
    tmp_path: Path, groups: str, extras: tuple[str, ...], expected: list[str]
) -> None:
    text = _pylock(
        _wheel("served", more="marker = \"'serving' in dependency_groups\""),
        _wheel("fast", more="marker = \"'fast-path' in extras\""),
        head=f"extras = ['fast-path']\ndefault-groups = {groups}",
    )
    pins = open_foreign_lock(_file(tmp_path, "pylock.toml", text)).pins("3.12.1", extras)
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
    with pytest.raises(ConfigError) as caught:
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
    ("python", "extras", "expected"),
    [
        ("3.12.1", (), [("numpy", "2.2.6")]),
        ("3.8.18", (), [("numpy", "1.24.4")]),
        ("3.12.1", ("fast",), [("h2", "4.1.0"), ("httpx", "0.27.0"), ("numpy", "2.2.6")]),
    ],
)
def test_a_uv_lock_is_followed_from_the_project_on(
    tmp_path: Path, python: str, extras: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    pins = open_foreign_lock(_file(tmp_path, "uv.lock", UV_LOCK)).pins(python, extras)
    assert [(pin.name, pin.version) for pin in pins] == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "pylock.toml",
            _pylock("name = 'x'\ndirectory = { path = 'x' }"),
            "has 'x' without version and digest, as from a folder",
        ),
        (
            "pylock.toml",
            _pylock("name = 'x'\nversion = '1'\nsdist = { path = 'x-1.tar.gz', hashes = { sha512 = 'ab' } }"),
            "has 'x' without version and digest, as from a folder",
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
    with pytest.raises(ConfigError, match=said):
        open_foreign_lock(_file(tmp_path, name, text)).pins("3.12.1", ())


def test_a_foreign_lock_alone_is_a_recipe(tmp_path: Path) -> None:
    _file(tmp_path, "pylock.toml", PYLOCK)
    _file(tmp_path, "env.toml", 'name = "x"\nlock = "pylock.toml"\n')
    recipe = read_recipe(tmp_path)
    found = requirements_to_install(recipe, "3.12.1")
    assert found is not None
    assert found.text == f"numpy==2.2.6 \\\n    --hash=sha256:{_A}\n"
    assert (found.complete, found.hashed, found.named_in) == (True, True, tmp_path / "pylock.toml")
    with pytest.raises(
        ConfigError, match=r"pylock.toml is the lock of .* already; update it with the tool that wrote it"
    ):
        lock(tmp_path)


def test_dependencies_of_a_project_are_installed_with_the_extras_that_are_named(tmp_path: Path) -> None:
    _file(
        tmp_path,
        "pyproject.toml",
        '[project]\nname = "mine"\ndependencies = ["numpy>=1"]\n'
        '[project.optional-dependencies]\nfast = ["orjson"]\nall = ["mine[fast]"]\n',
    )
    _file(tmp_path, "env.toml", 'name = "x"\nproject = "pyproject.toml"\nextras = ["fast", "all"]\n')
    found = requirements_to_install(read_recipe(tmp_path), "3.12.1")
    assert found is not None
    assert found.text == "numpy>=1\norjson\n"
    _file(tmp_path, "env.toml", 'name = "x"\nproject = "pyproject.toml"\nextras = ["slow"]\n')
    with pytest.raises(ConfigError, match="has no extra 'slow'; it has all, fast"):
        requirements_to_install(read_recipe(tmp_path), "3.12.1")


@pytest.mark.parametrize(
    "recipe", [path.parent for path in _ENVS.glob("*/requirements.lock")], ids=lambda path: path.name
)
def test_locks_that_come_with_naiad_are_current_and_name_no_place(recipe: Path) -> None:
    file = recipe / "requirements.lock"
    assert read_head(file).sources == sources_digest(read_recipe(recipe))
    assert "://" not in file.read_text()
    assert "/" not in "".join(line for line in file.read_text().splitlines() if not line.startswith("#"))


def test_every_recipe_that_comes_with_naiad_has_a_lock() -> None:
    assert [path.name for path in _ENVS.iterdir() if path.is_dir() and not (path / "requirements.lock").is_file()] == []


@pytest.mark.slow
def test_a_python_that_is_not_on_this_machine_is_locked_for_by_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "recipe", "greeter\n", more="")
    _, chosen = lock(recipe, pythons=("3.99",))
    digest = hashlib.sha256((tmp_path / "wheels" / "greeter-1.2-py3-none-any.whl").read_bytes()).hexdigest()
    assert chosen == {"3.99": [Pin("greeter", "1.2", (digest,))]}


@pytest.mark.slow
def test_exactly_the_locked_files_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "recipe", "greeter\n", more="")

    file, chosen = lock(recipe, pythons=(_newest(recipe),))
    assert [[pin.version for pin in pins] for pins in chosen.values()] == [["1.2"]]
    built = build(recipe, tmp_path / "prefix")
    assert built.packages == (("greeter", "1.2"),)
    assert (built.prefix / "share/naiad/recipe/recipe/requirements.lock").read_text() == file.read_text()

    file.write_text(file.read_text().replace("--hash=sha256:", "--hash=sha256:0")[:-2] + "\n")
    for installer in ("pip", "uv"):
        from naiad_building.installers import InstallOptions

        with pytest.raises(
            ExecutionEnvironmentError, match=r"cannot install .* for 'recipe', named in .*\.lock"
        ) as caught:
            build(recipe, tmp_path / "other", options=InstallOptions(installer=installer))
        assert "greeter" in caught.value.message
        assert not (tmp_path / "other").exists()


def _newest(recipe: Path) -> str:
    from naiad_building.base_interpreter import installed_minors

    return installed_minors(read_recipe(recipe).python)[-1]


def test_wheels_are_downloaded_for_each_python_of_the_lock(tmp_path, monkeypatch):
    """What is not on this machine is warned of, for `env build` would fail elsewhere without a word about why."""
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "env.toml").write_text('name = "small"\nrequirements = "requirements.txt"\n')
    (recipe / "requirements.txt").write_text("numpy\n")
    (recipe / "requirements.lock").write_text("# python: 3.10 3.11 3.99\n# platform: linux-x86_64\n# sources: x\n")
    (tmp_path / "wheels").mkdir()
    monkeypatch.setattr("naiad_building.locking.installed_minors", lambda _: ["3.10", "3.11", "3.12"])
    monkeypatch.setattr(
        "naiad_building.build.fetch_wheels", lambda *_, python, **__: f"{python}.1" if python else "3.12.1"
    )

    def download(*more):
        return CliRunner().invoke(naiad_group, ["env", "download", str(recipe), "-o", str(tmp_path / "wheels"), *more])

    assert download().stdout == f"fetched 0 files for Python 3.10.1, 3.11.1 into {tmp_path / 'wheels'}\n"
    assert "warning: the lock is also for Python 3.99, which is not on this machine" in download().stderr
    assert json.loads(download("--python=3.12", "--json").stdout)["pythons"] == ["3.12.1"]
    (recipe / "requirements.lock").unlink()
    assert json.loads(download("--json").stdout)["pythons"] == ["3.12.1"]
