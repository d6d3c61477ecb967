"""Files in `examples/` that scripts beside them made: the scripts still make them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
from examples.running import EXAMPLES

pytestmark = pytest.mark.server


def run(script):
    subprocess.run([sys.executable, "-B", script], check=True, timeout=110)


def test_the_weights_of_the_text_pipeline_come_from_its_sentences(tmp_path):
    ours = EXAMPLES / "text_pipeline"
    again = tmp_path / "text_pipeline"
    shutil.copytree(ours, again)
    files = ("tokenizer/1/vocabulary.txt", "classifier/1/weights.txt", "text_pipeline/1/labels.txt")
    for file in files:
        (again / "models" / file).unlink()

    run(again / "train.py")

    vocabulary, weights, labels = ([folder / "models" / file for folder in (ours, again)] for file in files)
    assert vocabulary[0].read_text() == vocabulary[1].read_text()
    assert labels[0].read_text() == labels[1].read_text()
    # Not digit by digit: libraries of linear algebra add up in different orders.
    np.testing.assert_allclose(*map(np.loadtxt, weights), atol=0.02)


def test_the_landscape_is_drawn_by_its_script(tmp_path):
    shutil.copy(EXAMPLES / "preprocessing" / "make_image.py", tmp_path)

    run(tmp_path / "make_image.py")

    # The client of that example compares every pixel; here: a picture comes out where it belongs.
    assert (tmp_path / "landscape.png").read_bytes()[:4] == b"\x89PNG"
