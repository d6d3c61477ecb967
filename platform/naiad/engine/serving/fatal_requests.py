"""Refuses requests that end guest after guest (`naiad.engine.lifecycle.fatal_requests`), so that the others are served.

Costs nothing while no guest has exited: digests are made of the requests in flight at an exit, and of new requests only
while any digest is suspected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from naiad.core import clock
from naiad.core.errors import FatalRequestError, GuestExitedError, NaiadError, fresh, is_model_response
from naiad.engine.lifecycle.fatal_requests import FatalRequests
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.response_order import OrderedSink
from naiad.protocol.device_bytes import device_bytes
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.protocol.request_plan import error_prefix

_WHOLE_BYTES = 256 << 10
_SLICES = 64
# At most so many bytes are digested after one exit, which bounds the time that takes to about 20 ms.
_MAX_DIGESTED_BYTES = 16 << 20
# So many other requests are compared with suspected ones after an exit; another exit compares the next ones.
_MAX_WAITING = 1024

RequestDigest: TypeAlias = tuple[int, bytes]  # number of input bytes, and a digest of them


class FatalRequestGuard:
    """The requests that one model version refuses because they end its guests."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._requests = FatalRequests()
        self._sizes: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def on_exit(self, requests: Iterable[InferRequest], error: GuestExitedError, now: float) -> frozenset[float]:
        """A guest exited *now* (`clock.monotonic`) while it executed *requests*; see `FatalRequests.on_exit`."""
        digests = {digest_of(request) for request in _within_bounds(requests)}
        blamed = self._requests.on_exit(digests, error.problem, now)
        self._sizes = {size for size, _ in map(_parts, self._requests.digests())}
        return blamed

    def sort_out(self, requests: Iterable[OpenRequest]) -> list[tuple[OpenRequest, NaiadError]]:
        """Those of *requests* that wait for a guest and are refused from now on; the others are watched for success.

        They came before an exit and so past `admit`. Called after each exit.
        """
        refused: list[tuple[OpenRequest, NaiadError]] = []
        candidates = [each for each in islice(requests, _MAX_WAITING) if input_size(each.request) in self._sizes]
        within_bounds = list(_within_bounds([each.request for each in candidates]))
        for each in candidates[: len(within_bounds)]:
            digest = self._suspected(each.request)
            if digest is None:
                continue
            error = None if each.worker is not None else self._refusal(each.request, digest)
            if error is not None:
                refused.append((each, error))
            else:
                self._observe(each, digest)
        return refused

    def admit(self, request: InferRequest, sink: Sink) -> Sink:
        """The sink with which *request* may start; raise FatalRequestError if the request is refused."""
        digest = self._suspected(request)
        if digest is None:
            return sink
        refusal = self._refusal(request, digest)
        if refusal is not None:
            raise fresh(refusal)
        return _SuspectSink(self._requests, digest, sink)

    def _suspected(self, request: InferRequest) -> RequestDigest | None:
        """The digest of a request that is suspected or refused; None for others, most of them told by their size."""
        if input_size(request) not in self._sizes:
            return None
        digest = digest_of(request)
        return digest if self._requests.is_suspect(digest) else None

    def _observe(self, pending: OpenRequest, digest: RequestDigest) -> None:
        def wrapper(sink: Sink) -> Sink:
            return sink if isinstance(sink, _SuspectSink) else _SuspectSink(self._requests, digest, sink)

        if isinstance(pending.sink, OrderedSink):
            pending.sink.wrap(wrapper)
        else:
            pending.sink = wrapper(pending.sink)

    def _refusal(self, request: InferRequest, digest: RequestDigest) -> FatalRequestError | None:
        found = self._requests.refusal(digest, clock.monotonic())
        if found is None:
            return None
        return FatalRequestError(
            f"{error_prefix(request)}this request ended {found.exits} processes of model '{self._model}' and is "
            f"refused for {found.seconds:.0f} s; other requests are served. The last process: {found.cause}"
        )

    def explain(self) -> str:
        """What is refused now, for people who look at the model; empty if nothing is."""
        refusals = self._requests.refusals(clock.monotonic())
        if not refusals:
            return ""
        latest = max(refusals, key=lambda refusal: refusal.seconds)
        what = "1 request that ended" if len(refusals) == 1 else f"{len(refusals)} requests that each ended"
        return (
            f"it refuses {what} {latest.exits} of its processes, for {latest.seconds:.0f} s; other requests are "
            f"served. The last process: {latest.cause}"
        )

    def forget_old(self) -> None:
        self._requests.forget_old(clock.monotonic())


class _SuspectSink:
    """Passes the responses of a suspected request on; clears the suspicion if a guest answers it."""

    __slots__ = ("_digest", "_requests", "_sink")

    def __init__(self, requests: FatalRequests, digest: RequestDigest, sink: Sink) -> None:
        self._requests = requests
        self._digest = digest
        self._sink = sink

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if final and (response is None or response.error is None or is_model_response(response.error)):
            self._requests.on_success(self._digest)
        self._sink.send(response, final)


def _within_bounds(requests: Iterable[InferRequest]) -> Iterator[InferRequest]:
    """The first of *requests*, until their digests have taken enough bytes."""
    total = 0
    for request in requests:
        yield request
        total += sum([min(len(tensor.data), _WHOLE_BYTES) for tensor in request.inputs])
        if total > _MAX_DIGESTED_BYTES:
            return


def _parts(digest: Hashable) -> RequestDigest:
    assert isinstance(digest, tuple)
    return digest


def input_size(request: InferRequest) -> int:
    """Number of bytes of all inputs."""
    return sum([len(tensor.data) for tensor in request.inputs])


def digest_of(request: InferRequest) -> RequestDigest:
    """A digest of the inputs' bytes, the same for inputs in any order.

    Of an input of more than 256 KiB it takes 64 slices of 4 KiB at equal distances, so that it takes at most about
    0.3 ms per input.
    """
    digest = hashlib.blake2b(digest_size=16)
    total = 0
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        device = device_bytes(tensor.data)
        if device is not None:  # its bytes are not known, so it is like no other
            total += len(device)
            digest.update(f"{tensor.name}\0device {device.serial}\0".encode("utf-8", "replace"))
            continue
        data = memoryview(tensor.data)
        size = len(data)
        total += size
        digest.update(f"{tensor.name}\0{size}\0".encode("utf-8", "replace"))
        if size <= _WHOLE_BYTES:
            digest.update(data)
        else:
            length = _WHOLE_BYTES // _SLICES
            for number in range(_SLICES):
                start = number * (size - length) // (_SLICES - 1)
                digest.update(data[start : start + length])
    return total, digest.digest()
