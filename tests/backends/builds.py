"""Environments that backends declare, built from their locks into stores that all tests of a run share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.once import once


def declared_environment(factory: pytest.TempPathFactory, backend: str, *flags: str) -> Path:
    """A store with the environment of a backend. Needs whatever index pip is configured for; skips without one.

    *flags* choose another environment than the default.
    """

    def fill(store: Path) -> None:
        models = store.with_name(f"{backend}-prefetched")
        (models / "m" / "1").mkdir(parents=True)
        (models / "m" / "config.pbtxt").write_text(f'backend: "{backend}"')
        prefetched(store, f"--model-repository={models}", *flags)

    return once(factory, f"{backend}-store", fill)


def torch_environment(factory: pytest.TempPathFactory) -> Path:
    """A store with PyTorch and transformers, in builds for processors: those for GPUs are 5 GB.

    pip has them where the index of PyTorch is among its indexes, or a folder of wheels has them.
    """
    return declared_environment(
        factory, "transformers", "--backend-config=transformers,execution-env-path=pylock.cpu.toml"
    )


def prefetched(store: Path, *arguments: str) -> None:
    """Build environments into a store by `naiad env prefetch`; skips the test where that fails."""
    command = [sys.executable, "-m", "naiad", "env", "prefetch", f"--env-store={store}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"environments of saved models cannot be built: {done.stderr[-500:]}")


def python_of(store: Path) -> Path:
    """The interpreter of the only environment in a store."""
    (found,) = store.glob("*/env/bin/python")
    return found
