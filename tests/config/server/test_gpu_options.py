"""`--cuda-memory-pool-byte-size`: how much GPU memory an instance may share."""

from __future__ import annotations

import pytest
from cli.parsing import parse, refusal


def arguments(*values):
    return [f"--cuda-memory-pool-byte-size={value}" for value in values]


def pools(*values):
    return parse(*arguments(*values)).guests.gpu_pools


def test_each_gpu_has_its_own_size_and_the_last_one_counts():
    assert pools() == {}
    assert pools("0:1048576", "1:0", "0:2097152") == {0: 2097152, 1: 0}


@pytest.mark.parametrize("value", ["x", "0", "0:x", "a:5", "0:-5", "-1:5", ":5", "0:"])
def test_a_value_without_a_gpu_and_a_size_is_refused(value):
    text = str(refusal(*arguments(value)))
    assert f"--cuda-memory-pool-byte-size option format is '<GPU device ID>:<byte size>'. Got {value}" in text
