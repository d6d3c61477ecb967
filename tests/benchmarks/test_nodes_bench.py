"""The pure parts of the bench of two nodes; `python -m bench.nodes` measures."""

from __future__ import annotations

import argparse

import pytest

from bench import nodes

OPTIONS = argparse.Namespace(rounds=3, seconds=5.0)


@pytest.mark.parametrize(
    ("both", "ratio", "verdict"), [([380.0, 370.0, 390.0], "0.95", "yes"), ([300.0] * 3, "0.75", "**no**")]
)
def test_the_section_has_the_ratio_with_its_goal(both, ratio, verdict):
    made = nodes.section(nodes.Rates(alone=([200.0] * 3, [200.0] * 3), both=both), OPTIONS)

    assert "| the second server alone | 200 requests/s |" in made
    assert f"| both by the sum of each alone (least to most) | {ratio} (" in made
    assert f"| at least 0.9 | {verdict} |" in made
