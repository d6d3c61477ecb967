"""What a guest asks and tells its host, over a real socket, under any interpreter: `python queries_check.py STUBS`."""

import contextlib
import gc
import math
import socket
import sys
import threading

sys.path.insert(0, sys.argv[1])

from naiad_stub import control, runtime, wire
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exceptions import TritonModelException
from naiad_stub.host_metrics import HostMetrics
from naiad_stub.messages import FROM_GUEST, READINESS_REPLIES, Notification, ReadinessQuery, Reply, pack, unpack
from naiad_stub.metrics import MetricFamily, MetricKind
from naiad_stub.queries import ServerQueries

PREFIX = "Failed to process the request for model 'm_0_0', message: "


MADE = []
"""All hosts, to be closed."""


class Host(threading.Thread):
    """Answers questions with what *answers* says (an exception's text is an error) and notes everything."""

    def __init__(self, answers):
        super().__init__(daemon=True)
        MADE.append(self)
        self.metrics = None
        self.socket, self.guest = socket.socketpair()
        self.channel = Channel(self.guest)
        self.queries = ServerQueries(self.channel, "m_0_0")
        self.answers = answers
        self.asked = []
        self.told = []
        self.changed = threading.Condition()
        self.start()

    def run(self):
        reader = wire.FrameReader()
        while True:
            data = self.socket.recv(65536)
            if not data:
                return
            for kind, payload in reader.feed(data):
                with self.changed:
                    self.take(unpack(FROM_GUEST, kind, payload))
                    self.changed.notify_all()

    def install_metrics(self):
        """Have models keep their metrics here."""
        self.metrics = HostMetrics(self.queries)
        runtime.install(runtime.Runtime(metrics=self.metrics))

    def close(self):
        """End the connection, and all threads that wait for something of it."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join(60)
        self.socket.close()
        with contextlib.suppress(HostGoneError):
            self.channel.poll()
        if self.metrics is not None:
            with contextlib.suppress(RuntimeError):
                self.metrics._wake.release()
        self.guest.close()

    def take(self, message):
        if isinstance(message, Notification):
            self.told.append((message.subject, message.fields))
            return
        self.asked.append((message.subject, message.fields))
        answer = self.answers(message.subject, message.fields)
        self.socket.sendall(pack(Reply(message.number, not isinstance(answer, Exception), 1, str(answer))))

    def wait_told(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.told) >= count, 60), self.told
            return [fields for _, fields in self.told]


def error_of(function, kind=TritonModelException):
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError("it did not fail")


def answer_metrics(what, fields):
    if fields.get("name") == "taken":
        return ValueError("Family name already exists with different type")
    return {"metric.new": fields.get("buckets", ""), "metric.value": "2.5"}.get(what, "")


def check_changes_travel_merged_and_in_order():
    host = Host(answer_metrics)
    host.install_metrics()
    family = MetricFamily("f", "what it is", MetricFamily.COUNTER)
    assert host.asked[-1] == (
        "metric.family",
        {"family": "1", "name": "f", "description": "what it is", "kind": "counter"},
    )
    counter = family.Metric({"b": "1", "a": '\u00e9"\n'})
    again = family.Metric({"a": '\u00e9"\n', "b": "1"})
    assert [what for what, _ in host.asked] == ["metric.family", "metric.new"]  # the second one is known
    gauge = MetricFamily("g", "", MetricFamily.GAUGE).Metric
    kept = gauge.__self__
    gauge = gauge()
    histogram_family = MetricFamily("h", "", MetricFamily.HISTOGRAM)
    histogram = histogram_family.Metric(buckets=[1, 2.5, math.inf])
    assert host.asked[-1][1]["buckets"] == "1.0 2.5"
    told = len(host.told)
    for value in (1, 0.5, True):
        counter.increment(value)
    again.increment(4)
    gauge.increment(3)
    gauge.set(7)
    gauge.increment(-2)
    for value in (0, 1, 1.5, 3):
        histogram.observe(value)
    histogram.observe_counts(10.5, [1, 0, 3])
    wrong = error_of(lambda: histogram.observe_counts(1.0, [1]))
    assert wrong == "Failed to observe metric value: 1 counts for 3 buckets", wrong
    assert counter.value() == 2.5  # a question takes changes along, ahead of it
    changes = {}
    for fields in host.wait_told(told + 1)[told:]:
        changes.update(fields)
    assert changes == {"add 2": "6.5", "add 4": "3.0", "set 4": "5.0", "observe 6": "16.0 3 1 4"}, changes
    told = len(host.told)
    counter.increment(1)
    assert host.wait_told(told + 1)[-1] == {"add 2": "1.0"}  # where no message comes, a thread sends it
    return [family, kept, histogram_family, counter, host]


def check_a_deleted_family_takes_its_metrics_along(made):
    counter, host = made[3:]
    made.clear()  # the caller has it, too
    gc.collect()
    with host.changed:
        assert host.changed.wait_for(lambda: "drop 1" in {key for _, fields in host.told for key in fields}, 60)
    text = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
    assert error_of(counter.value).startswith("Failed to get metric value: " + text)
    assert error_of(lambda: counter.increment(1)).startswith("Failed to increment metric value: " + text)


def check_rules_of_metrics():
    host = Host(answer_metrics)
    host.install_metrics()
    kinds = {kind: MetricFamily(kind.name, "", kind) for kind in MetricKind}
    counter = kinds[MetricKind.COUNTER].Metric()
    gauge = kinds[MetricKind.GAUGE].Metric({})
    histogram = kinds[MetricKind.HISTOGRAM].Metric(None, [])
    for what, function in (("increment", "Increment"), ("set", "Set"), ("observe", "Observe"), ("get", "Value")):
        for metric, allowed in ((counter, "increment get"), (gauge, "increment set get"), (histogram, "observe")):
            name = metric._family.kind.name
            method = getattr(metric, "value" if what == "get" else what)
            arguments = () if what == "get" else (1,)
            if what in allowed:
                method(*arguments)
            else:
                expected = f"Failed to {what} metric value: {PREFIX}TRITONSERVER_METRIC_KIND_{name} does not support "
                assert error_of(lambda method=method, a=arguments: method(*a)) == expected + function
    text = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
    assert error_of(lambda: counter.increment(-1)) == f"Failed to increment metric value: {PREFIX}{text}"
    for value in ("1", None, [], b"1"):
        assert "takes a number" in error_of(lambda value=value: counter.increment(value), TypeError)
    new = "Error when creating Metric: " + PREFIX
    cases = [
        (MetricKind.COUNTER, {"labels": [1]}, "Failed to create metric. Labels must be a dictionary."),
        (MetricKind.COUNTER, {"labels": {"a": 1}}, new + "attempt to access JSON non-string as string"),
        (MetricKind.COUNTER, {"labels": {"a": None}}, new + "attempt to access JSON non-string as string"),
        (MetricKind.COUNTER, {"labels": {"0a": "x"}}, new + "Invalid label name"),
        (MetricKind.COUNTER, {"labels": {"a-b": "x"}}, new + "Invalid label name"),
        (MetricKind.COUNTER, {"labels": {"__a": "x"}}, new + "Invalid label name"),
        (MetricKind.COUNTER, {"labels": {"a\n": "x"}}, new + "Invalid label name"),
        (MetricKind.HISTOGRAM, {"labels": {"le": "x"}, "buckets": [1]}, new + "Invalid label name"),
        (MetricKind.COUNTER, {"buckets": []}, "Failed to create metric. Unexpected buckets found."),
        (MetricKind.GAUGE, {"buckets": [1]}, "Failed to create metric. Unexpected buckets found."),
        (MetricKind.HISTOGRAM, {}, "Failed to create metric. Missing required buckets."),
        (MetricKind.HISTOGRAM, {"buckets": (1, 2)}, "Failed to create metric. Buckets must be a list."),
        (MetricKind.HISTOGRAM, {"buckets": [2, 1]}, new + "Bucket Boundaries must be strictly sorted"),
        (MetricKind.HISTOGRAM, {"buckets": [1, 1]}, new + "Bucket Boundaries must be strictly sorted"),
        (MetricKind.HISTOGRAM, {"buckets": [math.nan]}, new + "Bucket Boundaries must be strictly sorted"),
    ]
    for kind, arguments, message in cases:
        text = error_of(lambda kind=kind, arguments=arguments: kinds[kind].Metric(**arguments))
        assert text == message, (kind, arguments, text)
    prefix = "Error when creating MetricFamily: " + PREFIX
    for name in ("", "0a", "a b", "a\n"):
        assert error_of(lambda name=name: MetricFamily(name, "", MetricKind.GAUGE)) == prefix + "Invalid metric name"
    text = error_of(lambda: MetricFamily("taken", "", MetricKind.GAUGE))
    assert text == prefix + "Family name already exists with different type"


def check_control():
    host = Host(
        lambda what, fields: ValueError("no") if fields["name"] == "bad" else {"model.ready": "1"}.get(what, "")
    )
    runtime.install(runtime.Runtime(control=control.HostControl(host.queries)))
    everything = bytes(range(256))
    control.load_model("a", "{}", {"file:1/x": everything})
    what, fields = host.asked[-1]
    assert what == "model.load"
    assert fields["file file:1/x"].encode("utf-8", "surrogateescape") == everything
    assert control.is_model_ready("a", "1") is True
    assert host.asked[-1] == ("model.ready", {"name": "a", "version": "1"})
    control.unload_model("a", True)
    assert host.asked[-1] == ("model.unload", {"name": "a", "dependents": "1"})
    assert error_of(lambda: control.load_model("bad")) == f"Failed to load model: {PREFIX}no"
    assert error_of(lambda: control.unload_model("bad")) == f"Failed to unload model: {PREFIX}no"
    assert error_of(lambda: control.is_model_ready("bad")) == f"Failed to check model readiness: {PREFIX}no"
    for wrong in (
        lambda: control.load_model(1),
        lambda: control.load_model("a", 1),
        lambda: control.load_model("a", "{}", {1: b""}),
        lambda: control.load_model("a", "{}", {"file:1/x": "text"}),
        lambda: control.unload_model("a", "x"),
        lambda: control.is_model_ready("a", 1),
    ):
        assert " takes " in error_of(wrong, TypeError)


def check_many_threads_ask_at_once():
    host = Host(lambda what, fields: fields["n"])
    answers = {}

    def ask(n):
        answers[n] = [host.queries.send("echo", {"n": f"{n}-{i}"}) for i in range(20)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {n: [f"{n}-{i}" for i in range(20)] for n in range(8)}


def check_readiness():
    from naiad_stub.readiness import ReadinessThread

    async def ready_later():
        return True

    def fails():
        raise RuntimeError("not now")

    host_end, guest_end = socket.socketpair()
    answers = iter([lambda: True, lambda: False, ready_later, lambda: 1, fails])

    def is_ready():
        return next(answers)()

    guest_end.settimeout(0.001)  # as where a model has called `socket.setdefaulttimeout`
    thread = ReadinessThread(guest_end, is_ready, lambda: None)
    assert guest_end.gettimeout() is None
    thread.start()
    reader = wire.FrameReader()
    host_end.settimeout(60)
    for number, (is_ready, text) in enumerate(
        [
            (True, ""),
            (False, ""),
            (True, ""),
            (False, "is_ready() must return a boolean value"),
            (False, "RuntimeError: not now"),
        ]
    ):
        host_end.sendall(pack(ReadinessQuery(number)))
        frames = []
        while not frames:
            frames = reader.feed(host_end.recv(4096))
        ((kind, payload),) = frames
        reply = unpack(READINESS_REPLIES, kind, payload)
        assert (reply.number, reply.is_ready) == (number, is_ready)
        assert reply.problem.startswith(text), reply.problem
        assert bool(reply.problem) == bool(text)
    host_end.close()
    guest_end.close()


def check_all():
    """Everything; the runtime is as before afterwards."""
    before = runtime.current()
    check_a_deleted_family_takes_its_metrics_along(check_changes_travel_merged_and_in_order())
    check_rules_of_metrics()
    check_control()
    check_many_threads_ask_at_once()
    check_readiness()
    close_all(before)


def close_all(before):
    """End everything that the checks have begun; the runtime is *before* again."""
    while MADE:
        MADE.pop().close()
    while runtime.current() is not before:
        runtime.uninstall(runtime.current())


if __name__ == "__main__":
    check_all()
    print("ok")
