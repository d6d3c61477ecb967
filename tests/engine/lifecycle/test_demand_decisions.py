"""Which models that came on demand leave, and when a failed load is tried again."""

from __future__ import annotations

import pytest

from naiad.engine.lifecycle.demand import (
    ModelInMemory,
    Room,
    expected_size,
    headroom,
    idle_models,
    plan_room,
    retry_delay,
)


def model(key, size=10, last_used=0.0, **more):
    return ModelInMemory(key=key, size=size, last_used=last_used, **more)


def test_a_model_leaves_after_its_idle_time_unless_it_is_in_use_or_pinned():
    models = [
        model("now", last_used=95, idle_seconds=5),
        model("used", last_used=95.1, idle_seconds=5),
        model("any", last_used=1),
        model("busy", last_used=1, idle_seconds=5, is_in_use=True),
        model("pinned", last_used=1, idle_seconds=5, is_pinned=True),
    ]
    assert idle_models(models, 100) == ["now"]


@pytest.mark.parametrize(
    ("needed", "room"),
    [
        (0, Room(evict=(), is_enough=True, spare=90)),
        (60, Room(evict=(), is_enough=True, spare=90)),
        (61, Room(evict=("oldest",), is_enough=True, spare=90)),
        (71, Room(evict=("oldest", "newest"), is_enough=True, spare=90)),
        (81, Room(evict=("oldest", "newest"), is_enough=False, spare=90)),
    ],
)
def test_the_least_recently_used_idle_models_leave_until_there_is_room(needed, room):
    models = [
        model("newest", last_used=9),
        model("oldest", last_used=2),
        model("busy", last_used=1, is_in_use=True),
        model("pinned", last_used=1, is_pinned=True),
    ]
    assert plan_room(models, limit=100, needed=needed) == room


def test_a_model_that_was_never_measured_is_expected_to_be_as_large_as_others():
    assert expected_size(7, [1, 2]) == 7
    assert expected_size(0, [0, 10, 30, 20]) == 20
    assert expected_size(0, [0]) == 0


def test_room_is_kept_for_the_next_loads_of_small_models_only():
    assert headroom(1000, [5, 5, 0]) == 20
    assert headroom(1000, [12, 12, 13]) == 48
    assert headroom(1000, [13, 13]) == 0
    assert headroom(1000, []) == 0


def test_a_failed_load_is_tried_again_after_pauses_that_double_up_to_a_minute():
    assert [retry_delay(failures) for failures in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]
