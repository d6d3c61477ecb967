"""For which models imports are done once, and which imports."""

from __future__ import annotations

import pytest

from naiad.config.model.parameters import modules_to_prewarm


@pytest.mark.parametrize(
    ("given", "by_default", "modules"),
    [
        (None, False, ()),
        (None, True, ("numpy",)),
        ((), True, ()),
        (("numpy", "torch"), False, ("numpy", "torch")),
    ],
)
def test_the_models_parameter_overrides_the_flag(given, by_default, modules):
    assert modules_to_prewarm(given, by_default=by_default) == modules
