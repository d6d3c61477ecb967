"""The locks of backends that ship with naiad, as texts: what they name for whom, without installing anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker

from naiad.config.model.declared_environment import read_script_block

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKENDS = Path(__file__).parents[3] / "backends"
WITH_TORCH = ("pytorch", "transformers")


def packages(backend: str, lock: str) -> list[dict[str, Any]]:
    table: dict[str, Any] = tomllib.loads((BACKENDS / backend / lock).read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = table["packages"]
    return found


def versions(backend: str, lock: str, platform: str, python: str) -> dict[str, str]:
    """The versions that a lock selects on a platform."""
    environment = {"sys_platform": platform, "python_full_version": f"{python}.1", "platform_machine": "x86_64"}
    environment |= {"python_version": python, "platform_system": {"linux": "Linux", "darwin": "Darwin"}[platform]}
    return {
        each["name"]: each["version"]
        for each in packages(backend, lock)
        if "marker" not in each or Marker(each["marker"]).evaluate(environment)
    }


@pytest.mark.parametrize("backend", [path.parent.name for path in sorted(BACKENDS.glob("*/pylock.toml"))])
def test_each_file_of_a_lock_has_a_digest_and_no_address(backend: str):
    for lock in (BACKENDS / backend).glob("pylock*.toml"):
        assert "://" not in lock.read_text(encoding="utf-8").replace("https://peps", "")
        for package in packages(backend, lock.name):
            assert package["wheels"], package["name"]
            assert all(len(wheel["hashes"]["sha256"]) == 64 for wheel in package["wheels"])


@pytest.mark.parametrize("backend", WITH_TORCH)
@pytest.mark.parametrize("python", ["3.11", "3.14"])
def test_the_lock_for_processors_differs_by_the_build_of_pytorch_and_what_that_needs(backend: str, python: str):
    default, processors = (versions(backend, lock, "linux", python) for lock in ("pylock.toml", "pylock.cpu.toml"))
    assert processors.pop("torch") == f"{default.pop('torch')}+cpu"
    assert processors.items() <= default.items()
    assert not [name for name in processors if name.startswith(("nvidia", "cuda", "triton"))]
    assert [name for name in default if name.startswith("nvidia")]


@pytest.mark.parametrize("backend", WITH_TORCH)
def test_both_locks_are_the_same_where_there_is_one_build(backend: str):
    assert versions(backend, "pylock.cpu.toml", "darwin", "3.12") == versions(backend, "pylock.toml", "darwin", "3.12")


def test_the_environment_of_transformers_has_all_of_that_of_pytorch():
    for lock in ("pylock.toml", "pylock.cpu.toml"):
        assert (
            versions("pytorch", lock, "linux", "3.12").items()
            <= versions("transformers", lock, "linux", "3.12").items()
        )


@pytest.mark.parametrize("backend", WITH_TORCH)
def test_a_lock_names_what_the_block_of_the_backend_requires(backend: str):
    block = read_script_block((BACKENDS / backend / "model.py").read_text(encoding="utf-8"), backend)
    assert block is not None
    for lock in ("pylock.toml", "pylock.cpu.toml"):
        table = tomllib.loads((BACKENDS / backend / lock).read_text(encoding="utf-8"))
        assert table["tool"]["naiad"]["requirements"] == list(block.dependencies)
