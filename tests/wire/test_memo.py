"""The bounded memo that host and guest share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from naiad_stub.memo import Memo


def test_a_value_is_found_under_its_key() -> None:
    memo: Memo[bytes, int] = Memo(2)
    memo[b"a"] = 1

    assert memo.get(b"a") == 1
    assert memo.get(b"b") is None


def test_a_new_key_clears_a_full_memo() -> None:
    memo: Memo[bytes, int] = Memo(2)
    memo[b"a"] = 1
    memo[b"b"] = 2
    memo[b"c"] = 3

    assert memo == {b"c": 3}


def test_a_known_key_is_replaced_in_a_full_memo_and_nothing_is_cleared() -> None:
    memo: Memo[bytes, int] = Memo(2)
    memo[b"a"] = 1
    memo[b"b"] = 2
    memo[b"a"] = 3

    assert memo == {b"a": 3, b"b": 2}


@given(limit=st.integers(1, 5), keys=st.lists(st.integers(0, 20)))
def test_a_memo_never_holds_more_than_its_limit_and_always_the_last_key(limit, keys) -> None:
    memo: Memo[int, int] = Memo(limit)
    for key in keys:
        memo[key] = -key

        assert len(memo) <= limit
        assert memo[key] == -key
