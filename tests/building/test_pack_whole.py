"""Virtual environments are packed with their interpreter; the same input in another folder gives the same archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import makers
from environments.packages import offer_greeter, run_alone, write_recipe

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives import archive_writer
from naiad.environments.archives.archive_writer import OutputMember, write_archive
from naiad.environments.archives.extraction import unpack
from naiad.environments.archives.manifest import Manifest, host_platform, read_manifest, require_compatible_host
from naiad.environments.elf import newest_glibc, required_versions
from naiad_building.build import build
from naiad_building.pack import pack
from naiad_building.uv_program import find_uv

_ALSO = ("email", "distutils", "unittest", "multiprocessing")


class _Silent:
    def on_progress(self, event: object) -> None:
        """Ignore the event."""


def _members() -> list[OutputMember]:
    return [
        OutputMember(name="bin/tool", data=b"#!/bin/sh\n", executable=True),
        OutputMember(name="bin/link", link="tool"),
        OutputMember(name="text", data=b"text" * 1000),
    ]


@pytest.mark.parametrize("kind", archive_writer.FORMATS)
def test_a_written_archive_can_be_unpacked_and_depends_on_its_members_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    write_archive(tmp_path / "one", kind, _members(), seen.append)
    monkeypatch.setenv("TZ", "America/New_York")
    write_archive(tmp_path / "two", kind, _members(), seen.append)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert sum(seen) == 2 * 4010
    (tmp_path / "into").mkdir()
    unpack(tmp_path / "one", tmp_path / "into", reporter=_Silent())
    assert (tmp_path / "into" / "bin" / "link").read_bytes() == b"#!/bin/sh\n"
    assert (tmp_path / "into" / "bin" / "tool").stat().st_mode & 0o111
    assert (tmp_path / "into" / "text").stat().st_mtime == archive_writer.MTIME


def test_a_manifest_that_is_malformed_or_newer_is_reported(tmp_path: Path) -> None:
    name = "naiad-environment.json"
    write_archive(tmp_path / "none", "tar", _members(), lambda _: None)
    write_archive(tmp_path / "broken", "tar", [OutputMember(name=name, data=b'{"format": 1}')], lambda _: None)
    write_archive(tmp_path / "future", "tar", [OutputMember(name=name, data=b'{"format": 9}')], lambda _: None)

    assert read_manifest(tmp_path / "none") is None
    with pytest.raises(ExecutionEnvironmentError, match=r"the manifest of .*broken is invalid \(KeyError"):
        read_manifest(tmp_path / "broken")
    with pytest.raises(ExecutionEnvironmentError, match="has format 9, this naiad reads 1; use a newer naiad"):
        read_manifest(tmp_path / "future")


@pytest.mark.parametrize(
    ("platform", "glibc", "said"),
    [
        (host_platform(), "2.0", None),
        (
            "linux-riscv128",
            "",
            f"the env is for linux-riscv128, this machine is {host_platform()}; build and pack it on",
        ),
        (host_platform(), "9.99", "the env needs glibc 9.99 or newer, this machine has 2"),
    ],
)
def test_an_environment_for_another_machine_is_refused_by_its_manifest(
    platform: str, glibc: str, said: str | None
) -> None:
    manifest = Manifest(
        name="", made_from="venv", platform=platform, glibc=glibc, python="3.12.1", abi="", packages=(), files=0, size=0,
        recipe={},
    )  # fmt: skip
    if said is None:
        require_compatible_host(manifest.platform, manifest.glibc, where="the env")
        return
    with pytest.raises(ExecutionEnvironmentError, match=said):
        require_compatible_host(manifest.platform, manifest.glibc, where="the env")


def test_the_libraries_that_an_executable_needs_are_read_with_the_versions_of_their_symbols() -> None:
    found = required_versions(Path(sys.executable).resolve())
    assert any(version.startswith("GLIBC_2.") for _, version in found)
    assert newest_glibc([Path(sys.executable).resolve(), Path(__file__)]).startswith("2.")
    assert newest_glibc([Path(__file__)]) == ""


@pytest.fixture(scope="module")
def minor() -> str:
    return makers.other_minor()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, minor: str) -> Path:
    """An interpreter with the part of the standard library that these tests need: copying all of it takes seconds."""
    prefix = makers.make_environment(tmp_path_factory.mktemp("base") / "python", minor, numpy=False, also=_ALSO)
    return prefix / "bin" / f"python{minor}"


def _venv(folder: Path, base: Path, wheels: Path) -> Path:
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", folder], check=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        offer_greeter(wheels, monkeypatch)
    uv = [str(find_uv()), "pip", "install", "--quiet", "--offline", "--no-config", "--no-index"]
    subprocess.run([*uv, "--find-links", wheels, "--python", folder / "bin" / "python", "greeter"], check=True)
    return folder


@pytest.mark.builds
def test_a_virtual_environment_is_packed_with_its_interpreter_alike_from_two_places(
    tmp_path: Path, base: Path, minor: str
) -> None:
    one = pack(_venv(tmp_path / "one", base, tmp_path / "wheels"), tmp_path / "one.tar.zst")
    two = pack(_venv(tmp_path / "deep down" / "two", base, tmp_path / "wheels"), tmp_path / "two.tar.zst")

    assert one.digest == two.digest
    manifest = read_manifest(two.archive)
    assert manifest == one.manifest
    assert (manifest.made_from, manifest.platform, manifest.recipe) == ("venv", host_platform(), {})
    assert manifest.python.startswith(f"{minor}.")
    greeter = next(package for package in manifest.packages if package.name == "greeter")
    assert (greeter.version, greeter.source, len(greeter.digest)) == ("1.2", "python", 64)

    into = tmp_path / "a new place"
    into.mkdir()
    unpack(two.archive, into, reporter=_Silent())
    assert (
        sum(path.lstat().st_size for path in into.rglob("*") if path.is_file() and not path.is_symlink())
        > manifest.size
    )
    hidden = (makers.base_interpreters()[minor], base.parents[1])
    # The script contains no path, so it runs before `conda-unpack` has run.
    assert run_alone([str(into / "bin" / "greet")], *hidden) == "hello\n"
    assert (
        run_alone([str(into / "bin" / "python"), "-I", "-c", "import sys, greeter; print(sys.prefix)"], *hidden)
        == f"{into}\n"
    )
    assert str(tmp_path / "deep down").encode() not in (into / "bin" / "conda-unpack").read_bytes()


@pytest.mark.builds
def test_one_recipe_built_in_two_places_gives_one_archive(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_greeter(tmp_path / "wheels", monkeypatch)
    recipe = write_recipe(tmp_path / "named", "greeter==1.2\n", more='[variables]\nGREETING = "it\'s"')
    packed = []
    for folder in (tmp_path / "one", tmp_path / "deep down" / "two"):
        built = build(recipe, folder, python=str(base))
        packed.append(pack(built.prefix, folder.with_name(f"{folder.name}.tar.zst")))
        shutil.rmtree(folder)

    assert packed[0].digest == packed[1].digest
    assert packed[0].manifest.name == "named"
    assert packed[0].manifest.made_from == "recipe"
    assert set(packed[0].manifest.recipe) == {"env.toml", "requirements.txt"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mine.pth", "/opt/elsewhere\n", "mine.pth refers to code in /opt/elsewhere, outside of it; install that"),
        ("__editable___mine_finder.py", "", "__editable___mine_finder.py refers to code outside of it"),
    ],
)
@pytest.mark.builds
def test_code_outside_of_a_virtual_environment_is_refused(
    tmp_path: Path, base: Path, minor: str, name: str, text: str, said: str
) -> None:
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "venv" / "lib" / f"python{minor}" / "site-packages" / name).write_text(text)
    with pytest.raises(ExecutionEnvironmentError, match=said):
        pack(tmp_path / "venv", tmp_path / "out.tar.zst")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["venv"]
