"""What the tests of the sources leave for the tests that run after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def exclude_syntax_trees_from_garbage_collection() -> Iterator[None]:
    """They are kept (`sources.py`): a million objects, which each `gc.collect()` of a later test walked for 0.6 s."""
    yield
    gc.collect()  # what is no longer used would stay for good
    gc.freeze()
