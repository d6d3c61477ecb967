"""The registry of models' metrics, told what guests tell."""

from __future__ import annotations

import pytest

from naiad.core.errors import InvalidRequestError, ProtocolError
from naiad.engine.calls.model_control import version_number
from naiad.engine.calls.services import ModelServices
from naiad.engine.registry import Registry
from naiad.engine.statistics.custom_metrics import ModelMetrics
from naiad.frontends.metrics.families import render
from naiad.frontends.metrics.triton_families import custom_families


class Guest:
    """Stands for a worker: notes replies."""

    def __init__(self, services: ModelServices) -> None:
        self.services = services
        self.replies: list[tuple[str, str]] = []

    def reply(self, number, *, error=None, text=""):
        self.replies.append(("error", error.message) if error is not None else ("ok", text))

    def ask(self, what, **fields):
        self.services.on_query(self, 1, what, fields)
        return self.replies[-1]

    def tell(self, fields):
        self.services.on_notification(self, "metrics", fields)

    def make(self, number, name, kind="counter", labels="{}", **fields):
        assert self.ask("metric.family", family=number, name=name, description=name.upper(), kind=kind) == ("ok", "")
        return self.ask("metric.new", family=number, metric=f"{number}0", labels=labels, **fields)


@pytest.fixture
def services():
    return ModelServices(Registry())


@pytest.fixture
def metrics(services):
    return ModelMetrics(services)


def page(metrics):
    return render(custom_families(metrics)).decode()


def test_guests_share_metrics_and_take_only_their_own_along(services, metrics):
    one, two = Guest(services), Guest(services)
    for guest in (one, two):
        assert guest.make("1", "common") == ("ok", "")
        guest.tell({"add 10": "1.5"})
    one.make("2", "own", "gauge", '{"b": "2", "a": "1"}')
    one.tell({"set 20": "4", "add 20": "-1"})
    assert page(metrics) == (
        '# HELP common COMMON\n# TYPE common counter\ncommon 3\n# HELP own OWN\n# TYPE own gauge\nown{a="1",b="2"} 3\n'
    )
    services.on_worker_exit(one)
    assert page(metrics) == "# HELP common COMMON\n# TYPE common counter\ncommon 3\n"
    assert two.ask("metric.value", metric="10") == ("ok", "3.0")
    two.tell({"drop 1": ""})
    assert list(metrics) == []
    services.on_worker_exit(two)


def test_a_second_guest_gets_the_buckets_of_the_first(services, metrics):
    one, two = Guest(services), Guest(services)
    assert one.make("1", "h", "histogram", buckets="1.0 2.5") == ("ok", "1.0 2.5")
    assert two.make("1", "h", "histogram", buckets="7.0") == ("ok", "1.0 2.5")
    two.tell({"observe 10": "4.5 1 0 2"})
    assert page(metrics).splitlines()[2:] == [
        "h_count 3",
        "h_sum 4.5",
        'h_bucket{le="1"} 1',
        'h_bucket{le="2.5"} 1',
        'h_bucket{le="+Inf"} 3',
    ]


def test_messages_for_a_dropped_family_are_ignored(services, metrics):
    guest = Guest(services)
    guest.make("1", "f")
    guest.tell({"drop 1": ""})
    guest.tell({"add 10": "1.0", "drop 1": ""})
    assert guest.ask("metric.value", metric="10") == ("error", "the metric does not exist any more")
    answer = guest.ask("metric.new", family="1", metric="2", labels="{}")
    assert answer == ("error", "the metric's family does not exist any more")
    assert list(metrics) == []


def test_the_kind_of_a_family_is_fixed_until_its_last_reference_is_dropped(services, metrics):
    guest = Guest(services)
    guest.make("1", "f")
    again = {"family": "2", "name": "f", "description": "", "kind": "gauge"}
    assert guest.ask("metric.family", **again) == ("error", "Family name already exists with different type")
    guest.tell({"drop 1": ""})
    assert guest.ask("metric.family", **again) == ("ok", "")


@pytest.mark.parametrize(
    "fields",
    [
        {"add 10": "x"},
        {"add 10": ""},
        {"set 10": "1 2"},
        {"observe 10": "1 1"},
        {"multiply 10": "1"},
    ],
)
def test_a_malformed_message_breaks_the_protocol(services, metrics, fields):
    guest = Guest(services)
    guest.make("1", "f")
    with pytest.raises(ProtocolError, match="metric"):
        guest.tell(fields)


@pytest.mark.parametrize("labels", ["", "[1]", '{"a": 1}', "{"])
def test_invalid_labels_are_refused(services, metrics, labels):
    guest = Guest(services)
    answer = guest.make("1", "f", labels=labels)
    assert answer[0] == "error"
    assert "cannot read a metric's labels" in answer[1]


@pytest.mark.parametrize(("text", "number"), [("", -1), ("1", 1), (" 7", 7), ("+2x", 2), ("0", 0)])
def test_versions_are_read_as_the_reference_reads_them(text, number):
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["x", "-1", "9223372036854775808", " "])
def test_texts_that_are_not_versions_are_refused(text):
    with pytest.raises(InvalidRequestError, match=f"from specified version string '{text}'"):
        version_number(text)
