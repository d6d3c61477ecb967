"""What is kept of the single responses of decoupled models."""

from __future__ import annotations

from naiad.engine.statistics.response_times import ResponseProgress, ResponseTimes
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import Duration

RESPONSE = InferResponse("m", 1, outputs=[OutputTensor("OUT", Datatype.INT8, (1,), b"\0")])


def test_durations_are_those_since_the_response_before():
    times, progress = ResponseTimes(), ResponseProgress(100)
    times.on_response(progress, RESPONSE, 110, 113)
    times.on_response(progress, RESPONSE, 150, 151)
    (_, first), (position, second) = times
    assert position == 1
    assert (first.compute_infer, first.compute_output, first.success) == (
        Duration(1, 10),
        Duration(1, 3),
        Duration(1, 13),
    )
    assert (second.compute_infer, second.success, second.fail) == (Duration(1, 40), Duration(1, 41), Duration())


def test_a_response_without_outputs_is_counted_as_empty_and_an_end_after_responses_is_not_counted():
    times, progress = ResponseTimes(), ResponseProgress(0)
    times.on_response(progress, InferResponse("m", 1), 5, 6)
    times.on_end(progress, 9, is_cancelled=False)
    [(_, only)] = times
    assert (only.empty_response, only.compute_infer, only.compute_output) == (
        Duration(1, 5),
        Duration(1, 5),
        Duration(),
    )


def test_a_stream_of_a_million_does_not_make_statistics_of_a_million_lines():
    times, progress = ResponseTimes(), ResponseProgress(0)
    for number in range(3000):
        times.on_response(progress, RESPONSE, number, number)
    times.on_end(progress, 3000, is_cancelled=True)
    assert len(list(times)) == 1024
