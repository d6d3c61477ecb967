"""Scores of a forest as FP32, with a stand-in for Treelite."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from saved_models.settings import read_config


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Runs a forest of regression that answers what it is given."""
    treelite = SimpleNamespace(TreeliteError=RuntimeError, gtil=SimpleNamespace(predict=lambda _, rows, nthread: rows))
    monkeypatch.setitem(sys.modules, "treelite", treelite)
    for name in ("naiad_fil", "naiad_fil.forest"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import naiad_fil.forest as module

    header = {"num_target": 1, "num_class": 1, "task_type": 1}
    accessor = SimpleNamespace(get_field=lambda name: [header[name]])
    model = SimpleNamespace(get_header_accessor=lambda: accessor, input_type="float64")
    forest = module.Forest(model, read_config({"name": "m", "max_batch_size": 8}))
    yield lambda *values: forest.run({"input__0": np.array([values]).T}, ["output__0"])["output__0"][:, 0].tolist()
    for name in ("naiad_fil", "naiad_fil.forest"):
        sys.modules.pop(name, None)


def test_scores_are_rounded_to_fp32_and_never_infinite_unless_the_forest_says_so(run):
    assert run(0.1, np.inf) == [float(np.float32(0.1)), np.inf]
    with pytest.raises(ValueError, match="output 'output__0' has a value that TYPE_FP32 cannot hold; scale the target"):
        run(0.1, 1e300)
