"""The default number of threads of an engine that runs on the CPU."""

from __future__ import annotations

import pytest
from vllm_like.engines import threads


@pytest.mark.parametrize(
    ("cores", "expected", "is_told"), [(1, 1, False), (2, 1, True), (3, 2, False), (16, 15, False)]
)
def test_one_core_stays_free_and_the_log_says_so_if_two_cores_exist(monkeypatch, cores, expected, is_told):
    monkeypatch.setattr(threads, "usable_processors", lambda: cores)
    assert threads.default_count() == expected
    assert ("'n_threads': 2 in engine_options" in threads.advice(expected)) is is_told
    assert threads.advice(cores) == ""
