"""The samples of the last hour: rates, quantiles and processes; and the ring that keeps them."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace

import pytest
from fakes.engine import sample_instance, sample_statistics

from naiad.frontends.console.history import History
from naiad.frontends.console.sampler import ProcessUse, Sampler, read_processes
from naiad.protocol.metadata import Duration
from naiad.protocol.model_metrics import MetricKind, ModelMetric, ModelMetricFamily


class Counted:
    """An engine whose counters a test sets."""

    def __init__(self):
        self.models = {}

    def count(self, name, success, latencies=(), **fields):
        counted = replace(
            sample_statistics(name),
            success=Duration(success, 0),
            fail=Duration(0, 0),
            error_responses=0,
            pending_count=2,
        )
        self.models[name] = replace(counted, latencies=Counter(latencies), **fields)

    def statistics(self):
        return list(self.models.values())

    def instances(self):
        return [sample_instance(name) for name in self.models]


@pytest.fixture
def engine():
    return Counted()


@pytest.fixture
def sampler(engine, monkeypatch):
    engine.count("m", 100, [50_000] * 9)
    tokens = ModelMetric((("model", "m"), ("version", "1")), 1000.0)
    family = ModelMetricFamily("vllm:generation_tokens_total", "", MetricKind.COUNTER, {tokens.labels: tokens})
    made = Sampler(engine, [family], History(4), lambda: {os.getpid(): "server"})
    made.tokens = tokens
    now = [made._last]
    monkeypatch.setattr("naiad.frontends.console.sampler.time.monotonic", lambda: now[0])
    made.clock = now
    return made


def sample(sampler, **processes):
    sampler.clock[0] += 5
    sampler.sample({7: ProcessUse(1 << 20, 1.0), **processes})
    return sampler._history.latest


def test_a_sample_has_rates_and_quantiles_of_the_time_since_the_last(sampler, engine):
    engine.count("m", 150, [50_000] * 9 + [1_000] * 45 + [9_000] * 5, running_count=3)
    sampler.tokens.value += 500
    figures = sample(sampler)["m"]
    assert (figures["requests"], figures["tokens"]) == (10, 100)
    assert (figures["p50"], figures["p95"]) == (1, 9)
    assert (figures["waiting"], figures["running"]) == (2, 3)
    assert figures["memory"] == 1 << 20


def test_failures_are_failed_and_rejected_requests_and_errors_of_the_model(sampler, engine):
    engine.count("m", 150, error_responses=20, refusals={"queue_full": 25, "invalid": 100})
    figures = sample(sampler)["m"]
    assert (figures["requests"], figures["failures"]) == (6, 9)


def test_an_idle_model_has_no_latency(sampler):
    figures = sample(sampler)["m"]
    assert figures["requests"] == 0
    assert math.isnan(figures["p50"])


def test_the_server_has_the_sum_of_its_models(sampler, engine):
    engine.count("m", 110, [50_000] * 9 + [1_000] * 10)
    engine.count("n", 10, [3_000] * 10)
    whole = sample(sampler)[""]
    assert whole["requests"] == 4
    assert (whole["p50"], whole["p95"]) == (1, 3)


def test_a_model_that_was_loaded_again_counts_from_zero(sampler, engine):
    engine.count("m", 5, [1_000] * 5)
    assert sample(sampler)["m"]["requests"] == 1


def test_processor_time_is_of_the_time_since_the_last_sample(sampler):
    sample(sampler)
    sampler.clock[0] += 5
    sampler.sample({7: ProcessUse(1 << 20, 3.5)})
    assert sampler.cpu == {7: 0.5}


def test_processes_are_read_and_those_that_ended_left_out():
    found = read_processes([os.getpid(), 2**22 + 1])
    assert list(found) == [os.getpid()]
    assert found[os.getpid()].memory > 1 << 20


def test_a_ring_keeps_the_last_samples_and_drops_unloaded_models():
    history = History(3)
    for time in range(5):
        history.add(time, {"": {"requests": time}, **({"gone": {"requests": 1}} if time == 0 else {})})
    assert history.document("")["time"] == [2, 3, 4]
    assert history.document("")["figures"] == {"requests": [2, 3, 4]}
    assert history.document("", after=3)["time"] == [4]
    assert history.document("gone")["figures"] == {}


def test_a_ring_begins_with_the_first_value():
    history = History(3)
    history.add(1, {"": {"p50": math.nan, "requests": 0}})
    history.add(2, {"": {"p50": 7, "requests": 0}})
    figures = history.document("")["figures"]
    assert list(figures) == ["p50"]
    assert math.isnan(figures["p50"][0])
    assert figures["p50"][1] == 7
