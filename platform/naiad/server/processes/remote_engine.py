"""The engine as a frontend process has it: `EngineDoor` over the link to the owner.

Methods that are not coroutines block for a round trip to the owner, unless the answer is kept. What is kept of routes
is dropped when the owner announces a change, which it does before it replies to the call that made the change. So each
use of a kept route first handles what has arrived.

Responses and commands are passed on in the order of their arrival; while a call blocks, they wait. What must not wait
for that (the results of calls, changes of routes) is taken in at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import orjson
from naiad_stub import wire
from naiad_stub.memo import size_of
from naiad_stub.segment import Segment

from naiad.core.errors import NaiadError, NotReadyError, fresh, unexpected_error, without_frames
from naiad.core.turns import SHARE_SECONDS, turns_of
from naiad.guests.memory.instance import COPY_LIMIT
from naiad.guests.memory.tracking import track
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE, InputCopy, UnsentFrames
from naiad.protocol.datatypes import Datatype
from naiad.protocol.delivery import end_failed_sink, send_safely
from naiad.protocol.inference import (
    NO_PARAMETERS,
    Buffer,
    InferRequest,
    InferResponse,
    OutputTensor,
    RejectableSink,
    Sink,
)
from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata
from naiad.protocol.model_names import LATEST
from naiad.server.processes.input_part import InputPart
from naiad.server.processes.link import Link
from naiad.server.processes.messages import (
    CONFIRM_SENT,
    FINAL,
    MAX_SHORT_TEXT,
    NO_PLACE,
    NO_RESPONSE,
    NUMBER,
    PLACE,
    PLACED,
    RESPONSE,
    SHORT_REQUEST,
    SHORT_REQUEST_FRAME,
    TRACED_SENDING,
    CallResult,
    FrameKind,
    FullRequest,
    FullResponse,
    OwnerCall,
    PartAnnouncement,
    RegionUse,
    RequestTemplate,
    ResponseLayout,
    SegmentAnnouncement,
    TemplateInput,
    TracedArrival,
    VersionRoute,
    error_of,
    input_offsets,
    pack,
    unpack,
)
from naiad.server.processes.own_branches import OwnBranch, OwnBranches
from naiad.server.processes.region_use import split_regions

logger = logging.getLogger("naiad.frontends")

_MAX_TEMPLATES = 4096
_MAX_TEMPLATE_BYTES = 1 << 20
"""Bytes of the names in templates, of tensors that the model may not have."""
_NO_TOKEN = 0
_LARGEST_NUMBER = 0xFFFFFFFF
"""Of requests that the owner gets; tickets of those that a branch of this process gets are larger."""
REGION_KINDS = frozenset({FrameKind.REGION, FrameKind.TAKE_REGIONS, FrameKind.RETURN_REGIONS})
"""Commands about regions of clients' shared memory, which are carried out while a call blocks, too."""


class _KnownTemplate(NamedTuple):
    """A template that the owner knows.

    Attributes:
        number: Its number.
        sizes: Bytes of each input.
        offsets: Where each begins.
        size: Bytes of all together.
        is_dense: Whether they have no gaps between them.
        is_plain: Whether requests with the layout key that it was found by have nothing else, parameters excepted: a
            frontend may add headers of the client to these.
    """

    number: int
    sizes: list[int]
    offsets: tuple[int, ...]
    size: int
    is_dense: bool
    is_plain: bool = False


_PendingRequest: TypeAlias = "tuple[Sink, str, tuple[InferRequest, TracedArrival | None] | None]"
"""What gets the responses to a request, the request's id, and the request with its arrival where its inputs are in the
segment of a version: if that is gone when the owner reads the request, it is sent once more. Plain, since creating a
named tuple takes a quarter of a microsecond."""


class HeldCounts(NamedTuple):
    """How much a frontend process holds at a moment.

    Attributes:
        requests: Requests without their last response.
        copied: Those of them whose inputs are still copied, or that follow such a request.
        abandoned: Those of them whose further responses are dropped.
        routes: Versions that requests can be sent to without asking the owner.
        templates: Templates of requests, and layout keys that they are found by.
        layouts: Layouts of responses.
        segments: Segments of guests that are mapped.
        input_bytes: Bytes of inputs in the parts of segments.
    """

    requests: int
    copied: int
    abandoned: int
    routes: int
    templates: int
    layouts: int
    segments: int
    input_bytes: int


class _CopiedRequest:
    """A request that is sent once its inputs have been copied to a part, or one of a sequence that is to follow it.

    Attributes:
        part: Where its inputs are; None if they were not copied.
        place: Where they begin there.
        is_cancelled: Whether its client has given it up meanwhile.
    """

    __slots__ = ("arrival", "is_cancelled", "part", "place", "request", "sink")

    def __init__(
        self, request: InferRequest, sink: Sink, arrival: TracedArrival | None, part: InputPart | None, place: int
    ) -> None:
        self.request = request
        self.sink = sink
        self.arrival = arrival
        self.part = part
        self.place = place
        self.is_cancelled = False


class _KnownRoute:
    """A route, its part of the segment, the templates of its requests by layout key, and the branch in this process."""

    __slots__ = ("branch", "part", "route", "templates")

    def __init__(self, route: VersionRoute, part: InputPart | None, branch: OwnBranch | None) -> None:
        self.route = route
        self.part = part
        self.branch = branch
        self.templates: dict[Hashable, _KnownTemplate] = {}


class RemoteEngine:
    """Implements `naiad.engine.door.EngineDoor` in a frontend process.

    Attributes:
        on_command: Called with the kind and the content of commands of the owner that do not concern requests.
        branches: The branches of models that this process runs; None where it runs none.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        """An engine without a link; see `connect`. *on_end* is called when the owner has exited."""
        self.on_command: Callable[[int, Any], None] = lambda *_: None
        self.branches: OwnBranches | None = None
        self._submitted = self._submitted_before = 0  # requests, until now and until `trim` was called last
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._routes: dict[tuple[str, int], _KnownRoute] = {}
        self._route_changes = 0
        self._parts: dict[int, InputPart] = {}  # by the number of the segment of inputs
        self._segments: dict[int, memoryview] = {}
        self._layouts: dict[int, ResponseLayout] = {}
        self._pending: dict[int, _PendingRequest] = {}
        self._copied: dict[int, _CopiedRequest] = {}  # those of `_pending` that the owner does not know yet
        self._unsent = UnsentFrames(self._loop, self._on_copied, self._on_copy_failed)
        self._numbers = itertools.count(1)
        self._template_numbers = itertools.count(1)
        self._template_count = self._template_bytes = 0
        self._calls: dict[int, asyncio.Future[Any] | CallResult | None] = {}
        self._call_numbers = itertools.count(1)
        self._deferred: deque[tuple[int, bytes]] = deque()  # responses and commands, in the order of their arrival
        self._blocking = 0
        self._turns = turns_of(self._loop)
        self._is_resuming = False  # `on_received` is called in a later turn
        self._abandoned: set[int] = set()  # those of `_pending` whose further responses are dropped
        self._references: dict[int, Any] = {}  # to borrowed outputs, by token
        self._thread = threading.get_ident()

    def connect(self, link: Link) -> None:
        """Use *link*, whose frames go to `on_frame`."""
        self._link = link

    @property
    def request_count(self) -> int:
        """Number of requests without their last response."""
        return len(self._pending) + (0 if self.branches is None else self.branches.request_count)

    @property
    def held(self) -> HeldCounts:
        """What it holds of requests, and of the owner's memory."""
        return HeldCounts(
            requests=len(self._pending),
            copied=len(self._copied),
            abandoned=len(self._abandoned),
            routes=len(self._routes),
            templates=self._template_count,
            layouts=len(self._layouts),
            segments=len(self._segments),
            input_bytes=sum(part.in_use for part in self._parts.values()),
        )

    # -- calls ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the owner, and block until it has returned.

        Raises:
            NaiadError: What the method raised.
        """
        link = self._open_link()
        number = next(self._call_numbers)
        self._calls[number] = None
        link.send(pack(FrameKind.CALL, OwnerCall(number, method, arguments, keywords)))
        self._blocking += 1
        try:
            while self._calls[number] is None:
                if not link.receive(None) and not link.is_open:
                    raise NotReadyError("Server exiting")
        finally:
            self._blocking -= 1
            result = self._calls.pop(number)
            self._resume_later()
        assert isinstance(result, CallResult)
        if result.error is not None:
            raise error_of(result.error)
        return result.value

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the owner.

        Raises:
            NaiadError: What the method raised.
        """
        link = self._open_link()
        number = next(self._call_numbers)
        waiting = self._loop.create_future()
        self._calls[number] = waiting
        link.send(pack(FrameKind.CALL, OwnerCall(number, method, arguments, keywords)))
        try:
            return await waiting
        finally:
            del waiting  # an error that it holds refers to this frame: see `errors.fresh`

    def _open_link(self) -> Link:
        if self._link is None or not self._link.is_open:
            raise NotReadyError("Server exiting")
        return self._link

    def send(self, data: bytes) -> None:
        """Send a frame to the owner, at the end of the loop's turn."""
        if self._link is not None:
            self._link.send(data)

    # -- the door -------------------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        """See `EngineDoor`, as for the methods below."""
        found: ServerMetadata = self.ask("server_metadata")
        return found

    def is_live(self) -> bool:
        """See `EngineDoor`."""
        return bool(self.ask("is_live"))

    def is_ready(self) -> bool:
        """See `EngineDoor`."""
        return bool(self.ask("is_ready"))

    async def check_server_ready(self) -> bool:
        """See `EngineDoor`."""
        return bool(await self.call("check_server_ready"))

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        """See `EngineDoor`."""
        return bool(await self.call("check_ready", name, version))

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """See `EngineDoor`."""
        return bool(self.ask("is_model_ready", name, version))

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """See `EngineDoor`."""
        return self._current_route(name, version).route.metadata

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        """See `EngineDoor`."""
        return self._current_route(name, version).route.config

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        """See `EngineDoor`."""
        found: Sequence[ModelStatistics] = self.ask("statistics", name, version)
        return found

    def ready_index(self) -> Sequence[IndexEntry]:
        """See `EngineDoor`."""
        found: Sequence[IndexEntry] = self.ask("ready_index")
        return found

    async def repository_index(self) -> Sequence[IndexEntry]:
        """See `EngineDoor`."""
        found: Sequence[IndexEntry] = await self.call("repository_index")
        return found

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> bool:
        """See `EngineDoor`."""
        plain = {key: value if isinstance(value, str) else bytes(value) for key, value in parameters.items()}
        return bool(await self.call("load", name, plain))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """See `EngineDoor`."""
        await self.call("unload", name, unload_dependents=unload_dependents)

    async def gather_counts(self) -> None:
        """See `EngineDoor`."""
        await self.call("gather_counts")

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """See `EngineDoor`. A request is checked against the answer when it reaches the owner."""
        known = self._routes.get((name, version)) or self._find_route(name, version)
        return known.route.is_decoupled

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        """See `EngineDoor`."""
        known = self._routes.get((name, version)) or self._find_route(name, version)
        if known.branch is not None:
            return known.branch.version.reserve_input(size, ahead)
        return None if known.part is None else known.part.reserve(size, ahead)

    def cancel(self, ticket: int) -> None:
        """See `EngineDoor`. Responses that are on their way are dropped here, as those after them are by the owner."""
        if ticket > _LARGEST_NUMBER:
            if self.branches is not None:
                self.branches.cancel(ticket)
        elif ticket in self._copied:
            self._copied[ticket].is_cancelled = True
        elif ticket in self._pending:
            self._abandoned.add(ticket)
            self.send(wire.frame(FrameKind.CANCEL, NUMBER.pack(ticket)))

    def confirm_sent(self, ticket: int, count: int = 1) -> None:
        """See `EngineDoor`."""
        if ticket > _LARGEST_NUMBER:
            if self.branches is not None:
                self.branches.confirm_sent(ticket, count)
        elif ticket in self._pending:
            self.send(wire.frame(FrameKind.CONFIRM_SENT, CONFIRM_SENT.pack(ticket, count)))

    def submit(self, request: InferRequest, sink: Sink, arrival: TracedArrival | None = None) -> int:
        """See `EngineDoor`. What only the owner can reject is answered to the sink. With *arrival* it may be traced."""
        if arrival is None and self.branches is not None and request.device is None:
            key = request.model_name, request.model_version
            branch = (self._routes.get(key) or self._find_route(*key)).branch
            if branch is not None and (ticket := branch.submit(request, sink)):
                return ticket
        number = next(self._numbers) & _LARGEST_NUMBER
        self._submitted += 1
        try:
            self._submit(number, request, sink, arrival)
        except NaiadError:
            raise
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            waiting = self._copied.pop(number, None)
            if waiting is not None:
                self._pending.pop(number, None)
                self._free_copied(waiting)
            problem = unexpected_error(f"submit the request to '{request.model_name}'", error)
        else:
            return number
        raise fresh(problem)  # outside the handler: as its context, the error would keep the request's tensors

    def _submit(
        self,
        number: int,
        request: InferRequest,
        sink: Sink,
        arrival: TracedArrival | None,
        copied: _CopiedRequest | None = None,
    ) -> None:
        """Send a request, or let it wait; with *copied*, it has waited."""
        link = self._open_link()
        key = request.model_name, request.model_version
        known = self._routes.get(key) or self._find_route(*key)
        inputs, regions = request.inputs, None
        if request.device is not None:
            inputs, regions = split_regions(request, request.device)
        buffers = [tensor.data for tensor in inputs]
        sizes = list(map(len, buffers))
        template = None if request.layout_key is None or regions else known.templates.get(request.layout_key)
        if template is None or template.sizes != sizes:
            template = self._template(known, request, sizes)
        place, resend = NO_PLACE, None
        copies: list[InputCopy] | None = None
        if template.size > wire.INLINE_LIMIT and known.part is not None:
            if copied is not None and copied.part is known.part:
                place = copied.place
            else:
                if template.size > COPIED_AT_ONCE:
                    copies = []
                place = known.part.place(inputs, template.offsets, template.size, copies)
        # Requests of a sequence keep their order.
        if copies or (self._copied and request.correlation_id and copied is None):
            part = known.part if place >= 0 else None
            self._put(number, _CopiedRequest(request, sink, arrival, part, place), copies)
            return
        try:
            if place >= 0:
                data, resend = b"", (request, arrival)
            else:
                data = b"".join(buffers) if template.is_dense else _joined(buffers, template)
            self._pending[number] = sink, request.request_id, resend
            if (
                arrival is None
                and not request.parameters
                and regions is None
                and (template.is_plain or _is_plain(request))
            ):
                request_id = request.request_id.encode("utf-8", "surrogatepass") if request.request_id else b""
                context = orjson.dumps(dict(request.propagated)) if request.propagated else b""
                id_size, context_size = len(request_id), len(context)
                if id_size <= MAX_SHORT_TEXT and context_size <= MAX_SHORT_TEXT:
                    size = SHORT_REQUEST.size + id_size + context_size + len(data)
                    head = SHORT_REQUEST_FRAME.pack(
                        size, FrameKind.SHORT_REQUEST, 0, number, template.number, place, id_size, context_size
                    )
                    link.send(b"".join((head, request_id, context, data)))
                    return
            message = _full_request(number, template, request, place, data, arrival, regions)
            link.send(pack(FrameKind.REQUEST, message))
        except BaseException:
            self._pending.pop(number, None)
            if place >= 0 and copied is None:
                assert known.part is not None
                known.part.free(place)
            raise

    def _put(self, number: int, waiting: _CopiedRequest, copies: list[InputCopy] | None = None) -> None:
        """Send a request behind those that wait, once *copies* are made."""
        self._pending[number] = waiting.sink, waiting.request.request_id, None
        self._copied[number] = waiting
        self._unsent.put(b"", number, copies)

    def _on_copied(self, _: bytes, number: int) -> None:
        """Send a request that has waited. Its route and its template may have changed meanwhile."""
        waiting = self._copied.pop(number)
        request, part = waiting.request, waiting.part
        is_sent = False
        try:
            self._submit(number, request, waiting.sink, waiting.arrival, waiting)
            is_sent = True
        except NaiadError as error:
            self._reject_copied(number, waiting, error)
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            self._reject_copied(
                number, waiting, unexpected_error(f"submit the request to '{request.model_name}'", error)
            )
        if waiting.is_cancelled:
            self.cancel(number)
        known = self._routes.get((request.model_name, request.model_version))
        if not is_sent or known is None or known.part is not part:
            self._free_copied(waiting)

    def _on_copy_failed(self, number: int, error: Exception) -> None:
        """The inputs of a request that waits cannot be copied."""
        waiting = self._copied.pop(number)
        name = waiting.request.model_name
        logger.error("cannot copy the inputs of a request to '%s'", name, exc_info=error)
        self._reject_copied(number, waiting, unexpected_error(f"copy the inputs of the request to '{name}'", error))
        self._free_copied(waiting)

    def _reject_copied(self, number: int, waiting: _CopiedRequest, error: NaiadError) -> None:
        request, sink = waiting.request, waiting.sink
        self._pending.pop(number, None)
        if isinstance(sink, RejectableSink):
            sink.reject(error)
            return
        of = request.model_name, request.model_version, request.request_id
        send_safely(sink, InferResponse(*of, error=without_frames(error)), True, of)

    def _free_copied(self, waiting: _CopiedRequest) -> None:
        """Free the inputs of a request that was not sent with them, if their part is still there."""
        if waiting.part is not None and waiting.part in self._parts.values():
            waiting.part.free(waiting.place)

    # -- routes and templates -------------------------------------------------------------------------------------

    def _current_route(self, name: str, version: int) -> _KnownRoute:
        self.receive()
        return self._routes.get((name, version)) or self._find_route(name, version)

    def receive(self, *, wait: bool = False) -> None:
        """Take in what the owner has sent so far; responses are passed on in a later turn.

        Args:
            wait: Whether to block until something arrives.

        Raises:
            NotReadyError: If the owner has exited while this waited.
        """
        link = self._open_link() if wait else self._link
        if link is None:
            return
        self._blocking += 1
        try:
            link.receive(None if wait else 0.0)
        finally:
            self._blocking -= 1
            self._resume_later()

    def _find_route(self, name: str, version: int) -> _KnownRoute:
        changes = -1
        while changes != self._route_changes:  # a change may have arrived together with the answer, which is old then
            changes = self._route_changes
            route: VersionRoute = self.ask("route", name, version)
        part = None if route.inputs is None else self._parts.get(route.inputs)
        branch = None if self.branches is None else self.branches.find(route.number)
        known = self._routes[name, version] = _KnownRoute(route, part, branch)
        return known

    def _template(self, known: _KnownRoute, request: InferRequest, sizes: list[int]) -> _KnownTemplate:
        """The template of a request; a new one is announced to the owner."""
        inputs = tuple(
            [
                TemplateInput(tensor.name, tensor.datatype, tuple(tensor.shape), size)
                for tensor, size in zip(request.inputs, sizes, strict=True)
            ]
        )
        outputs = tuple(request.requested_outputs)
        signature = inputs, outputs
        template = known.templates.get(signature)
        if template is None:
            if self._template_count >= _MAX_TEMPLATES or self._template_bytes >= _MAX_TEMPLATE_BYTES:
                self._forget_templates()
            self._template_count += 1
            self._template_bytes += size_of(signature)
            offsets, size = input_offsets(inputs)
            template = _KnownTemplate(next(self._template_numbers), sizes, offsets, size, size == sum(sizes))
            route = known.route
            message = RequestTemplate(
                template.number,
                request.model_name,
                request.model_version,
                inputs,
                outputs,
                route.number,
                route.is_decoupled,
                None if known.part is None else route.inputs,
            )
            self.send(pack(FrameKind.TEMPLATE, message))
            known.templates[signature] = template
        if request.layout_key is not None and request.device is None:
            if all(tensor.datatype is not Datatype.BYTES for tensor in inputs):  # whose strings may have been counted
                template = template._replace(is_plain=_is_plain(request))
            known.templates[request.layout_key] = template
            self._template_count += 1
        return template

    def _forget_templates(self) -> None:
        for known in self._routes.values():
            known.templates.clear()
        self._template_count = self._template_bytes = 0
        self.send(wire.frame(FrameKind.FORGET_TEMPLATES, b""))

    def trim(self) -> bool:
        """Return free pages of a part to the system after a pause in traffic; called periodically.

        Under load there are moments without a request in flight, too: pages that went back then would be cleared again
        for the next one (of 1 MB: 4.8 page faults).

        Returns:
            Whether pages are left, after a few milliseconds: call it again in a later turn of the loop.
        """
        if self._template_bytes >= _MAX_TEMPLATE_BYTES:  # one of them has the names of a whole request
            self._forget_templates()
        is_idle = not self._pending and self._submitted == self._submitted_before
        self._submitted_before = self._submitted
        return is_idle and any(part.trim() for part in self._parts.values())

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Handle a frame of the owner; while a call blocks, only what cannot call back into a frontend."""
        try:
            if kind == FrameKind.RESPONSE and not self._blocking and not self._deferred:  # most frames
                self._on_response(payload)
            else:
                self._take_in(kind, payload)
        except Exception:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of the owner")

    def _take_in(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.RESULT:
            self._on_result(unpack(payload))
        elif kind == FrameKind.LAYOUT:
            layout: ResponseLayout = unpack(payload)
            self._layouts[layout.number] = layout
        elif kind == FrameKind.SEGMENT:
            self._on_segment(unpack(payload))
        elif kind == FrameKind.PART:
            self._on_part(unpack(payload))
        elif kind == FrameKind.INPUTS_FREE:
            number, start = PLACE.unpack(payload)
            part = self._parts.get(number)
            if part is not None:
                part.free(start)
        elif kind == FrameKind.ROUTES_CHANGED:
            self._on_routes_changed(unpack(payload))
        elif kind in REGION_KINDS:
            self.on_command(kind, unpack(payload))
        elif kind == FrameKind.TRACED:
            self._on_traced(*NUMBER.unpack(payload))
        elif kind == FrameKind.TRACING:
            self.on_command(kind, unpack(payload))
            self.send(wire.frame(FrameKind.CONFIRM, b""))
        elif kind == FrameKind.BOARD:
            assert self._link is not None
            assert self.branches is not None
            self.branches.use_board(self._link.descriptors.popleft(), *unpack(payload))
        elif kind == FrameKind.PING:
            self.send(wire.frame(FrameKind.PONG, b""))
        elif self._blocking or self._deferred:
            self._deferred.append((kind, payload))
        else:
            self._handle(kind, payload)

    def on_received(self) -> None:
        """Pass on what has waited, for a share of the turn. While a call blocks, frontends expect no response."""
        deferred = self._deferred
        deadline = 0.0
        while deferred and not self._blocking:
            kind, payload = deferred.popleft()
            try:
                self._handle(kind, payload)
            except Exception:  # those after this one must still be handled
                logger.exception("cannot handle a message of the owner")
            if deferred:
                now = perf_counter()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline:
                    break
        self._resume_later()

    def _resume_later(self) -> None:
        if self._deferred and not self._blocking and not self._is_resuming:
            self._is_resuming = True
            self._turns.defer(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        self.on_received()

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.RESPONSE:
            self._on_response(payload)
        elif kind == FrameKind.FULL_RESPONSE:
            self._on_full_response(unpack(payload))
        elif kind == FrameKind.FORGET_LAYOUTS:
            (first,) = NUMBER.unpack(payload)
            self._layouts = {number: layout for number, layout in self._layouts.items() if number >= first}
        elif kind == FrameKind.FORGET_SEGMENT:
            del self._segments[NUMBER.unpack(payload)[0]]  # unmapped with its last view
        else:
            self.on_command(kind, unpack(payload))

    def on_link_end(self) -> None:
        """The owner has exited."""
        for waiting in self._calls.values():
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                waiting.set_exception(NotReadyError("Server exiting"))
        self._on_end()

    def _on_result(self, result: CallResult) -> None:
        waiting = self._calls.get(result.number)
        if isinstance(waiting, asyncio.Future):
            del self._calls[result.number]
            if waiting.done():
                return  # its caller was cancelled
            if result.error is None:
                waiting.set_result(result.value)
            else:
                waiting.set_exception(error_of(result.error))
        elif result.number in self._calls:
            self._calls[result.number] = result

    def _on_segment(self, announced: SegmentAnnouncement) -> None:
        assert self._link is not None
        descriptor = self._link.descriptors.popleft()
        self._segments[announced.number] = Segment(descriptor, announced.capacity).view
        os.close(descriptor)

    def _on_part(self, announced: PartAnnouncement) -> None:
        assert self._link is not None
        descriptor = self._link.descriptors.popleft()
        self._parts[announced.number] = InputPart(descriptor, announced.start, announced.size)
        os.close(descriptor)

    def on_branch_opened(self) -> None:
        """A branch of this process takes requests from now on: look for it at the next one."""
        if self._template_count:
            self._forget_templates()
        self._routes.clear()

    def _on_routes_changed(self, inputs: frozenset[int]) -> None:
        if self._template_count:
            self._forget_templates()
        self._routes.clear()
        self._route_changes += 1
        for number in [number for number in self._parts if number not in inputs]:
            self._parts.pop(number).close()

    # -- responses ------------------------------------------------------------------------------------------------

    def _on_traced(self, number: int) -> None:
        """The owner traces a request, whose responses follow."""
        pending = self._pending.get(number)
        if pending is not None:
            sink, request_id, resend = pending
            self._pending[number] = _TimedSink(number, sink, self.send), request_id, resend

    def _on_response(self, payload: bytes) -> None:
        number, layout_number, flags, token = RESPONSE.unpack_from(payload)
        final = bool(flags & FINAL)
        pending = self._pending.pop(number, None) if final else self._pending.get(number)
        position = RESPONSE.size
        if pending is None or number in self._abandoned:
            self._drop(number, pending, _NO_TOKEN if flags & NO_RESPONSE else token, final=final)
            return
        if flags & NO_RESPONSE:
            pending[0].send(None, True)
            return
        layout = self._layouts[layout_number]
        if flags & PLACED:
            places = [PLACE.unpack_from(payload, position + PLACE.size * n) for n in range(len(layout.outputs))]
            sizes = [end - start for _, _, _, start, end in layout.outputs]
            buffers = self._placed(places, sizes, token)
            outputs = [
                OutputTensor(name, datatype, shape, data)
                for (name, datatype, shape, _, _), data in zip(layout.outputs, buffers, strict=True)
            ]
        else:
            outputs = [
                OutputTensor(name, datatype, shape, payload[position + start : position + end])
                for name, datatype, shape, start, end in layout.outputs
            ]
        sink, request_id, _ = pending
        name, version = layout.model_name, layout.model_version
        try:
            sink.send(InferResponse(name, version, request_id, outputs, NO_PARAMETERS, None, layout), final)
        except Exception as error:  # noqa: BLE001 - a sink may raise anything; it is logged
            self._on_sink_failed(number, sink, error, (name, version, request_id))

    def _drop(self, number: int, pending: _PendingRequest | None, token: int, *, final: bool) -> None:
        """Free the memory of a response that is discarded, and pass on the end of its request."""
        if token != _NO_TOKEN:
            self._release(token)
        if final:
            self._abandoned.discard(number)
            if pending is not None:
                pending[0].send(None, True)

    def _on_full_response(self, response: FullResponse) -> None:
        number = response.number
        pending = self._pending.pop(number, None) if response.final else self._pending.get(number)
        if pending is None or (number in self._abandoned and response.error is None):
            self._drop(number, pending, response.token, final=response.final)
            return
        outputs = []
        position = 0
        placed = [(place, size) for _, _, _, size, place in response.outputs if place is not None]
        buffers = iter(self._placed([place for place, _ in placed], [size for _, size in placed], response.token))
        view = memoryview(response.data)
        for name, datatype, shape, size, place in response.outputs:
            if place is None:
                outputs.append(OutputTensor(name, datatype, shape, view[position : position + size]))
                position += size
            else:
                outputs.append(OutputTensor(name, datatype, shape, next(buffers)))
        error = None if response.error is None else error_of(response.error)
        sink, _, resend = pending
        is_abandoned = number in self._abandoned
        if response.final:
            self._abandoned.discard(number)
        if response.is_reroute and resend is not None and not is_abandoned:
            error = self._submit_again(number, sink, *resend)
            if error is None:
                return
        if response.is_rejection and error is not None and isinstance(sink, RejectableSink):
            sink.reject(error)
            return
        of = response.model_name, response.model_version, response.request_id
        try:
            sink.send(InferResponse(*of, outputs, response.parameters or NO_PARAMETERS, error), response.final)
        except Exception as problem:  # noqa: BLE001 - a sink may raise anything; it is logged
            self._on_sink_failed(number, sink, problem, of)

    def _on_sink_failed(self, number: int, sink: Sink, error: Exception, of: tuple[str, int, str]) -> None:
        """A response cannot be passed on: end the request with an error, and have the owner cancel it."""
        end_failed_sink(sink, error, of)
        self.cancel(number)
        self._pending.pop(number, None)

    def _submit_again(
        self, number: int, sink: Sink, request: InferRequest, arrival: TracedArrival | None
    ) -> NaiadError | None:
        """Send a request to the version that serves now; why that is not possible."""
        self._routes.pop((request.model_name, request.model_version), None)
        try:
            self._submit(number, request, sink, arrival)
        except NaiadError as error:
            return without_frames(error)
        return None

    def _placed(self, places: Sequence[tuple[int, int]], sizes: Sequence[int], token: int) -> list[Buffer]:
        """The bytes of outputs in guests' segments: copied if they are few, else borrowed until they are dropped."""
        buffers: list[Buffer] = []
        if token == _NO_TOKEN:
            return buffers
        if sum(sizes) <= COPY_LIMIT:
            for (segment, offset), size in zip(places, sizes, strict=True):
                buffers.append(bytes(self._segments[segment][offset : offset + size]))
            self._release(token)
            return buffers
        tracked = []
        remaining = len(places)

        def on_dropped(_: object) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                self._references.pop(token, None)
                if threading.get_ident() == self._thread:  # nearly always; waking the loop takes two system calls
                    self._release(token)
                else:
                    self._loop.call_soon_threadsafe(self._release, token)

        for (segment, offset), size in zip(places, sizes, strict=True):
            view, reference = track(self._segments[segment], offset, size, on_dropped)
            buffers.append(view)
            tracked.append(reference)
        self._references[token] = tracked
        return buffers

    def _release(self, token: int) -> None:
        if self._link is not None:
            self._link.send_lazily(wire.frame(FrameKind.RELEASE_OUTPUTS, NUMBER.pack(token)))


class _TimedSink:
    """Passes on the responses to a traced request, and reports to the owner when the connection took them."""

    __slots__ = ("_number", "_report", "_sink")

    def __init__(self, number: int, sink: Sink, report: Callable[[bytes], None]) -> None:
        self._number = number
        self._sink = sink
        self._report = report

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """See `Sink.send`."""
        began = time.monotonic_ns()
        self._sink.send(response, final)
        times = TRACED_SENDING.pack(self._number, began, time.monotonic_ns(), FINAL if final else 0)
        self._report(wire.frame(FrameKind.TRACED_SENDING, times))


def _is_plain(request: InferRequest) -> bool:
    """Whether a request without parameters has nothing that a short request has no place for."""
    return not (
        request.correlation_id
        or isinstance(request.correlation_id, str)
        or request.flags
        or request.priority
        or request.timeout_us
        or any(tensor.strings is not None for tensor in request.inputs)
    )


def _joined(buffers: Sequence[Buffer], template: _KnownTemplate) -> bytes:
    """The bytes of the inputs, each at its offset."""
    block = bytearray(template.size)
    for data, offset in zip(buffers, template.offsets, strict=True):
        block[offset : offset + len(data)] = data
    return bytes(block)


def _full_request(
    number: int,
    template: _KnownTemplate,
    request: InferRequest,
    place: int,
    data: bytes,
    arrival: TracedArrival | None,
    regions: RegionUse | None,
) -> FullRequest:
    return FullRequest(
        number,
        template.number,
        request.request_id,
        dict(request.parameters),
        request.correlation_id,
        request.flags,
        request.priority,
        request.timeout_us,
        tuple([tensor.strings for tensor in request.inputs]),
        place,
        data,
        dict(request.propagated),
        arrival,
        regions,
    )
