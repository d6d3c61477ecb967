"""`make demo` as a user runs it, from the environment to the verdict."""

import re

import pytest
from demo.running import LIMIT, run_demo


@pytest.mark.endurance
@pytest.mark.timeout(LIMIT + 15)
def test_the_demo_answers_rightly_under_two_pythons_over_both_protocols(tmp_path):
    code, said = run_demo(tmp_path, "demo.py")
    assert code == 0, said
    assert "Every answer is right" in said
    assert said.count("Asked over") == 2
    for model in ("add_sub", "add_sub_packed", "sentiment", "topic", "when"):
        assert len(re.findall(rf"^ ?{model} .*\d+\.\d+\.\d+ +\d+\.\d", said, re.MULTILINE)) == 2, said
    assert said.count("difference -9 -18 -27 -36") == 4
    assert len(re.findall(r"waiter was rude\. +negative \d\d%  positive \d+%", said)) == 2, said
    assert len(re.findall(r"central bank .* +finance \d\d%", said)) == 2, said
    assert len(re.findall(r"5\.9 2\.8 4\.2 1\.3 +versicolor \d\d%", said)) == 2, said
    packed = re.search(r"Python (\S+), packed in", said)
    assert packed is not None, said
    assert re.search(rf"^ ?add_sub_packed .* {re.escape(packed[1])} ", said, re.MULTILINE), said
