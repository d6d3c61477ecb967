"""Counts of the same version in several processes, as one."""

from __future__ import annotations

import pickle

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.config.server.metrics_options import MetricsConfig
from naiad.core.errors import InvalidRequestError
from naiad.engine.statistics.counters import FailureReason, Statistics


def counted(count: int, *, batch: int = 1) -> Statistics:
    """What one process has counted of *count* requests."""
    config = freeze(pb.ModelConfig(name="m"))
    made = Statistics({"tag": "value"})
    made.measure(MetricsConfig(summaries=True, histograms=True), config)
    made.count_latencies(config)
    for number in range(1, count + 1):
        made.on_success(batch, 0, 1_000, 2_000, 3_000, 4_000)
        made.on_execution(batch, 1_000, 2_000, 3_000, 4_000)
        made.last = number
    made.on_failure(5, FailureReason.CANCELED)
    made.on_refusal(InvalidRequestError("no"))
    return made


def test_all_counts_of_all_processes_are_in_the_sum() -> None:
    own, other = counted(2), counted(3, batch=4)

    value = own.with_counts_of([pickle.loads(pickle.dumps(other)), counted(1)]).value("m", "1")

    assert value.inference_count == 2 + 3 * 4 + 1
    assert (value.execution_count, value.success.count, value.success.ns) == (6, 6, 24_000)
    assert [(each.batch_size, each.compute_infer.count) for each in value.batch_stats] == [(1, 3), (4, 3)]
    assert (value.fail.count, value.failures["CANCELED"], value.refusals["invalid"]) == (3, 3, 3)
    assert value.summaries["request"].count == 6
    assert value.first_responses is not None
    assert sum(value.first_responses.counts) == 6
    assert value.latencies == {4: 6}
    assert value.tags == {"tag": "value"}


def test_a_sum_leaves_what_it_is_made_of_as_it_is() -> None:
    own, other = counted(2), counted(3)

    for _ in range(2):
        assert own.with_counts_of([other]).value("m", "1").success.count == 5
    assert own.value("m", "1").success.count == 2
    assert other.value("m", "1").success.count == 3
