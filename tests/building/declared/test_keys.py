"""What determines a declared environment, or a resolution, is part of its name in the store, and nothing else is."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from naiad.environments.manager import host_environment
from naiad_building.declared import provider as keys
from naiad_building.declared.conda import CondaDeclaration, CondaPackages
from naiad_building.declared.declaration import Declaration
from naiad_building.declared.interpreter import ChosenPython, choose_python
from naiad_building.declared.provider import conda_key, conda_resolution_key, resolution_key, venv_key
from naiad_building.indexes import PackageIndex, PackageIndexes
from naiad_building.lockfiles import Pin

PYTHON = ChosenPython(Path("/usr/bin/python3.12"), Path("/usr"), "3.12.1", "cpython-312-x86_64-linux-gnu")
NUMPY, TORCH = Pin("numpy", "2.1", ("aa", "bb")), Pin("torch", "2.5", ("cc",))
OTHER_PYTHONS = [
    replace(PYTHON, version="3.12.2"),
    replace(PYTHON, prefix=Path("/usr/local")),
    replace(PYTHON, abi="cpython-312-aarch64-linux-gnu"),
    replace(PYTHON, abi="cpython-312-x86_64-linux-musl"),
]
OTHER_PINS = [
    [NUMPY],
    [NUMPY, TORCH, Pin("six", "1", ("dd",))],
    [replace(NUMPY, name="numpi"), TORCH],
    [replace(NUMPY, version="2.2"), TORCH],
    [replace(NUMPY, digests=("aa",)), TORCH],
    [replace(NUMPY, digests=("aa", "ee")), TORCH],
]


def record(**changes: Any) -> Any:
    facts = {"version": "3.12", "build": "h1_0", "subdir": "linux-64", "sha256": b"1", "md5": b"2", "url": "u"}
    return SimpleNamespace(**{"name": SimpleNamespace(normalized="python"), **facts, **changes})


CONDA = CondaDeclaration(file=Path("/m/environment.yml"), text="a", channels=("conda-forge",), variables={"A": "1"})
PACKAGES = CondaPackages(records=(record(),), pins=(NUMPY, TORCH))
OTHER_RECORDS = [
    {"name": SimpleNamespace(normalized="pypy")},
    {"version": "3.13"},
    {"build": "h2_0"},
    {"subdir": "linux-aarch64"},
    {"sha256": b"3"},
    {"sha256": None},
    {"sha256": None, "md5": None},
]
DECLARED = Declaration(
    file=Path("/m/requirements.txt"), text="numpy\n", indexes=PackageIndexes(find_links=("/m/wheels",))
)


def test_each_part_of_a_virtual_environment_changes_its_name():
    every = [venv_key(PYTHON, [NUMPY, TORCH])]
    every += [venv_key(python, [NUMPY, TORCH]) for python in OTHER_PYTHONS]
    every += [venv_key(PYTHON, pins) for pins in OTHER_PINS]

    assert len(set(every)) == 1 + len(OTHER_PYTHONS) + len(OTHER_PINS)


def test_neither_the_order_of_packages_nor_the_files_of_the_lock_change_the_name():
    assert venv_key(PYTHON, [NUMPY, TORCH]) == venv_key(PYTHON, [TORCH, replace(NUMPY, digests=("bb", "aa"))])
    assert venv_key(PYTHON, [NUMPY]) == venv_key(PYTHON, [replace(NUMPY, files=("numpy-2.1.whl",))])
    assert venv_key(PYTHON, [NUMPY]) == venv_key(replace(PYTHON, executable=Path("/usr/bin/python3")), [NUMPY])


def test_each_part_of_a_conda_environment_changes_its_name():
    every = [conda_key(CONDA, PACKAGES)]
    every += [conda_key(replace(CONDA, variables=variables), PACKAGES) for variables in ({}, {"A": "2"}, {"B": "1"})]
    every += [conda_key(CONDA, replace(PACKAGES, records=(record(**changes),))) for changes in OTHER_RECORDS]
    every += [conda_key(CONDA, replace(PACKAGES, records=()))]
    every += [conda_key(CONDA, replace(PACKAGES, pins=tuple(pins))) for pins in OTHER_PINS]

    assert len(set(every)) == 1 + 3 + len(OTHER_RECORDS) + 1 + len(OTHER_PINS)
    assert conda_key(replace(CONDA, file=Path("/n/environment.yml"), text="b"), PACKAGES) == every[0]


def test_each_part_of_a_resolution_changes_its_name():
    indexes = PackageIndexes(default=PackageIndex("/m/index"), find_links=("/m/wheels",))
    every = [resolution_key(DECLARED, PYTHON)]
    every += [resolution_key(replace(DECLARED, text="numpy<2\n"), PYTHON)]
    every += [resolution_key(replace(DECLARED, indexes=PackageIndexes(find_links=("/n/wheels",))), PYTHON)]
    every += [resolution_key(replace(DECLARED, indexes=indexes), PYTHON)]
    every += [resolution_key(DECLARED, python) for python in OTHER_PYTHONS if python.prefix == PYTHON.prefix]

    assert len(set(every)) == 4 + 3
    assert resolution_key(replace(DECLARED, file=Path("/n/requirements.txt")), PYTHON) == every[0]


def test_each_part_of_a_resolution_of_conda_packages_changes_its_name(monkeypatch):
    """A relative channel is another one where the same text is in another folder."""
    python = SpecifierSet(">=3.10,<3.13")
    options = replace(CONDA, requirements=("--find-links ./wheels",))
    every = [conda_resolution_key(CONDA, python)]
    every += [conda_resolution_key(replace(CONDA, text="b"), python)]
    every += [conda_resolution_key(replace(CONDA, channels=(f"file:///{folder}",)), python) for folder in "mn"]
    every += [conda_resolution_key(replace(options, file=Path(folder, "environment.yml")), python) for folder in "mn"]
    every += [conda_resolution_key(CONDA, other) for other in (None, SpecifierSet(">=3.10"))]
    assert conda_resolution_key(CONDA, SpecifierSet("<3.13,>=3.10")) == every[0]
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-aarch64")
    every += [conda_resolution_key(CONDA, python)]

    assert len(set(every)) == 9


@pytest.mark.parametrize(
    "key",
    [
        lambda: venv_key(PYTHON, [NUMPY]),
        lambda: conda_key(CONDA, PACKAGES),
        lambda: resolution_key(DECLARED, PYTHON),
        lambda: conda_resolution_key(CONDA, None),
    ],
)
def test_another_format_of_what_is_built_changes_every_name(key, monkeypatch):
    before = key()
    monkeypatch.setattr(keys, "_FORMAT", 2)

    assert key() != before


def test_the_own_python_has_its_abi_while_another_thread_reads_the_variables_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to Python 3.11, `sysconfig` has no variable then: an environment was built twice, under two keys."""
    expected = sysconfig.get_config_var("SOABI")
    assert expected
    monkeypatch.setattr(sysconfig, "get_config_vars", lambda *_: {})
    assert choose_python(SpecifierSet(), tmp_path).abi == expected
    assert host_environment(tmp_path).abi == expected
