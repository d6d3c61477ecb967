"""Loads without a server: the closed loop, percentiles, plots, and generated requests."""

from __future__ import annotations

import asyncio
from array import array

import numpy as np
import pytest
from fakes.clock import Clock

from naiad.core.errors import ConfigError, NaiadError, OptionError
from naiad_operations.bench.load import LoadResult, percentile, run_load, run_paced_load
from naiad_operations.bench.report import as_csv, as_json, header, row
from naiad_operations.bench.requests import flat_json, generated_request, model_of_config, parse_shapes

CONFIG = {
    "name": "m",
    "max_batch_size": 4,
    "backend": "python",
    "input": [
        {"name": "IMAGE", "data_type": "TYPE_FP32", "dims": [3, -1]},
        {"name": "TEXT", "data_type": "TYPE_STRING", "dims": ["1"]},  # as gRPC's JSON spells 64-bit numbers
        {"name": "ID", "data_type": "TYPE_INT8", "dims": [2], "optional": True},
        {"name": "MASK", "data_type": "TYPE_BOOL", "dims": [4]},
    ],
}


class Counting:
    """A target that counts requests in flight; some fail, some are never answered."""

    def __init__(self, *, fails=(), hangs=()):
        self.fails, self.hangs = fails, hangs
        self.workers = 0
        self.sent = 0
        self.in_flight = self.most = 0

    async def open(self, workers):
        self.workers = workers

    async def send(self, worker):
        self.sent += 1
        number = self.sent
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if number in self.hangs:
                await asyncio.Event().wait()
            await asyncio.sleep(0.001)
        finally:
            self.in_flight -= 1
        if number in self.fails:
            raise NaiadError(f"no luck {number}")
        return 1_000_000


@pytest.fixture
def clock(monkeypatch):
    return Clock().install(monkeypatch)


@pytest.fixture
def load(clock):
    return lambda target, timeout=5.0: clock.run(run_load(target, 3, 0.05, timeout=timeout))


@pytest.fixture
def paced(clock):
    """Forty requests within 0.2 s."""
    return lambda target, timeout=5.0, **more: clock.run(run_paced_load(target, 200, 0.2, timeout=timeout, **more))


def test_as_many_requests_are_in_flight_as_there_are_workers(load):
    target = Counting()
    result = load(target)
    assert (target.workers, target.most, target.in_flight, target.sent) == (3, 3, 0, 150)
    assert (list(result.latencies_ms), result.errors) == ([1.0] * 150, 0)
    assert (result.seconds, result.requests_per_second) == (0.05, 3000)
    assert set(result.first_ms) == {1.0}


def test_requests_of_a_rate_are_sent_whether_or_not_earlier_ones_have_responses(paced):
    class Slow(Counting):
        async def send(self, worker):
            self.sent += 1
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            while self.sent < 40:  # until the last one was sent
                await asyncio.sleep(0.001)
            self.in_flight -= 1
            return 0

    target = Slow()
    result = paced(target)
    assert (target.sent, target.most, result.concurrency, target.workers) == (40, 40, 40, 40)
    assert (len(result.latencies_ms), result.errors, result.rate) == (40, 0, 200)
    assert max(result.latencies_ms) == pytest.approx(195, abs=2), "the first one waited for the last"
    assert result.seconds == 0.2


def test_latencies_of_a_rate_begin_when_requests_were_due(paced, clock):
    class Stopping(Counting):
        async def send(self, worker):
            self.sent += 1
            if self.sent == 1:
                clock.advance(0.1)  # the load generator itself is late
            return 0

    latencies = list(paced(Stopping()).latencies_ms)
    assert latencies[:20] == pytest.approx([100 - 5 * number for number in range(20)])
    assert latencies[20:] == pytest.approx([0] * 20, abs=0.001)


def test_requests_beyond_the_bound_are_not_sent_and_are_errors(paced):
    target = Counting(hangs=range(1, 100))
    result = paced(target, most=3, timeout=0.05)
    assert target.sent == 3
    assert result.errors == 40
    assert result.first_error == "not sent: 3 requests were in flight"


def test_failures_of_a_rate_are_counted_and_its_first_responses_measured(paced):
    result = paced(Counting(fails=(2,)))
    assert (result.errors, result.first_error, len(result.latencies_ms)) == (1, "no luck 2", 39)
    assert set(result.first_ms) == {1.0}


def test_tables_and_files_say_which_rate_was_sent():
    result = LoadResult(concurrency=7, rate=1500.0, seconds=1.0)
    assert header(is_paced=True).split()[0] == "sent/s"
    assert row(result).split()[0] == "1,500"
    lines = as_csv([{"model": "m", **as_json(result)}]).splitlines()
    values = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (values["model"], values["rate"], values["concurrency"], values["p95_ms"]) == ("m", "1500.0", "7", "")


def test_inputs_of_a_stream_are_flat_lists_of_elements():
    request, _ = generated_request(model_of_config(CONFIG, ""), 2, {})
    flat = flat_json(request)
    assert {name: len(values) for name, values in flat.items()} == {"IMAGE": 6, "TEXT": 2, "MASK": 8}
    assert set(map(type, flat["IMAGE"] + flat["TEXT"] + flat["MASK"])) == {float, str, bool}
    half = {**CONFIG, "input": [{"name": "HALF", "data_type": "TYPE_FP16", "dims": [1]}]}
    with pytest.raises(OptionError, match="cannot send input 'HALF' over HTTP: JSON has no form of FP16"):
        flat_json(generated_request(model_of_config(half, ""), 1, {})[0])


def test_failed_requests_are_counted_with_their_first_message(load):
    target = Counting(fails=(2, 3))
    result = load(target)
    assert (result.errors, result.first_error) == (2, "no luck 2")
    assert len(result.latencies_ms) == target.sent - 2


def test_requests_without_a_response_end_the_load_and_are_errors(load):
    result = load(Counting(hangs=(1,)), timeout=0.05)
    assert (result.errors, result.first_error) == (1, "no response within 0.05 s")
    assert len(result.latencies_ms) == 100, "of the other workers"


def test_a_mistake_in_the_target_is_not_counted_but_raised(load):
    class Broken(Counting):
        async def send(self, worker):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load(Broken())


def test_a_percentile_is_a_value_that_was_measured():
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 50) == 7.0
    assert percentile([], 50) is None


def result_of(values, **fields):
    return LoadResult(concurrency=4, seconds=2.0, latencies_ms=array("d", values), **fields)


def test_figures_are_printed_below_their_headings():
    text = row(result_of([float(number) for number in range(1, 1001)], errors=3))
    assert text.split() == ["4", "500", "500", "900", "950", "990", "1,000", "3"]
    assert len(text) == len(header(is_paced=False))
    assert row(result_of([])).split() == ["4", "0.0", "-", "-", "-", "-", "-", "0"]
    assert as_json(result_of([2.0, 4.0]))["mean_ms"] == 3.0
    assert as_json(result_of([]))["p99_ms"] is None


def test_generated_inputs_have_the_shapes_and_types_of_the_configuration():
    model = model_of_config(CONFIG, "3")
    request, notes = generated_request(model, 2, {})
    assert [(each.name, each.datatype.name, each.shape) for each in request.inputs] == [
        ("IMAGE", "FP32", (2, 3, 1)),
        ("TEXT", "BYTES", (2, 1)),
        ("MASK", "BOOL", (2, 4)),
    ]
    image = np.frombuffer(request.inputs[0].data, "<f4")
    assert ((image >= 0) & (image < 1)).all()
    assert notes == ["input 'IMAGE' has the shape [3, -1], sent [3, 1]; --shape=IMAGE:3,1 sends another"]
    assert generated_request(model, 2, {})[0].inputs == request.inputs


def test_a_shape_that_was_given_is_sent_and_makes_an_optional_input_one_of_the_request():
    model = model_of_config(CONFIG, "")
    request, notes = generated_request(model, 1, parse_shapes(["IMAGE:3,8", "ID:2"]))
    assert {each.name: each.shape for each in request.inputs}["IMAGE"] == (1, 3, 8)
    assert "ID" in {each.name for each in request.inputs}
    assert notes == []


@pytest.mark.parametrize(
    ("batch", "shapes", "text"),
    [
        (5, [], "--batch=5: too large for model 'm': its max_batch_size is 4"),
        (1, ["NO:1"], "--shape: model 'm' has no input 'NO'; its inputs are: IMAGE, TEXT, ID, MASK"),
        (1, ["IMAGE:4,8"], "--shape=IMAGE:4,8: does not fit input 'IMAGE', whose shape is [3, -1]"),
        (1, ["IMAGE:3"], "--shape=IMAGE:3: does not fit input 'IMAGE', whose shape is [3, -1]"),
        (1, ["IMAGE"], "--shape=IMAGE: not of the form NAME:DIM,DIM,..., such as IMAGE:3,224,224"),
    ],
)
def test_an_input_that_cannot_be_generated_is_named(batch, shapes, text):
    with pytest.raises(OptionError) as caught:
        generated_request(model_of_config(CONFIG, ""), batch, parse_shapes(shapes))
    assert caught.value.message == text


def test_an_unknown_datatype_is_told():
    config = {"name": "m", "input": [{"name": "X", "data_type": "TYPE_INT4", "dims": [1]}]}
    with pytest.raises(ConfigError, match="cannot generate input 'X': its datatype TYPE_INT4 is unknown"):
        model_of_config(config, "")
