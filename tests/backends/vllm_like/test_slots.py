"""SlotQueue for requests: how many run, in which order the others begin, and how those that wait are dropped."""

from __future__ import annotations

import threading

import pytest
from vllm_like.engines import slots
from vllm_like.engines.slots import SlotQueue


class Job:
    """Runs until it is told to end; looks after those that wait each time it is told to."""

    def __init__(self, owner: SlotQueue, begun: list[Job], size: int = 1) -> None:
        self.is_unwanted = self.was_dropped = False
        self.has_begun = threading.Event()
        self._owner = owner
        self._begun = begun
        self._may_end = threading.Event()
        owner.submit(self._run, self._is_dropped, size)

    def end(self) -> None:
        self._may_end.set()

    def _run(self) -> None:
        self._begun.append(self)
        self.has_begun.set()
        assert self._may_end.wait(20)

    def _is_dropped(self) -> bool:
        assert not self.was_dropped
        assert not self.has_begun.is_set()
        self.was_dropped = self.is_unwanted
        return self.was_dropped


@pytest.fixture
def begun() -> list[Job]:
    return []


def test_as_many_requests_run_as_there_are_places_and_the_others_follow_in_order(begun: list[Job]):
    owner = SlotQueue(2, "test")
    jobs = [Job(owner, begun) for _ in range(4)]
    for place, job in enumerate(jobs):
        assert job.has_begun.wait(20)
        if place > 0:
            assert [other.has_begun.is_set() for other in jobs[place + 1 :]] == [False] * (3 - place)
            jobs[place - 1].end()
    jobs[-1].end()
    owner.close()
    assert set(begun[:2]) == set(jobs[:2])
    assert begun[2:] == jobs[2:]


def test_a_request_that_needs_several_places_waits_for_them_and_is_not_overtaken(begun: list[Job]):
    owner = SlotQueue(2, "test")
    first, large, small = Job(owner, begun), Job(owner, begun, size=5), Job(owner, begun)
    assert first.has_begun.wait(20)
    assert begun == [first]
    first.end()
    assert large.has_begun.wait(20)
    assert begun == [first, large]
    large.end()
    small.end()
    owner.close()
    assert begun == [first, large, small]


def test_a_waiting_request_is_dropped_as_soon_as_it_is_cancelled(begun: list[Job], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots, "POLL_SECONDS", 0)
    owner = SlotQueue(1, "test")
    running, kept, unwanted, last = (Job(owner, begun) for _ in range(4))
    assert running.has_begun.wait(20)
    owner.poll_cancelled()
    assert not unwanted.was_dropped
    unwanted.is_unwanted = True
    owner.poll_cancelled()
    owner.poll_cancelled()
    assert unwanted.was_dropped
    for job in (running, kept, last):
        job.end()
    owner.close()
    assert begun == [running, kept, last]


def test_waiting_requests_are_not_checked_at_every_token(begun: list[Job], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots, "POLL_SECONDS", 3600)
    owner = SlotQueue(1, "test")
    running, waiting = Job(owner, begun), Job(owner, begun)
    owner.poll_cancelled()
    waiting.is_unwanted = True
    owner.poll_cancelled()
    assert not waiting.was_dropped
    running.end()
    waiting.end()
    owner.close()
    assert begun == [running, waiting]


def test_the_end_waits_for_all_submitted_requests(begun: list[Job]):
    owner = SlotQueue(1, "test")
    jobs = [Job(owner, begun) for _ in range(2)]
    ending = threading.Thread(target=owner.close)
    ending.start()
    assert jobs[0].has_begun.wait(20)
    jobs[0].end()
    assert jobs[1].has_begun.wait(20)
    assert ending.is_alive()
    jobs[1].end()
    ending.join(20)
    assert not ending.is_alive()
    assert begun == jobs
