"""Responses that are kept and sent again, to requests with the same inputs, without asking the model.

One `ResponseCache` serves all models; a `CachedResponses` stands in front of the scheduler of each version whose
configuration asks for it. What makes requests equal is what the reference looks at (SRV
docs/user_guide/response_cache.md): the model's version and the names, datatypes, shapes and elements of the inputs, but
neither parameters nor id nor the outputs that are asked for. Here a version that was loaded anew is another one, and
neither an error nor a response without some of the outputs that are asked for is sent again.

An entry owns copies: it holds no memory of a guest, and looking one up touches no guest.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from naiad.config.model.model_config import ModelConfig
from naiad.engine.serving.response_order import Order, OrderedSink
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.inference import NO_PARAMETERS, InferRequest, InferResponse, OutputTensor, Parameter, Sink
from naiad.protocol.metadata import CacheStatistics
from naiad.scheduling.byte_lru import ByteLru

logger = logging.getLogger("naiad.engine")

_ENTRY_BYTES = 512
_OUTPUT_BYTES = 160
"""What an entry and each of its outputs take beside their elements, about: the limit is one of memory."""

_Key: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A response that is kept.

    Attributes:
        outputs: Its outputs; they own their bytes.
        parameters: Its parameters.
        asked: The outputs that were asked for; empty for all.
    """

    outputs: Sequence[OutputTensor]
    parameters: Mapping[str, Parameter]
    asked: frozenset[str]

    def has(self, wanted: Sequence[str]) -> bool:
        """Whether all outputs that a request asks for (none named: all) were asked for then, too."""
        return not self.asked or (bool(wanted) and self.asked.issuperset(wanted))

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return _ENTRY_BYTES + sum([_OUTPUT_BYTES + len(tensor.data) for tensor in self.outputs])


class ResponseCache:
    """The responses kept for all models."""

    def __init__(self, size: int) -> None:
        self._entries: ByteLru[_Key, _Entry] = ByteLru(size)
        self._hits = self._misses = self._lookup_ns = self._insertion_ns = 0

    def __repr__(self) -> str:
        return f"<ResponseCache {self._entries!r} hits={self._hits} misses={self._misses}>"

    def find(self, key: _Key, wanted: Sequence[str], since: int) -> _Entry | None:
        """The entry that answers a request for the outputs *wanted*; looking for it began at *since*."""
        entry = self._entries.get(key)
        if entry is not None and not entry.has(wanted):
            entry = None
        self._lookup_ns += time.monotonic_ns() - since
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
        return entry

    def keep(self, key: _Key, entry: _Entry, since: int) -> bool:
        """Keep an entry, if there is room for it at all; making it began at *since*."""
        is_kept = self._entries.put(key, entry, entry.size)
        self._insertion_ns += time.monotonic_ns() - since
        return is_kept

    def forget(self, number: int) -> None:
        """Drop what is kept for a version."""
        self._entries.discard(lambda key: key[0] == number)

    @property
    def size(self) -> int:
        """How many bytes it may take."""
        return self._entries.capacity

    def statistics(self) -> CacheStatistics:
        """How full and how useful it is."""
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
    """What stands in front of the scheduler of one version."""

    def __init__(
        self,
        cache: ResponseCache,
        config: ModelConfig,
        version: int,
        number: int,
        statistics: Statistics,
        order: Order | None = None,
    ) -> None:
        """Answer from *cache* for a version.

        Args:
            cache: The cache of all models.
            config: The version's configuration.
            version: Its version number.
            number: Its number among all versions ever loaded: one that is loaded anew begins with nothing.
            statistics: Its statistics.
            order: The order its responses keep, if they keep any.
        """
        self._cache = cache
        self._name = config.name
        self._version = version
        self._number = number
        self._statistics = statistics
        self._order = order
        self._outputs = frozenset(tensor.name for tensor in config.outputs)
        # An ensemble's responses carry the sequence of their request, which the next one need not have.
        self._keeps_parameters = not config.message.HasField("ensemble_scheduling")
        self._has_warned = False

    def respond(self, request: InferRequest, sink: Sink) -> Sink | None:
        """Answer a request that was checked (None), or return the sink with which it has to go to the model."""
        began = time.monotonic_ns()
        digest = digest_of(request)
        entry = self._cache.find((self._number, digest), request.requested_outputs, began)
        took = time.monotonic_ns() - began
        if entry is None:
            return _KeepingSink(self, request, digest, took, sink)
        self._statistics.on_cache_hit(took)
        if request.trace is not None:
            now = began + took
            request.trace.on_composed(began, now, now, now, now)
        if self._order is not None:
            sink = OrderedSink(self._order, sink)
            sink.begin()
        sink.send(self._response(request, entry), True)
        return None

    def _response(self, request: InferRequest, entry: _Entry) -> InferResponse:
        wanted = request.requested_outputs
        outputs = [
            OutputTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)  # a taker may change its shape
            for tensor in entry.outputs
            if not wanted or tensor.name in wanted
        ]
        return InferResponse(self._name, self._version, request.request_id, outputs, entry.parameters)

    def on_response(self, request: InferRequest, digest: bytes, took: int, response: InferResponse | None) -> None:
        """A request that was looked up in vain, for *took* ns, has its only response, or none worth keeping."""
        if response is not None and response.error is None:
            took += self._keep(request, digest, response)
        self._statistics.on_cache_miss(took)

    def _keep(self, request: InferRequest, digest: bytes, response: InferResponse) -> int:
        began = time.monotonic_ns()
        outputs = [
            OutputTensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in response.outputs
        ]
        parameters = dict(response.parameters) if self._keeps_parameters and response.parameters else NO_PARAMETERS
        asked = frozenset(request.requested_outputs)
        entry = _Entry(outputs, parameters, asked if asked < self._outputs else frozenset())
        is_kept = self._cache.keep((self._number, digest), entry, began)
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
        return time.monotonic_ns() - began


class _KeepingSink:
    """Keeps the response of a request, if it is one and no error, before it goes to another sink."""

    __slots__ = ("_digest", "_has_begun", "_request", "_responses", "_sink", "_took")

    def __init__(self, responses: CachedResponses, request: InferRequest, digest: bytes, took: int, sink: Sink) -> None:
        self._responses = responses
        self._request = request
        self._digest = digest
        self._took = took
        self._sink = sink
        self._has_begun = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Take a response."""
        if final:
            self._responses.on_response(self._request, self._digest, self._took, None if self._has_begun else response)
        self._has_begun = True
        self._sink.send(response, final)


def digest_of(request: InferRequest) -> bytes:
    """What requests with the same inputs have in common, in whatever order they name them."""
    digest = hashlib.sha256()  # of those that nobody can make collide, the fastest where processors know it
    inputs = request.inputs
    for tensor in inputs if len(inputs) == 1 else sorted(inputs, key=lambda tensor: tensor.name):
        # The text ends where its tuple does, and tells how many bytes follow: no two requests run together alike.
        digest.update(repr((tensor.name, tensor.datatype.value, tensor.shape, len(tensor.data))).encode())
        digest.update(tensor.data)
    return digest.digest()
