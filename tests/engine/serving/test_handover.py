"""A reloaded version and its predecessors, which the test plays: which of them gets a request."""

from __future__ import annotations

import pytest
from engine.submitting import submit

from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.handover import Handover
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InferRequest


class Version:
    """A loaded version that has the sequences *ids*; it keeps its requests."""

    open_sequences = 3

    def __init__(self, name: str, *ids: int) -> None:
        self.name = name
        self.ids = ids
        self.submitted: list[OpenRequest] = []

    def has_sequence(self, correlation_id: int | str) -> bool:
        return correlation_id in self.ids

    def finish_sequences(self) -> int:
        raise AssertionError("`ModelLoads` does this")

    def accept(self, opened: OpenRequest) -> None:
        self.submitted.append(opened)


def ask(correlation_id: int, flags: int = 0) -> InferRequest:
    return InferRequest("m", -1, [], correlation_id=correlation_id, flags=flags)


@pytest.mark.parametrize(
    ("correlation_id", "flags", "goes_to"),
    [
        (1, 0, "old"),
        (1, SEQUENCE_END, "old"),
        (1, SEQUENCE_START, "new"),
        (1, SEQUENCE_START | SEQUENCE_END, "new"),
        (2, 0, "new"),
        (3, 0, "new"),
        (3, SEQUENCE_START, "new"),
    ],
)
def test_requests_go_to_the_version_that_has_their_sequence_and_new_sequences_to_the_new_one(
    correlation_id, flags, goes_to
):
    """Sequence 1 is in progress in the old version, 2 in both, 3 in neither."""
    versions = {"old": Version("old", 1, 2), "new": Version("new", 2)}
    handover = Handover([versions["old"]], versions["new"])
    submit(handover, ask(correlation_id, flags), None)
    assert [name for name, each in versions.items() if each.submitted] == [goes_to]


def test_of_several_predecessors_with_a_sequence_the_latest_gets_its_requests():
    first, second, new = Version("first", 1, 2), Version("second", 1), Version("new")
    handover = Handover([first, second], new)
    submit(handover, ask(1), None)
    submit(handover, ask(2), None)
    assert [len(each.submitted) for each in (first, second, new)] == [1, 1, 0]


def test_a_request_is_passed_on_as_it_is():
    old, new = Version("old"), Version("new")
    opened = submit(Handover([old], new), ask(1), object())
    assert new.submitted == [opened]


def test_what_is_asked_of_a_handover_is_answered_by_the_new_version():
    handover = Handover([Version("old")], Version("new"))
    handover.new.config, handover.new.metadata, handover.new.reason = object(), object(), "it is given up"
    assert handover.config is handover.new.config
    assert handover.metadata is handover.new.metadata
    assert handover.reason == "it is given up"
    assert handover.device == 0
    assert handover.direct is None, "each request has to be looked at"


def test_the_sequences_of_all_versions_are_in_progress_until_an_old_one_has_ended():
    first, second = Version("first"), Version("second")
    handover = Handover([first, second], Version("new"))
    assert handover.open_sequences == 9
    handover.olds.remove(first)
    assert handover.open_sequences == 6


def test_a_new_version_without_sequences_of_its_own_gets_what_no_old_one_has():
    class Ensemble:
        """Has none of a `SequenceOwner`'s methods."""

        submitted = 0

        def accept(self, opened: OpenRequest) -> None:
            self.submitted += 1

    old, new = Version("old", 1), Ensemble()
    handover = Handover([old], new)
    submit(handover, ask(1), None)
    submit(handover, ask(2), None)
    assert (len(old.submitted), new.submitted) == (1, 1)


def test_each_handover_has_a_number_of_its_own():
    numbers = {Handover([Version("old")], Version("new")).number for _ in range(3)}
    assert len(numbers) == 3
