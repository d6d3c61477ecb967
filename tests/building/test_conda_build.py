"""Environments are built from conda's environment.yml without conda, from a channel that may be a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from building.channel import make_channel
from environments import makers
from environments.packages import offer_greeter, run_alone

from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.environments.activation import Activations
from naiad.environments.archives.manifest import read_manifest
from naiad.environments.ready_environment import ReadyEnvironment
from naiad_building.build import build
from naiad_building.declared.conda import CondaDeclaration, read_conda_declaration
from naiad_building.pack import pack
from naiad_building.uv_program import InstallOptions

pytest.importorskip("yaml")
pytest.importorskip("rattler")


def _yml(folder: Path, text: str) -> Path:
    (folder / "environment.yml").write_text(text)
    return folder / "environment.yml"


def test_an_environment_yml_is_read_with_all_its_keys(tmp_path: Path) -> None:
    text = (
        "name: x\nchannels: [conda-forge, nodefaults, ./channel]\nvariables: {A: 1}\n"
        "dependencies:\n- python=3.12\n- pip\n- pip:\n  - numpy>=1\n  - -r more.txt\n"
    )
    file = _yml(tmp_path, text)
    assert read_conda_declaration(file) == CondaDeclaration(
        file=file,
        text=text,
        channels=("conda-forge", (tmp_path / "channel").as_uri()),
        specs=("python=3.12",),
        requirements=("numpy>=1", f"-r {tmp_path / 'more.txt'}"),
        variables={"A": "1"},
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- python", "is not a valid environment.yml: it has no 'dependencies'"),
        ("dependecies: []", "unknown key 'dependecies'; known keys are name, prefix"),
        ("dependencies: python", "'dependencies' must be a list"),
        ("dependencies:\n- npm: [x]", "has a part that is neither a package nor a list for 'pip'"),
        ("dependencies: [", "cannot read .*environment.yml"),
    ],
)
def test_an_invalid_environment_yml_is_reported_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_conda_declaration(_yml(tmp_path, text))


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with one Python, in which pip runs."""
    return make_channel(tmp_path_factory.mktemp("channel") / "channel", makers.other_minor(), whole=True)


@pytest.fixture
def recipe(tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of conda packages and a wheel; packages of conda are cached in the test's own folder."""
    offer_greeter(tmp_path / "wheels", monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "told"\nconda = "environment.yml"\n[variables]\nMINE = "1"\n')
    _yml(
        folder, f"channels: [{channel}]\ndependencies: [python, teller, {{pip: [greeter]}}]\nvariables: {{YML: two}}\n"
    )
    return folder


@pytest.mark.builds
def test_conda_packages_and_wheels_come_together_and_are_packed_alike_from_two_places(
    recipe: Path, tmp_path: Path
) -> None:
    packed = []
    for prefix in (tmp_path / "one", tmp_path / "deep down" / "two"):
        built = build(recipe, prefix)
        assert {"greeter", "teller", "python"} <= {name for name, _ in built.packages}
        assert run_alone([str(prefix / "bin" / "teller")] if " " not in str(prefix) else ["/bin/true"]) in {
            "",
            f"{prefix}\n",
        }
        assert _ready(prefix)["MINE"] == "1"
        assert _ready(prefix)["YML"] == "two"
        assert _ready(prefix)["TELLER_DATA"] == f"{prefix}/share/teller"
        linked = prefix / "share/teller/linked.txt"
        assert linked.read_text() == f"teller 1.0 for {prefix}\n"
        linked.unlink()  # it has the path, and the archives are compared
        packed.append(pack(prefix, prefix.with_name(f"{prefix.name}.tar.zst")))
        shutil.rmtree(prefix)

    assert packed[0].digest == packed[1].digest
    manifest = read_manifest(packed[0].archive)
    assert manifest is not None
    assert (manifest.name, manifest.made_from) == ("told", "conda")
    assert {(one.name, one.source, len(one.digest)) for one in manifest.packages} >= {
        ("greeter", "python", 64),
        ("teller", "conda", 64),
    }


@pytest.mark.builds
@pytest.mark.parametrize(
    ("yml", "said"),
    [
        ("channels: [CHANNEL]\ndependencies: [python, nobody-has-this]", "nobody-has-this"),
        (
            "channels: [conda-forge]\ndependencies: [python]",
            "cannot use .*environment.yml offline: it names the channel conda-forge",
        ),
    ],
)
def test_unavailable_conda_packages_are_named_and_nothing_is_left(
    recipe: Path, channel: Path, tmp_path: Path, yml: str, said: str
) -> None:
    _yml(recipe, yml.replace("CHANNEL", str(channel)))
    with pytest.raises(ExecutionEnvironmentError, match=said):
        build(recipe, tmp_path / "prefix", options=InstallOptions(offline=True))
    assert not (tmp_path / "prefix").exists()


def _ready(prefix: Path) -> dict[str, str]:
    environment = ReadyEnvironment(
        source=prefix, prefix=prefix, python=prefix / "bin" / "python", version=(3, 12, 0), cache_tag="", abi="",
        numpy_version=None, activation=Activations(prefix.parent / "store").find(prefix, {"PATH": "/usr/bin"}, "it"),
    )  # fmt: skip
    return environment.environ({})
