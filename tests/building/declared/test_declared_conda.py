"""Environments that conda's and pixi's files declare, from a channel in a folder: solved, locked, built, refused."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from building.channel import make_channel
from building.declared.killing import Killer, killer
from environments import makers
from environments.index import serving_indexes
from environments.wheels import offer_wheels, only_wheels, write_wheel
from packaging.specifiers import SpecifierSet

from naiad.cli.main import main
from naiad.config.server.env_build import EnvBuild
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.package_cache import conda_packages
from naiad.environments.store.verification import verify_entries
from naiad.models.artifacts.garbage import collect_garbage
from naiad_building.declared.conda import read_conda_declaration, solve_packages
from naiad_building.pack import pack

pytest.importorskip("yaml")
rattler = pytest.importorskip("rattler")

MINOR = makers.other_minor()


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with one Python, whole enough for uv."""
    return make_channel(tmp_path_factory.mktemp("channel") / "channel", MINOR, whole=True)


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that installers of PyPI's packages can reach; and a store for the commands."""
    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))
    folder = offer_wheels(tmp_path / "wheels")
    only_wheels(folder, monkeypatch)
    return folder


def managed(tmp_path: Path, build: EnvBuild = EnvBuild.LOCKED, **policy: object) -> EnvironmentManager:
    rules = StorePolicy(build=build, **policy)  # type: ignore[arg-type] - as given
    return EnvironmentManager(tmp_path / "store", reporter=LogReporter(), policy=rules)


def refusal(action: Callable[[], object], error: type[Exception] = ExecutionEnvironmentError) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def yml(folder: Path, channel: Path, *dependencies: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    listed = "".join(f"- {line}\n" for line in dependencies)
    (folder / "environment.yml").write_text(f"channels: [{channel}]\nvariables: {{MINE: one}}\ndependencies:\n{listed}")
    return folder / "environment.yml"


@pytest.mark.builds
def test_conda_packages_and_wheels_are_locked_built_shared_and_packed(
    tmp_path: Path, channel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = yml(tmp_path / "m", channel, "python", "numpy", "teller", "pip: [counter]")
    unlocked = refusal(lambda: managed(tmp_path).prepare(file))
    assert unlocked.startswith(
        f"the environment of {file} has no lock, and --env-build=locked resolves no requirements"
    )
    assert f"looked for pixi.lock in {file.parent}; write it with `naiad lock {file}`" in unlocked

    assert main(["lock", str(file)]) == 0

    lock = file.with_name("pixi.lock")
    assert f"wrote {lock}: 5 packages for Python {MINOR}\n    adder 2.0\n    counter 1.0\n" in capsys.readouterr().out
    ready = managed(tmp_path, offline=True, wheels=(tmp_path / "wheels",)).prepare(file, label="m")
    assert ready.prefix.is_relative_to(tmp_path / "store")
    assert makers.run(ready.python, "-c", "import counter, adder; print(adder.VERSION)").strip() == "2.0"
    # The prefix is that of the entry, in texts, binaries and scripts, though it was built elsewhere.
    assert makers.run(ready.prefix / "bin" / "teller").strip() == str(ready.prefix)
    assert bytes(ready.prefix) in (ready.prefix / "share" / "teller" / "where.bin").read_bytes()
    assert ready.environ({})["MINE"] == "one"
    # What conda does after it has installed a package, and when it activates an environment, is done for this path.
    assert ready.environ({})["TELLER_DATA"] == f"{ready.prefix}/share/teller"
    assert (ready.prefix / "share/teller/linked.txt").read_text() == f"teller 1.0 for {ready.prefix}\n"
    assert not (ready.prefix / ".messages.txt").exists()
    # Packages that no entry has are garbage; those of an entry are kept, because packing reads them.
    (conda_packages(tmp_path / "store") / "old-1.0-0").mkdir()
    assert collect_garbage(tmp_path / "store").leftovers == 1
    left = {path.name for path in conda_packages(tmp_path / "store").iterdir() if path.is_dir()}
    assert left == {f"python-{MINOR}.0-0", "numpy-0.1-0", "teller-1.0-0"}
    packed = pack(ready.prefix, tmp_path / "packed.tar.zst")
    assert {one.name for one in packed.manifest.packages} >= {"python", "numpy", "teller", "counter", "adder"}
    assert packed.manifest.made_from == "conda"

    # A lock that does not match is refused, with what differs; and so is another Python.
    yml(tmp_path / "m", channel, "python", "numpy >=2", "teller")
    assert refusal(lambda: managed(tmp_path).prepare(file)) == (
        f"{lock} does not match {file}, which requires 'numpy >=2': it has numpy 0.1; update it with `naiad lock {file}`"
    )
    other = refusal(lambda: managed(tmp_path).prepare(lock, python=SpecifierSet("==3.7.*")))
    assert other == f"{lock} has Python {MINOR}.0, and the model asks for Python ==3.7.*; update it with pixi"
    # Where resolving is allowed, the solver's own reason is the error.
    solved = refusal(lambda: managed(tmp_path, EnvBuild.ALLOWED).prepare(file))
    assert solved.startswith(f"cannot install the conda packages named in {file}: ")
    assert "No candidates were found for numpy >=2" in solved


@pytest.mark.builds
def test_places_named_among_the_packages_of_pypi_are_used_to_install_them(tmp_path: Path, channel: Path) -> None:
    write_wheel(tmp_path / "more", "single", "1.0", {"single.py": "VERSION = 'found'\n"})
    file = yml(tmp_path / "m", channel, "python", "numpy", "pip: [--find-links=../more, single]")

    assert main(["lock", str(file)]) == 0

    ready = managed(tmp_path).prepare(file, label="m")
    assert makers.run(ready.python, "-c", "import single; print(single.VERSION)").strip() == "found"


def test_a_channel_that_fails_for_a_moment_is_asked_again(tmp_path: Path, channel: Path) -> None:
    with serving_indexes(channel.parent) as web:
        web.failures = 1

        found = solve_packages([f"{web.address}/{channel.name}"], ["teller"], tmp_path / "environment.yml")

    assert {record.name.normalized for record in found} == {"teller", "python"}
    assert web.failures == 0


DECLARED = "naiad_building.declared.conda"
RESOLUTION_STEPS = [("solve_packages", "after", ""), ("resolve_into_environment", "after", "pip: [counter]")]
RESOLUTION_STEPS += [("_add_digests", "before", "pip: [counter]")]


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The only wheels of a module's tests."""
    folder = offer_wheels(tmp_path_factory.mktemp("offered"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        only_wheels(folder, monkeypatch)
        yield folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, offered: Path) -> Iterator[Killer]:
    with killer(tmp_path_factory.mktemp("tmp")) as running:
        yield running


def require_recovery(store: Path, file: Path) -> None:
    """What a store calls complete is whole, and the next server builds the environment and leaves nothing else."""
    assert all(result.is_intact for result in verify_entries(store, ()))
    allowed = StorePolicy(build=EnvBuild.ALLOWED)
    ready = EnvironmentManager(store, reporter=LogReporter(), policy=allowed).prepare(file)
    if "counter" in file.read_text():
        assert makers.run(ready.python, "-c", "import counter, adder; print(adder.VERSION)").strip() == "2.0"
    assert makers.run(ready.prefix / "bin" / "teller").strip() == str(ready.prefix)
    assert all(result.is_intact for result in verify_entries(store, ()))
    assert not list((store / "staging").iterdir())
    # An archive of it needs the unpacked packages; hard links to half of one would show here.
    for package in unpacked_packages(store):
        for path in json.loads((package / "info" / "paths.json").read_text())["paths"]:
            assert (package / path["_path"]).exists() or (package / path["_path"]).is_symlink()


def unpacked_packages(store: Path) -> list[Path]:
    return [path.parents[1] for path in conda_packages(store).glob("*/info/paths.json")]


@pytest.mark.builds
@pytest.mark.parametrize(("name", "when", "more"), RESOLUTION_STEPS)
def test_a_killed_resolution_of_conda_packages_leaves_nothing(
    tmp_path: Path, channel: Path, killed: Killer, name: str, when: str, more: str
) -> None:
    packages = ["python", "numpy", "teller", *filter(None, [more])]
    file, store = yml(tmp_path / "m", channel, *packages), tmp_path / "store"

    assert killed.prepare((f"{DECLARED}.{name}", when, 1), store, file)

    assert not (store / "resolved").exists()
    require_recovery(store, file)


@pytest.mark.builds
def test_unavailable_conda_packages_are_refused_with_the_reason(tmp_path: Path, channel: Path) -> None:
    allowed = managed(tmp_path, EnvBuild.ALLOWED)
    assert "has no numpy, which every model needs; add it there, and run `naiad lock" in refusal(
        lambda: allowed.prepare(yml(tmp_path / "a", channel, "python", "teller"))
    )
    assert "No candidates were found for python 3.7.*" in refusal(
        lambda: allowed.prepare(yml(tmp_path / "b", channel, "python", "numpy"), python=SpecifierSet("==3.7.*"))
    )
    offline = managed(tmp_path, EnvBuild.ALLOWED, offline=True)
    file = yml(tmp_path / "c", channel, "python")
    file.write_text(file.read_text().replace(str(channel), "conda-forge"))
    assert refusal(lambda: offline.prepare(file)) == (
        f"cannot use {file} offline: it names the channel conda-forge, which is not on this machine; name a folder with "
        "a channel"
    )
    missing = yml(tmp_path / "d", tmp_path / "nowhere", "python")
    assert "nowhere" in refusal(lambda: allowed.prepare(missing))


def test_a_pixi_toml_is_refused_with_the_lock_to_name(tmp_path: Path) -> None:
    file = tmp_path / "pixi.toml"
    file.write_text("[workspace]")
    assert refusal(lambda: read_conda_declaration(file), ConfigError) == (
        f"cannot read {file}: pixi alone knows all that it may say; name {tmp_path / 'pixi.lock'}, which `pixi lock` "
        "writes"
    )


def test_a_lock_that_is_damaged_or_for_other_platforms_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "pixi.lock"
    lock.write_text("nonsense: [")
    assert refusal(lambda: managed(tmp_path).prepare(lock)).startswith(f"cannot read {lock}: ")
    platform = rattler.LockPlatform("win-64")
    made = rattler.LockFile([platform])
    made.set_channels("default", [rattler.LockChannel("https://channel.example/main")])
    made.add_pypi_package("default", platform, "adder", "1.0", "https://index.example/adder-1.0-py3-none-any.whl")
    made.to_path(lock)
    assert refusal(lambda: managed(tmp_path).prepare(lock)).startswith(f"{lock} is for win-64, and this machine is ")


def test_without_py_rattler_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pixi.lock").write_text("")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rattler" else found(name))

    assert refusal(lambda: managed(tmp_path).prepare(tmp_path / "pixi.lock")) == (
        f"using {tmp_path / 'pixi.lock'} needs packages that naiad lacks: `pip install 'py-rattler>=0.28' 'pyyaml>=6'`"
    )
