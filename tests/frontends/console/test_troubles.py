"""What went wrong with models in the last minutes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from fakes.engine import sample_instance, sample_statistics

import naiad
from naiad.frontends.console.troubles import RecentTroubles, Troubles, read_troubles
from naiad.protocol.metadata import Duration, ModelCondition

KEY = ("", "m", "1")
NONE = Troubles()


def counted(restarts=0, failed=0, rejected=0):
    return Troubles(restarts=restarts, failed=failed, rejected=rejected)


def test_what_was_counted_before_the_first_reading_is_not_recent():
    troubles = RecentTroubles(300)
    troubles.add(0, {KEY: counted(failed=7)})
    assert troubles.recent(KEY, 1, counted(failed=7)) == NONE
    assert not troubles.recent(KEY, 1, counted(failed=7))
    assert troubles.recent(KEY, 1, counted(failed=9)) == counted(failed=2)


def test_counts_are_recent_for_their_time_and_then_forgotten():
    troubles = RecentTroubles(300)
    troubles.add(0, {KEY: NONE})
    troubles.add(5, {KEY: counted(restarts=1)})
    troubles.add(100, {KEY: counted(restarts=1, failed=4, rejected=2)})
    now = counted(restarts=1, failed=4, rejected=2)
    assert troubles.recent(KEY, 104, now) == now
    assert troubles.recent(KEY, 305, now) == counted(failed=4, rejected=2)
    assert troubles.recent(KEY, 400, now) == NONE
    troubles.add(400, {KEY: now})
    assert troubles._changes == {}


def test_a_version_that_is_loaded_later_or_again_counts_from_zero():
    troubles = RecentTroubles(300)
    troubles.add(0, {})
    troubles.add(5, {KEY: counted(failed=3)})
    assert troubles.recent(KEY, 6, counted(failed=3)) == counted(failed=3)
    troubles.add(10, {KEY: counted(failed=1)})
    assert troubles.recent(KEY, 11, counted(failed=1)) == counted(failed=4)
    assert troubles.recent(("", "m", "2"), 11, counted(restarts=1)) == counted(restarts=1)


def test_failures_are_those_that_clients_did_not_cause():
    statistics = replace(
        sample_statistics("m"),
        fail=Duration(9, 1),
        error_responses=2,
        failures={"CANCELED": 4, "BACKEND": 5},
        refusals={"invalid": 3, "queue_full": 2, "fatal": 1},
    )
    instances = [sample_instance("m", restarts={"exit 1": 2, "SIGKILL": 1}), sample_instance("m", "m_1")]
    assert read_troubles([statistics], instances) == {KEY: counted(restarts=3, failed=7, rejected=3)}


def test_each_condition_of_a_model_has_its_place_in_the_order_of_the_list() -> None:
    script = Path(naiad.__file__).parent / "frontends" / "console" / "js" / "models.js"
    (order,) = re.findall(r"^const ORDER = (\[.*\]);$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert {condition.value for condition in ModelCondition} <= set(json.loads(order))
