"""Digests of requests: equal for equal inputs, whatever else differs, and made in bounded time."""

from __future__ import annotations

import hashlib

from naiad.engine.serving import fatal_requests
from naiad.engine.serving.fatal_requests import digest_of
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor


def request(*buffers: bytes | bytearray, names: str = "AB", **more) -> InferRequest:
    tensors = [
        InputTensor(name, Datatype.UINT8, (len(data),), data) for name, data in zip(names, buffers, strict=False)
    ]
    return InferRequest("m", -1, tensors, **more)


def test_requests_with_the_same_inputs_have_the_same_digest():
    first = digest_of(request(b"12", b"3"))
    assert first == digest_of(request(b"3", b"12", names="BA", request_id="7", parameters={"x": 1}))
    others = [request(b"1", b"23"), request(b"12", b"4"), request(b"12", b"3", names="AC"), request(b"12")]
    assert len({first, *map(digest_of, others)}) == 5


def test_of_long_inputs_a_sample_from_both_ends_and_between_is_digested(monkeypatch):
    taken = []

    class Counting:
        def __init__(self, **arguments):
            self._hash = hashlib.sha256()

        def update(self, data):
            taken.append(len(data))
            self._hash.update(data)

        def digest(self):
            return self._hash.digest()

    monkeypatch.setattr(fatal_requests.hashlib, "blake2b", Counting)
    data = bytearray(10_000_000)
    plain = digest_of(request(data))
    assert sum(taken) < 300_000
    for start in (0, 4_900_000, 9_800_000):
        changed = bytearray(data)
        changed[start : start + 200_000] = b"x" * 200_000
        assert digest_of(request(changed)) != plain
