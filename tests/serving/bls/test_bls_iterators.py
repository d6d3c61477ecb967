"""Responses of called models one by one: iterated again, left, dropped, cancelled. Found at the reference (see `contract`)."""

from __future__ import annotations

import pytest
from serving.contract import ours, run, serving


@pytest.fixture(scope="module")
def server(work):
    with serving(work, "runs_code", "runs_coroutine", "identity", "repeats") as running:
        yield running


THREE = [{"OUT": [0.0]}, {"OUT": [1.0]}, {"OUT": [2.0]}]


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("'repeats', tensor(3, 0)", [*THREE, {}]),
        ("'repeats', tensor(3, 1)", THREE),
        ("'identity', tensor(5)", [{"OUT": [5.0]}]),
        pytest.param("'repeats', tensor(0, 0)", [{}], marks=ours),  # kills the reference
    ],
)
def test_responses_are_iterated_as_often_as_wanted(server, target, values):
    code = f"""
    iterator = to({target}).exec(decoupled=True)
    return [answer([type(iterator).__name__, [value_of(r) for r in iterator], [value_of(r) for r in iterator]])]
    """
    assert run(server, "runs_code", code) == ["ResponseIterator", values, values]
    code = f"return [answer([value_of(r) for r in await to({target}).async_exec(decoupled=True)])]"
    assert run(server, "runs_coroutine", code) == values


def test_an_iterator_continues_where_it_was_left(server):
    code = """
    iterator = to("repeats", tensor(3, 0)).exec(decoupled=True)
    seen = [value_of(next(iterator)), value_of(next(iterator))]
    seen.append([value_of(r) for r in iterator])
    seen.append([value_of(r) for r in iterator])
    seen.append(raised(next, iterator))
    return [answer(seen)]
    """
    done = "StopIteration: Iteration is done for the responses."
    assert run(server, "runs_code", code) == [*THREE[:2], [THREE[2], {}], [*THREE, {}], done]


@ours
def test_breaking_out_of_an_iteration_keeps_the_rest(server):
    """Which kills the reference, now and then."""
    code = """
    iterator = to("repeats", tensor(3, 0)).exec(decoupled=True)
    for first in iterator:
        break
    return [answer([value_of(first), [value_of(r) for r in iterator]])]
    """
    assert run(server, "runs_code", code) == [THREE[0], [*THREE[1:], {}]]


@ours
def test_the_last_empty_response_has_no_parameters_at_all(server):
    code = """
    responses = list(to("repeats", tensor(1, 0)).exec(decoupled=True))
    return [answer([(r.parameters(), r.has_error(), r.output_tensors()) for r in responses[1:]])]
    """
    assert run(server, "runs_code", code) == [["", False, []]]


def test_thousands_of_responses_are_iterated(server):
    code = """
    iterator = to("repeats", tensor(5000, 0)).exec(decoupled=True)
    return [answer([value_of(r)["OUT"][0] for r in iterator if r.output_tensors()] == list(range(5000)))]
    """
    assert run(server, "runs_code", code) is True


def test_an_iterator_may_be_dropped_early(server):
    code = """
    for _ in range(10):
        iterator = to("repeats", tensor(1000, 0)).exec(decoupled=True)
        next(iterator)
        del iterator
    return [answer(value_of(to("identity", tensor(1)).exec()))]
    """
    assert run(server, "runs_code", code) == {"OUT": [1.0]}


@ours
def test_a_cancelled_call_ends_when_its_model_notices(server):
    code = """
    iterator = to("repeats", tensor(100000, 0)).exec(decoupled=True)
    next(iterator)
    iterator.cancel()
    return [answer(1 + sum(1 for _ in iterator) < 100000)]
    """
    assert run(server, "runs_code", code) is True


@ours
def test_an_iterator_is_iterated_asynchronously_too(server):
    code = """
    iterator = await to("repeats", tensor(300, 0)).async_exec(decoupled=True)
    slow = asyncio.ensure_future(asyncio.sleep(0.01))
    count = 0
    async for response in iterator:
        count += 1
    try:
        await asyncio.wait_for(iterator.__anext__(), 1)
    except StopAsyncIteration:
        count += 1000
    await slow
    return [answer([count, [value_of(r) for r in iterator][-1]])]
    """
    assert run(server, "runs_coroutine", code) == [1301, {}]
