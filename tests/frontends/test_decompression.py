"""Decompression in steps, on threads, with limits."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import zlib

import pytest

from naiad.core.errors import InvalidRequestError
from naiad.frontends.decompression import STEP_SIZE, Decompression, DecompressionThreads
from naiad.frontends.http1.compression import Compression

MIB = 1 << 20


def run_all(decompression: Decompression) -> bytearray:
    while not decompression.is_complete:
        decompression.step()
    return decompression.result


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [0, 1, 70_000, 5 * MIB])
def test_decompressed_bytes_are_the_original_ones(pack, size):
    content = (os.urandom(1000) + bytes(4000)) * (size // 5000) + os.urandom(size % 5000)
    assert run_all(Decompression(pack(content), "any", 10 * MIB)) == content


def test_a_step_produces_a_bounded_part():
    decompression = Decompression(gzip.compress(bytes(20 * MIB)), "gzip", 1 << 30)
    decompression.step()
    assert STEP_SIZE <= decompression.size < STEP_SIZE + MIB
    assert not decompression.is_complete


def test_a_high_ratio_is_refused_beyond_what_is_free():
    assert len(run_all(Decompression(gzip.compress(bytes(60 * MIB)), "gzip", 1 << 30))) == 60 * MIB
    bomb = Decompression(gzip.compress(bytes(70 * MIB)), "gzip", 1 << 30)
    text = "cannot decompress the request body: its first 65536 bytes are 67[0-9]* decompressed, more than 100 times"
    with pytest.raises(InvalidRequestError, match=text):
        run_all(bomb)
    assert bomb.size < 66 * MIB


def test_the_limit_applies_to_decompressed_bytes():
    text = re.escape("cannot decompress the message: it exceeds the limit of 1000000 bytes")
    body = Decompression(gzip.compress(os.urandom(2000) * 1000), "gzip", 1_000_000, "message")
    with pytest.raises(InvalidRequestError, match=text):
        run_all(body)
    assert body.size < 1_300_000


class Watcher:
    """Starts a task and records its callbacks."""

    def __init__(self, threads: DecompressionThreads, body: Decompression, *, stops_at: int = -1) -> None:
        self.steps: list[int] = []
        self.stops_at = stops_at
        self.over: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.task = threads.start(body, self._on_step, self.over.set_result, self.over.set_result)

    def _on_step(self, size: int) -> bool:
        self.steps.append(size)
        return len(self.steps) != self.stops_at


@pytest.fixture
def threads():
    made = DecompressionThreads()
    yield made
    made.close()


CONTENT = os.urandom(50_000) * 200


async def test_a_task_reports_its_steps_and_its_result(threads):
    watcher = Watcher(threads, Decompression(gzip.compress(CONTENT), "gzip", 1 << 30))
    assert await watcher.over == CONTENT
    assert len(watcher.steps) == -(-len(CONTENT) // (STEP_SIZE + (1 << 18))) or watcher.steps[-1] == len(CONTENT)


async def test_a_task_stops_and_resumes(threads):
    watcher = Watcher(threads, Decompression(gzip.compress(CONTENT), "gzip", 1 << 30), stops_at=2)
    other = Watcher(threads, Decompression(gzip.compress(CONTENT), "gzip", 1 << 30))
    await other.over
    assert len(watcher.steps) == 2
    watcher.task.resume()
    assert await watcher.over == CONTENT


async def test_a_cancelled_task_calls_nothing(threads):
    watcher = Watcher(threads, Decompression(gzip.compress(CONTENT), "gzip", 1 << 30))
    watcher.task.cancel()
    other = Watcher(threads, Decompression(gzip.compress(CONTENT), "gzip", 1 << 30))
    await other.over
    assert watcher.steps == []
    assert not watcher.over.done()


async def test_an_error_is_reported_once(threads):
    watcher = Watcher(threads, Decompression(b"no gzip", "gzip", 100))
    problem = await watcher.over
    assert isinstance(problem, InvalidRequestError)
    assert problem.message.startswith("cannot decompress the request body as gzip: it is malformed")


@pytest.mark.parametrize(("coding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_a_long_response_is_compressed_in_steps(coding, unpack):
    parts = [b"head", os.urandom(100) * 30_000, memoryview(b""), memoryview(bytes(2 * MIB))]
    compression = Compression(parts, coding)
    steps = 0
    while not compression.is_complete:
        compression.step()
        steps += 1
    assert unpack(compression.result) == b"".join(parts)
    assert steps == 1 + 3 + 2 + 1
