"""The response cache: a request with the same inputs as an earlier one gets the same response, without the model.

One `ResponseCache` serves all models. Each version whose configuration enables caching has a `CachedResponses`, which
its `Admission` asks before the scheduler gets the request.

As in the reference (SRV docs/user_guide/response_cache.md), the key of a request is the model's version and the names,
datatypes, shapes and elements of the inputs; parameters, id and requested outputs do not matter. Two things differ:
each load of a version begins with an empty cache, and a cached response is used only if it has all requested outputs.
Errors are never cached. Requests and responses of more than 8 MiB are not either: a digest and a copy of them would
hold up all other requests.

Entries own copies of their bytes: they hold no memory of a guest, and a lookup accesses no guest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from naiad.config.model.model_config import ModelConfig
from naiad.core import clock
from naiad.engine.scheduling.byte_lru import ByteLru
from naiad.engine.serving.response_order import Order, OrderedSink
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.delivery import send_safely
from naiad.protocol.inference import NO_PARAMETERS, InferRequest, InferResponse, OutputTensor, Parameter, Sink
from naiad.protocol.metadata import CacheStatistics

logger = logging.getLogger("naiad.engine")

# Approximate overhead of an entry and of each output, since the capacity limits memory and not payload.
_ENTRY_BYTES = 512
_OUTPUT_BYTES = 160

# Bytes of a request's inputs, and of a response's outputs. A digest or a copy of so many takes about 5 ms.
_MAX_CACHED = 8 << 20

_Key: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class _Entry:
    outputs: Sequence[OutputTensor]
    parameters: Mapping[str, Parameter]
    requested: frozenset[str]  # the outputs that were requested; empty for all

    def has(self, wanted: Sequence[str]) -> bool:
        """Whether it has all outputs that a request names; a request that names none needs all."""
        return not self.requested or (bool(wanted) and self.requested.issuperset(wanted))

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + sum([_OUTPUT_BYTES + len(tensor.data) for tensor in self.outputs])


class ResponseCache:
    """The cached responses of all models."""

    def __init__(self, size: int) -> None:
        self._entries: ByteLru[_Key, _Entry] = ByteLru(size)
        self._hits = self._misses = self._lookup_ns = self._insertion_ns = 0

    def __repr__(self) -> str:
        return f"<ResponseCache {self._entries!r} hits={self._hits} misses={self._misses}>"

    def find(self, key: _Key, wanted: Sequence[str], since: int) -> _Entry | None:
        """The entry for a request for the outputs *wanted*; the lookup began at *since* (monotonic ns)."""
        entry = self._entries.get(key)
        if entry is not None and not entry.has(wanted):
            entry = None
        self._lookup_ns += clock.monotonic_ns() - since
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
        return entry

    def insert(self, key: _Key, entry: _Entry, since: int) -> bool:
        """Insert an entry unless it exceeds the capacity; whether it was. Making it began at *since*."""
        is_kept = self._entries.put(key, entry, entry.size)
        self._insertion_ns += clock.monotonic_ns() - since
        return is_kept

    def forget(self, number: int) -> None:
        self._entries.discard(lambda key: key[0] == number)

    @property
    def size(self) -> int:
        return self._entries.capacity

    def statistics(self) -> CacheStatistics:
        entries = self._entries
        return CacheStatistics(
            byte_size=entries.capacity,
            used_byte_size=entries.used,
            entries=len(entries),
            hits=self._hits,
            misses=self._misses,
            evictions=entries.evictions,
            lookup_ns=self._lookup_ns,
            insertion_ns=self._insertion_ns,
        )


class CachedResponses:
    """The response cache as one load of a version uses it."""

    def __init__(
        self,
        cache: ResponseCache,
        config: ModelConfig,
        version: int,
        number: int,
        statistics: Statistics,
        order: Order | None = None,
    ) -> None:
        """Use *cache* for one load, which begins with no entries; *order* is that of its responses, None for any."""
        self._cache = cache
        self._name = config.name
        self._version = version
        self._number = number
        self._statistics = statistics
        self._order = order
        self._outputs = frozenset(tensor.name for tensor in config.outputs)
        # Parameters of an ensemble's responses name the sequence of their request; the next request has another.
        self._keeps_parameters = not config.message.HasField("ensemble_scheduling")
        self._has_warned = self._has_warned_of_size = False

    def respond(self, request: InferRequest, sink: Sink) -> Sink | None:
        """Respond to a checked request from the cache (None), or the sink with which it has to go to the model.

        That sink caches the model's response.
        """
        if sum([len(tensor.data) for tensor in request.inputs]) > _MAX_CACHED:
            self._warn_of_size("inputs")
            return sink
        began = clock.monotonic_ns()
        digest = digest_of(request)
        entry = self._cache.find((self._number, digest), request.requested_outputs, began)
        took = clock.monotonic_ns() - began
        if entry is None:
            return _CachingSink(self, request, digest, took, sink)
        self._statistics.on_cache_hit(took)
        if request.trace is not None:
            now = began + took
            request.trace.on_composed(began, now, now, now, now)
        if self._order is not None:
            sink = OrderedSink(self._order, sink)
            sink.begin()
        send_safely(sink, self._response(request, entry), True, (self._name, self._version, request.request_id))
        return None

    def _response(self, request: InferRequest, entry: _Entry) -> InferResponse:
        wanted = request.requested_outputs
        outputs = [
            OutputTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)  # an ensemble may change its shape
            for tensor in entry.outputs
            if not wanted or tensor.name in wanted
        ]
        return InferResponse(self._name, self._version, request.request_id, outputs, entry.parameters)

    def on_response(self, request: InferRequest, digest: bytes, took: int, response: InferResponse | None) -> None:
        """A request that was a cache miss, found after *took* ns, has its only response (None: it is not cacheable)."""
        if response is not None and response.error is None:
            took += self._keep(request, digest, response)
        self._statistics.on_cache_miss(took)

    def _warn_of_size(self, what: str) -> None:
        if not self._has_warned_of_size:
            self._has_warned_of_size = True
            logger.warning(
                "cannot cache a response of model '%s': its %s exceed %d MiB (said once for the model)",
                self._name,
                what,
                _MAX_CACHED >> 20,
            )

    def _keep(self, request: InferRequest, digest: bytes, response: InferResponse) -> int:
        if sum([len(tensor.data) for tensor in response.outputs]) > _MAX_CACHED:
            self._warn_of_size("outputs")
            return 0
        began = clock.monotonic_ns()
        outputs = [
            OutputTensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in response.outputs
        ]
        parameters = dict(response.parameters) if self._keeps_parameters and response.parameters else NO_PARAMETERS
        requested = frozenset(request.requested_outputs)
        entry = _Entry(outputs, parameters, requested if requested < self._outputs else frozenset())
        is_kept = self._cache.insert((self._number, digest), entry, began)
        if not is_kept and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Failed to insert key [%s] into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d (said once for model '%s'; give --cache-config=local a larger size)",
                digest.hex()[:16],
                entry.size,
                self._cache.size,
                self._name,
            )
        return clock.monotonic_ns() - began


class _CachingSink:
    """Caches the response to a request before passing it on, if it is the only one and no error."""

    __slots__ = ("_digest", "_has_begun", "_has_ended", "_request", "_responses", "_sink", "_took")

    def __init__(self, responses: CachedResponses, request: InferRequest, digest: bytes, took: int, sink: Sink) -> None:
        self._responses = responses
        self._request = request
        self._digest = digest
        self._took = took
        self._sink = sink
        self._has_begun = self._has_ended = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if final and not self._has_ended:  # it ends twice if the sink fails
            self._has_ended = True
            self._responses.on_response(self._request, self._digest, self._took, None if self._has_begun else response)
        self._has_begun = True
        self._sink.send(response, final)


def digest_of(request: InferRequest) -> bytes:
    """A digest that requests have in common if and only if their inputs are equal, in any order."""
    digest = hashlib.sha256()  # collision resistant, and the fastest such hash where the processor supports it
    inputs = request.inputs
    for tensor in inputs if len(inputs) == 1 else sorted(inputs, key=lambda tensor: tensor.name):
        # The text is self-delimiting and contains the number of bytes that follow, so the encoding is unambiguous.
        digest.update(repr((tensor.name, tensor.datatype.value, tensor.shape, len(tensor.data))).encode())
        digest.update(tensor.data)
    return digest.digest()
