"""What the cache counts as its size is what it takes of memory, about."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from naiad.config.model.model_config import ModelConfig
from naiad.engine import response_cache
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor

CAPACITY = 1 << 20


def fill(answers: CachedResponses, count: int, names: list[str], width: int) -> None:
    """Pass so many requests by, as a model would answer them."""
    for number in range(count):
        tensor = InputTensor("IN", Datatype.INT64, (1,), number.to_bytes(8, "little"))
        sink = answers.respond(InferRequest("m", 1, [tensor]), Nobody())
        assert sink is not None
        outputs = [OutputTensor(name, Datatype.UINT8, (width,), bytearray(width)) for name in names]
        sink.send(InferResponse("m", 1, "", outputs), True)


class Nobody:
    def send(self, response: InferResponse | None, final: bool) -> None:
        pass


@pytest.mark.parametrize(("outputs", "width"), [(1, 4), (1, 4096), (4, 16)])
def test_a_cache_takes_about_the_memory_that_it_was_given(outputs, width):
    names = [f"OUT{number}" for number in range(outputs)]
    capacity = CAPACITY // 4
    cache = ResponseCache(capacity)
    answers = CachedResponses(cache, ModelConfig(name="m"), 1, 1, Statistics())
    gc.collect()
    tracemalloc.start()
    try:
        fill(answers, 3 * capacity // (512 + outputs * (160 + width)), names, width)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    told = cache.statistics()
    assert told.evictions > told.entries
    assert 0.9 * capacity < told.used_byte_size <= capacity
    assert 0.5 * capacity < taken < 1.5 * capacity


def test_long_requests_and_responses_are_not_cached(monkeypatch, caplog):
    """A digest or a copy of them would hold up all other requests."""
    monkeypatch.setattr(response_cache, "_MAX_CACHED", 1000)
    cache = ResponseCache(CAPACITY)
    answers = CachedResponses(cache, ModelConfig(name="m"), 1, 1, Statistics())
    for size, width in ((1000, 1000), (1001, 1), (1, 1001)):
        for _ in range(2):
            sink = Nobody()
            passed = answers.respond(InferRequest("m", 1, [InputTensor("IN", Datatype.UINT8, (1,), bytes(size))]), sink)
            if passed is not None:
                assert (passed is sink) == (size > 1000)
                passed.send(InferResponse("m", 1, "", [OutputTensor("OUT", Datatype.UINT8, (1,), bytes(width))]), True)
    told = cache.statistics()
    assert (told.entries, told.hits, told.misses) == (1, 1, 3)
    assert caplog.text.count("cannot cache a response of model 'm': its inputs exceed") == 1


def test_forgetting_a_version_leaves_the_others():
    cache = ResponseCache(CAPACITY)
    for number in (1, 2):
        fill(CachedResponses(cache, ModelConfig(name="m"), 1, number, Statistics()), 3, ["OUT"], 1)
    cache.forget(1)
    assert cache.statistics().entries == 3
    assert repr(cache) == "<ResponseCache <ByteLru 3 values, 2019 of 1048576 bytes> hits=0 misses=6>"
