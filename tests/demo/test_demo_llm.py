"""`make demo-llm` as a user runs it, from the environment to the verdict."""

import re

import pytest
from demo.running import LIMIT, run_demo


@pytest.mark.endurance
@pytest.mark.timeout(LIMIT + 15)
def test_the_demo_of_language_models_chats_on_one_backend_in_a_packed_environment(tmp_path):
    code, said = run_demo(tmp_path, "demo_llm.py")
    assert code == 0, said
    assert "Every answer is well formed" in said
    assert "The capital of France is Paris." in said
    assert (
        len(re.findall(r"\d+ tokens, ended by (?:stop|length); the first after \d+ ms, then \d+ tokens/s", said)) == 4
    )
    assert "24 tokens, ended by length" in said
    packed = re.search(r"Python (\S+), packed in", said)
    assert packed is not None, said
    for model in ("assistant", "storyteller", "vectors"):
        assert re.search(rf"^ ?{model} +\d+ +{re.escape(packed[1])} ", said, re.MULTILINE), said
