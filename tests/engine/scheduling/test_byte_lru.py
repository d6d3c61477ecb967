"""A store of so many bytes: never over its limit, and the values used longest ago go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.scheduling.byte_lru import ByteLru

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS, st.just(0)),
        st.tuples(st.just("put"), KEYS, st.integers(0, 12)),
        st.tuples(st.just("discard"), KEYS, st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_cache_holds_the_values_of_a_list_in_the_order_of_use(steps):
    """The list is the definition: newest last, cut from the front until it fits."""
    lru: ByteLru[int, int] = ByteLru(10)
    model: list[tuple[int, int, int]] = []  # key, value, size
    evicted = 0
    for number, (what, key, size) in enumerate(steps):
        known = [entry for entry in model if entry[0] == key]
        rest = [entry for entry in model if entry[0] != key]
        if what == "get":
            assert lru.get(key) == (known[0][1] if known else None)
            model = rest + known
        elif what == "discard":
            lru.discard(lambda other, key=key: other == key)
            model = rest
        else:
            assert lru.put(key, number, size) == (size <= 10)
            model = [*rest, (key, number, size)] if size <= 10 else rest
            while sum(entry[2] for entry in model) > 10:
                del model[0]
                evicted += 1
        assert (len(lru), lru.used, lru.evictions) == (len(model), sum(entry[2] for entry in model), evicted)
        assert lru.used <= lru.capacity
        assert repr(lru) == f"<ByteLru {len(lru)} values, {lru.used} of 10 bytes>"
