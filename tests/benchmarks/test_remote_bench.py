"""The pure parts of the bench of remote models; `python -m bench.remote` measures."""

from __future__ import annotations

import argparse

from bench import remote

OPTIONS = argparse.Namespace(rounds=3, requests=500)


def test_the_section_has_the_median_of_the_differences_of_each_round():
    latencies = remote.Latencies(own=[0.0002, 0.0004, 0.0003], remote=[0.0012, 0.0015, 0.0018])
    slow = remote.Latencies(own=[0.0004] * 3, remote=[0.0021] * 3)

    made = remote.section({"HTTP": latencies, "gRPC": slow}, OPTIONS)

    assert "| HTTP | 0.30 ms | 1.50 ms | 1.10 ms (1.00 to 1.50) | at most 1.5 ms | yes |" in made
    assert "| gRPC | 0.40 ms | 2.10 ms | 1.70 ms (1.70 to 1.70) | at most 1.5 ms | **no** |" in made
    assert "500 to each by turns, 3 rounds" in made
