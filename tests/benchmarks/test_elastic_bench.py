"""The pure parts of the bench of models on demand; `python -m bench.elastic` measures."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from bench import elastic

MIB = 1 << 20
OPTIONS = argparse.Namespace(models=1000, memory_mib=512, rate=50, seconds=120.0, processes=1)


def outcome(**more):
    values = {
        "warm": [0.002] * 90,
        "cold": [0.1] * 9 + [0.6],
        "memory": [400 * MIB, 500 * MIB],
        "guests": [80, 90, 85],
        "used": {1, 2},
        "ready": 9.0,
        "up": 0.9,
        "down": 1.1,
    }
    return elastic.Outcome(**{**values, **more})


def test_models_are_chosen_by_their_rank():
    law = elastic.ZipfLaw(1000, 1.5, 1)
    chosen = Counter(law.choose() for _ in range(5000))
    assert chosen[0] > chosen[1] > chosen[5] > 0
    assert max(chosen) < 1000
    assert sum(count for number, count in chosen.items() if number < 50) / 5000 == pytest.approx(
        law.share(50), abs=0.05
    )
    assert law.share(1000) == 1


def test_the_section_has_each_figure_with_its_target():
    made = elastic.section(outcome(), OPTIONS)
    assert "| requests, errors | 100, 0 | 0 errors | yes |" in made
    assert "| memory of all guests (PSS), largest of the samples | 500 MiB | at most 512 MiB | yes |" in made
    assert (
        "| first answer of a cold model: p50, p95, largest | 0.10 s, 0.60 s, 0.60 s | p50 below 0.5 s | yes |" in made
    )
    assert "| instances 1 to 4, from the first request on | 0.90 s | below 2 s | yes |" in made


def test_a_missed_target_is_shown():
    made = elastic.section(outcome(errors=["m: 503"], memory=[600 * MIB], cold=[0.7], up=3.0), OPTIONS)
    assert made.count("**no**") == 4


def test_the_section_says_how_many_processes_the_server_had() -> None:
    several = argparse.Namespace(**{**vars(OPTIONS), "processes": 4})
    assert "1,000 models on one server of 4 processes, 50 requests" in elastic.section(outcome(), several)
