"""Packages that take seconds to import, for tests that few runs get to: each process of a run collects all tests."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

__all__ = ["LateModule", "needs_ray"]


class LateModule:
    """A module that is imported when one of its public names is used first. Pytest itself asks for private ones."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'naiad[ray]'"
)
