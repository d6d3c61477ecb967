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


def test_a_key_for_whose_bytes_there_is_no_room_clears_a_memo() -> None:
    memo: Memo[bytes, tuple[str, int]] = Memo(100, 32)
    memo[b"a"] = ("b", 1)
    for number in range(30):
        memo[b"%02d" % number] = ("", number)
        assert sum(len(key) + len(value[0]) for key, value in memo.items()) == memo.used <= 32
    assert len(memo) < 30
    assert memo[b"29"] == ("", 29)


def test_an_entry_that_would_fill_a_memo_is_not_kept_and_clears_nothing() -> None:
    memo: Memo[bytes, int] = Memo(100, 32)
    memo[b"a"] = 1
    memo[b"abc"] = 2

    assert memo == {b"a": 1}


def test_a_replaced_value_counts_once() -> None:
    memo: Memo[bytes, bytes] = Memo(100, 64)
    for value in (b"ab", b"abc", b"", b"far too long"):
        memo[b"k"] = value

    assert memo == {}
    assert memo.used == 0


@given(limit=st.integers(1, 5), keys=st.lists(st.integers(0, 20)))
def test_a_memo_never_holds_more_than_its_limit_and_always_the_last_key(limit, keys) -> None:
    memo: Memo[int, int] = Memo(limit)
    for key in keys:
        memo[key] = -key

        assert len(memo) <= limit
        assert memo[key] == -key
