"""`naiad env diff` and `naiad env why`: on folders, archives and entries of the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from environments import makers

from naiad.cli.commands import naiad_group
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad_building.comparison import _files, _members


def env(*arguments: object) -> Result:
    return CliRunner().invoke(naiad_group, ["env", *map(str, arguments)], standalone_mode=False)


def install(site: Path, name: str, version: str, *requires: str, content: str = "") -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
    (site / f"{name}.py").write_text(content)


@pytest.fixture
def before(tmp_path, minor) -> Path:
    prefix = makers.make_environment(tmp_path / "before", minor)
    site = prefix / "lib" / f"python{minor}" / "site-packages"
    install(site, "adder", "1.0")
    install(site, "counter", "1.0", "adder>=1", 'colour; extra == "tests"')
    install(site, "app", "2.0", "counter", "adder<3")
    meta = prefix / "conda-meta"
    meta.mkdir()
    record = {"name": "geo", "version": "3.1", "depends": ["adder 1.*", "libgdal >=3"]}
    (meta / "geo-3.1-0.json").write_text(json.dumps(record))
    return prefix


@pytest.fixture
def after(tmp_path, before, minor) -> Path:
    prefix = tmp_path / "after"
    shutil.copytree(before, prefix, symlinks=True)
    site = prefix / "lib" / f"python{minor}" / "site-packages"
    shutil.rmtree(site / "adder-1.0.dist-info")
    install(site, "adder", "2.0", content="NEW = True\n" * 1000)
    shutil.rmtree(site / "counter-1.0.dist-info")
    (site / "counter.py").unlink()
    install(site, "extra", "0.1")
    return prefix


@pytest.mark.parametrize("form", ["folders", "archives", "entries"])
def test_packages_sizes_and_files_that_differ_are_listed(form, before, after, tmp_path, minor):
    names = [str(before), str(after)]
    if form != "folders":
        names = [str(makers.pack_plainly(Path(one), tmp_path / f"{Path(one).name}.tar")) for one in names]
    if form == "entries":
        manager = EnvironmentManager(tmp_path / "store")
        names = [str(manager.prepare(Path(one)).digest)[:12] for one in names]

    done = env("diff", *names, f"--env-store={tmp_path / 'store'}")

    assert done.exit_code in {0, 1}
    assert done.return_value == 1
    lines = done.stdout.splitlines()
    assert lines[:3] == ["~ adder 1.0 -> 2.0", "- counter 1.0", "+ extra 0.1"]
    assert f"  ~ lib/python{minor}/site-packages/adder.py (11 kB)" in lines
    assert any(line.startswith("files: ") and line.endswith(" changed") for line in lines)

    same = env("diff", names[0], names[0], f"--env-store={tmp_path / 'store'}")
    assert (same.return_value, same.stdout) == (0, "they do not differ\n")


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_requires_a_package_is_a_tree(is_packed, before, tmp_path):
    named = makers.pack_plainly(before, tmp_path / "e.tar") if is_packed else before

    done = env("why", "Adder", named, f"--env-store={tmp_path / 'store'}")

    assert done.stdout == (
        "adder 1.0\n"
        "  <- app 2.0 (requires adder<3)\n"
        "  <- counter 1.0 (requires adder>=1)\n"
        "     <- app 2.0 (requires counter)\n"
        "  <- geo 3.1 (requires adder 1.*)\n"
    )
    assert "no package requires it" in env("why", "app", named, f"--env-store={tmp_path / 'store'}").stdout


def test_packages_that_require_each_other_end(tmp_path, before, minor):
    site = before / "lib" / f"python{minor}" / "site-packages"
    install(site, "left", "1", "right")
    install(site, "right", "1", "left")

    assert env("why", "left", before, f"--env-store={tmp_path / 'store'}").stdout.count("<-") == 2


def test_a_package_that_is_not_there_is_an_error_with_the_nearest(before, tmp_path):
    failed = env("why", "ader", before, f"--env-store={tmp_path / 'store'}").exception

    assert isinstance(failed, ExecutionEnvironmentError)
    assert failed.message == f"there is no package 'ader' in {before}; did you mean 'adder'?"


def test_a_damaged_archive_is_named_with_the_members_before_the_damage(tmp_path, before):
    packed = makers.pack_plainly(before, tmp_path / "e.tar")
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    read = []

    with pytest.raises(ExecutionEnvironmentError) as caught:
        read.extend(name for name, *_ in _members(packed))

    assert read
    assert f"damaged: reading it failed after {len(read)} members" in caught.value.message


def test_files_of_an_archive_have_the_sizes_and_digests_of_those_in_its_folder(tmp_path, before):
    packed = makers.pack_plainly(before, tmp_path / "e.tar")

    assert dict(_files(str(packed), tmp_path)) == dict(_files(str(before), tmp_path))
