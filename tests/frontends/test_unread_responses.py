"""Which responses may wait for their clients, and whose clients are disconnected: the budget as pure logic."""

from __future__ import annotations

import pytest
from frontends.test_request_budget import LIMIT, MIB, SOFT, Body
from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends import unread_responses
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.unread_responses import COUNTED_FROM, UnreadResponse, UnreadTable

REFUSAL = (
    "cannot send the response: requests in flight use all of the 8388608 bytes that they may use together; "
    "try again later, ask for a shorter one, or set --memory-limit-requests"
)


class Client:
    """A client that reads *rate* bytes in each tick of a response of *size* bytes."""

    def __init__(self, budget: RequestBudget, size: int, *, rate: int = 0) -> None:
        self.rate = rate
        self.read = 0
        self.is_disconnected = False
        self.unread = budget.open_unread(self, size)

    def read_count(self) -> int:
        self.read += 4 * self.rate  # it is called every four ticks
        return self.read

    def disconnect(self) -> None:
        self.is_disconnected = True
        self.unread.release()


def clients(budget: RequestBudget, *sizes: int, rate: int = 0) -> list[Client]:
    return [Client(budget, size, rate=rate) for size in sizes]


def ticks(budget: RequestBudget, count: int) -> None:
    for _ in range(count):
        budget.on_tick()


def seen(budget: RequestBudget) -> None:
    """Let enough ticks pass for clients to be judged."""
    ticks(budget, 5)


def disconnected(given: list[Client]) -> list[bool]:
    return [client.is_disconnected for client in given]


def test_a_response_counts_until_it_is_released():
    budget = RequestBudget(LIMIT)
    (client,) = clients(budget, MIB)
    assert (budget.in_use, budget.unread.size, budget.take_peak()) == (MIB, MIB, MIB)
    client.unread.release()
    client.unread.release()
    assert (budget.in_use, budget.unread.size) == (0, 0)
    assert not budget.unread


def test_one_response_of_any_size_is_sent_and_delays_no_request():
    budget = RequestBudget(LIMIT)
    assert budget.has_room(100 * LIMIT)
    (client,) = clients(budget, 100 * LIMIT)
    body = Body(budget)
    assert body.receive(SOFT)
    body.charge.complete()
    seen(budget)
    assert not client.is_disconnected
    assert budget.has_room(MIB)


def test_all_responses_but_the_largest_share_the_limit():
    budget = RequestBudget(LIMIT)
    clients(budget, 4 * MIB, 4 * MIB, rate=MIB)
    assert budget.has_room(4 * MIB)
    (largest,) = clients(budget, 4 * MIB, rate=MIB)
    assert not budget.has_room(MIB)
    assert not budget.has_room(1)
    assert budget.dropped == {"full": 2}
    assert budget.refusal_to_send == REFUSAL
    largest.unread.release()
    assert budget.has_room(MIB)


def test_what_complete_requests_use_is_no_room_for_further_responses():
    budget = RequestBudget(LIMIT)
    body = Body(budget)
    body.receive(SOFT)
    body.charge.complete()
    assert budget.has_room(2 * MIB), "the first"
    clients(budget, 2 * MIB)
    assert not budget.has_room(2 * MIB)
    body.charge.release()
    assert budget.has_room(2 * MIB)


def test_clients_that_do_not_read_make_room_once_enough_was_seen_of_them():
    budget = RequestBudget(LIMIT)
    slow = clients(budget, 3 * MIB, 3 * MIB, 3 * MIB)
    assert not budget.has_room(3 * MIB), "they may have got their responses in this moment"
    assert disconnected(slow) == [False] * 3
    seen(budget)
    assert disconnected(slow) == [False] * 3, "nobody needs the memory"
    assert budget.has_room(3 * MIB)
    assert disconnected(slow) == [True, False, False], "no more of them than is needed"
    assert budget.dropped == {"full": 1, "slow": 1}


def test_clients_are_disconnected_while_they_use_more_than_the_soft_limit():
    budget = RequestBudget(LIMIT)
    slow = clients(budget, 4 * MIB, 7 * MIB // 2, 4 * MIB)
    body = Body(budget)
    assert not body.receive(1)
    seen(budget)
    assert disconnected(slow) == [True, False, False]
    assert body.events == ["resumed"]
    assert budget.refused == 0


def test_the_client_that_needs_longest_goes_first_and_of_several_the_one_with_the_largest_response():
    budget = RequestBudget(LIMIT)
    given = [Client(budget, 200_000, rate=rate) for rate in (100, 10, 0, MIB)]
    given += [*clients(budget, 100_000, 300_000), Client(budget, 50_000, rate=10)]
    seen(budget)
    late = clients(budget, 100_000)
    assert [given.index(response.reader) for response in budget.unread.slow()] == [5, 2, 4, 1, 6, 0]
    order = []
    while response := budget.unread.slowest():
        order.append((given + late).index(response.reader))
        response.release()
    assert order == [5, 2, 4, 1, 6, 0, 3, 7]


def test_clients_that_read_in_time_are_not_disconnected():
    """A minute is 120 ticks."""
    budget = RequestBudget(LIMIT)
    fast = clients(budget, 5 * MIB, 5 * MIB, rate=5 * MIB // 120 + 1)
    slow = clients(budget, MIB, MIB // 2, rate=MIB // 2 // 120 - 100)
    seen(budget)
    assert budget.has_room(2 * MIB)
    assert disconnected(fast) == [False, False]
    assert disconnected(slow) == [True, False]
    assert not budget.has_room(4 * MIB)
    assert disconnected(fast + slow) == [False, False, True, True]


def test_a_client_that_reads_on_after_a_pause_is_not_slow_any_more():
    budget = RequestBudget(LIMIT)
    client, other = clients(budget, 4 * MIB, 5 * MIB)
    seen(budget)
    client.rate = MIB
    seen(budget)
    assert budget.has_room(8 * MIB)
    assert disconnected([client, other]) == [False, True]


def test_a_client_is_judged_by_two_seconds_and_not_by_less():
    budget = RequestBudget(LIMIT)
    (client, _) = clients(budget, 4 * MIB, 5 * MIB)
    ticks(budget, 4)
    assert not budget.has_room(7 * MIB)
    assert not client.is_disconnected
    ticks(budget, 1)
    assert budget.has_room(7 * MIB)


def test_a_stream_whose_long_message_has_no_room_ends():
    budget = RequestBudget(LIMIT)
    clients(budget, 5 * MIB, 9 * MIB // 2, rate=MIB)
    stream, other = clients(budget, 1, 1, rate=MIB)
    stream.unread.resize(3 * MIB)
    assert not stream.is_disconnected
    other.unread.resize(MIB)
    assert disconnected([stream, other]) == [False, True]
    assert budget.unread.size == 25 * MIB // 2


def test_a_long_message_of_a_stream_takes_the_room_of_clients_that_do_not_read():
    budget = RequestBudget(LIMIT)
    slow = clients(budget, 4 * MIB, 5 * MIB)
    seen(budget)
    (stream,) = clients(budget, 1, rate=MIB)
    stream.unread.resize(5 * MIB)
    assert disconnected([*slow, stream]) == [False, True, False]


def test_a_stream_that_grows_by_little_beyond_the_limit_ends_the_slowest_of_all():
    budget = RequestBudget(LIMIT)
    given = [Client(budget, size, rate=MIB + rate) for size, rate in ((4 * MIB, 2), (4 * MIB, 0), (7 * MIB // 2, 1))]
    seen(budget)
    late = clients(budget, 1, rate=MIB)[0]
    for size in range(1, MIB // 2, 1000):
        late.unread.resize(size)
    assert not any(disconnected([*given, late]))
    for size in range(MIB // 2, MIB, 1000):
        late.unread.resize(size)
    assert disconnected([*given, late]) == [False, True, False, False]


def test_growth_counts_from_what_was_left_after_the_client_had_read():
    budget = RequestBudget(LIMIT)
    (stream,) = clients(budget, 60_000, rate=MIB)
    clients(budget, 8 * MIB + 50_000, 8 * MIB - 50_000, rate=MIB)
    stream.unread.resize(1)
    stream.unread.resize(60_000)
    assert not stream.is_disconnected
    stream.unread.resize(1 + COUNTED_FROM)
    assert not stream.is_disconnected, "the slowest of all is another"
    assert budget.dropped == {"slow": 1}


def test_bodies_beyond_the_limit_are_refused_only_if_no_client_reads_slowly():
    budget = RequestBudget(LIMIT)
    slow = clients(budget, 3 * MIB, 3 * MIB)
    body = Body(budget)
    body.receive(3 * MIB)
    seen(budget)
    body.receive(3 * MIB)
    assert disconnected(slow) == [True, False]
    assert not body.events
    for client in slow:
        client.unread.release()
    clients(budget, 6 * MIB, 2 * MIB, rate=MIB)
    body.receive(MIB)
    assert len(body.events) == 1


def test_shrinking_responses_let_bodies_continue():
    budget = RequestBudget(LIMIT)
    one, _ = clients(budget, 7 * MIB, 8 * MIB, rate=MIB)
    body = Body(budget)
    assert not body.receive(1)
    one.unread.resize(6 * MIB)
    assert body.events == ["resumed"]


def test_many_clients_are_asked_in_several_ticks(monkeypatch):
    monkeypatch.setattr(unread_responses, "_ASKED_AT_ONCE", 3)
    budget = RequestBudget(LIMIT)
    many = clients(budget, *[1000] * 8, rate=1)
    ticks(budget, 1)
    assert sum(client.read == 4 for client in many) == 3
    ticks(budget, 2)
    assert all(client.read == 4 for client in many)
    ticks(budget, 6)
    assert len(budget.unread.slow()) == 8


def test_the_owner_learns_of_each_response_that_is_dropped():
    told: list[str] = []
    budget = RequestBudget(LIMIT, on_dropped=told.append)
    clients(budget, LIMIT, LIMIT)
    budget.has_room(LIMIT)
    budget.note_dropped("time")
    assert told == ["full", "time"]


class Silent:
    def read_count(self) -> int:
        return 0

    def disconnect(self) -> None:
        raise AssertionError


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=200))
def test_size_and_largest_are_those_of_all_responses(changes):
    table = UnreadTable()
    responses = [UnreadResponse(Silent(), table.put) for _ in range(6)]
    for index, size in changes:
        responses[index].resize(size)
        sizes = [response.size for response in responses]
        assert table.size == sum(sizes)
        assert table.largest == max(sizes)
        assert len(table) == sum(map(bool, sizes))
        assert len(table._by_size) <= 4 * 7


@pytest.mark.parametrize("size", [0, 1])
def test_a_response_that_is_over_is_not_slow(size):
    table = UnreadTable()
    response = UnreadResponse(Silent(), table.put)
    response.resize(9)
    table.look(1)
    table.look(5)
    assert table.slow() == [response]
    response.resize(size)
    assert table.slow() == [response][:size]
