"""Requests to the models of another process of the server, over the link to it, and the responses to them.

The other end is `request_session.RequestSession`. Responses and commands are passed on in the order of their arrival;
while a call blocks (`blocking`), they wait. What must not wait for that is taken in at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import orjson
from naiad_stub import wire
from naiad_stub.memo import size_of
from naiad_stub.segment import Segment

from naiad.core import clock
from naiad.core.errors import NaiadError, NotReadyError, fresh, unexpected_error, without_frames
from naiad.core.turns import SHARE_SECONDS, turns_of
from naiad.engine.open_request import Events, OpenRequest
from naiad.guests.memory.instance import COPY_LIMIT
from naiad.guests.memory.tracking import track
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE, InputCopy, UnsentFrames
from naiad.guests.worker import Worker
from naiad.protocol.datatypes import Datatype
from naiad.protocol.delivery import end_failed_sink, reject_sink
from naiad.protocol.inference import (
    NO_PARAMETERS,
    Buffer,
    InferRequest,
    InferResponse,
    OutputTensor,
    RejectableSink,
    Sink,
    Trace,
)
from naiad.protocol.metadata import ModelMetadata
from naiad.server.processes.input_part import InputPart
from naiad.server.processes.link import LONG_FRAME, Link, Payload
from naiad.server.processes.messages import (
    COMPUTED,
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
    TRACE,
    TRACED_SENDING,
    FrameKind,
    FullRequest,
    FullResponse,
    Origin,
    PartAnnouncement,
    RegionUse,
    RequestTemplate,
    ResponseLayout,
    SegmentAnnouncement,
    TemplateInput,
    VersionRoute,
    error_of,
    input_offsets,
    pack,
    pack_before,
    unpack,
)
from naiad.server.processes.own_ensembles import OwnEnsemble
from naiad.server.processes.own_replicas import OwnReplica
from naiad.server.processes.region_use import split_regions

logger = logging.getLogger("naiad.frontends")

_LARGEST_NUMBER = 0xFFFFFFFF  # of a request
_MAX_TEMPLATES = 4096
_MAX_TEMPLATE_BYTES = 1 << 20  # bytes of the names in templates, of tensors that the model may not have
_NO_TOKEN = 0
_UNKNOWN_ROUTE = VersionRoute(
    0,
    is_decoupled=False,
    metadata=ModelMetadata(name="", versions=(), platform="", inputs=(), outputs=()),
    config={},
    inputs=None,
)
_GIVEN = ""  # in place of the name of a model whose route the caller has found: no model has this name


class _KnownTemplate(NamedTuple):
    """A template that the other process knows."""

    number: int
    sizes: list[int]  # bytes of each input
    offsets: tuple[int, ...]  # where each begins
    size: int  # bytes of all together
    is_dense: bool  # no gaps are between them
    has_no_strings: bool = False  # no request with the layout key that it was found by has counted strings


# A request, its origin, and the number of the load that it was sent to: if that is gone when the other process reads
# the request, it is sent once more. Plain, since creating a named tuple takes a quarter of a microsecond.
_SentRequest: TypeAlias = "tuple[OpenRequest, Origin | None, int]"


class HeldCounts(NamedTuple):
    """How much a process holds at a moment."""

    requests: int  # without their last response
    copied: int  # those of them whose inputs are still copied, or that follow such a request
    abandoned: int  # those of them whose further responses are dropped
    routes: int  # versions that requests can be sent to without asking the other process
    templates: int  # of requests, and layout keys that they are found by
    layouts: int  # of responses
    segments: int  # of guests that are mapped
    input_bytes: int  # in the parts of segments


class _CopiedRequest:
    """A request that is sent once its inputs have been copied to a part, or one of a sequence that is to follow it."""

    __slots__ = ("known", "later", "opened", "origin", "part", "place")

    def __init__(
        self,
        opened: OpenRequest,
        origin: Origin | None,
        known: KnownRoute,
        part: InputPart | None,
        place: int,
    ) -> None:
        self.known = known  # the route that was known when it came
        self.opened = opened
        self.origin = origin
        self.part = part  # where its inputs are; None if they were not copied
        self.place = place  # where they begin there
        self.later: list[Callable[[], None]] = []  # what is to be sent after it


class KnownRoute:
    """A route, its part of the segment, the templates of its requests by layout key, and what executes them here."""

    __slots__ = ("part", "replica", "route", "templates")

    def __init__(self, route: VersionRoute, part: InputPart | None, replica: OwnReplica | OwnEnsemble | None) -> None:
        self.route = route
        self.part = part
        self.replica = replica
        self.templates: dict[Hashable, _KnownTemplate] = {}


class RequestLink:
    """Requests to another process, after `connect`. Implements `Holder`: a request's key is its number on the link."""

    def __init__(
        self,
        find_route: Callable[[str, int], KnownRoute] | None = None,
        on_command: Callable[[int, Any], None] = lambda *_: None,
        take_other: Callable[[int, Payload], bool] = lambda *_: False,
        send_elsewhere: Callable[[OpenRequest, int], None] | None = None,
    ) -> None:
        """*find_route* finds a route by name and version, and adds it to `routes`; None if requests have theirs.

        *on_command* gets kind and content of messages that do not concern requests, in order; *take_other* gets kind
        and payload of such a message before, and says whether it was handled at once. *send_elsewhere* gets a request
        and the number of its version's load, which the other process does not have any more, or has no idle instance of
        for a call; None to send it there again.
        """
        # Of requests to a name and version, as far as known; dropped when they may have changed.
        self.routes: dict[tuple[str, int], KnownRoute] = {}
        self.route_changes = 0  # how often they were dropped
        self.blocking = 0  # calls to the other process that block now: frontends expect no response meanwhile
        self._find_route = find_route
        self._on_command = on_command
        self._take_other = take_other
        self._send_elsewhere = send_elsewhere
        # Finds the guest of an instance there, by the number of the version's load and the instance's name, to look for
        # deadlocks; None where that is not done.
        self.find_guest: Callable[[int, str], Worker | None] | None = None
        self._submitted = self._submitted_before = 0  # requests, until now and until `trim` was called last
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._parts: dict[int, InputPart] = {}  # by the number of the segment of inputs
        self._segments_of_loads: dict[int, int] = {}  # numbers in `_parts`
        self._segments: dict[int, memoryview] = {}
        self._layouts: dict[int, ResponseLayout] = {}
        self._sent: dict[int, _SentRequest] = {}
        self._counts: Counter[int] = Counter()  # of `_sent`, by load
        self._copied: dict[int, _CopiedRequest] = {}  # those of `_sent` that the other process does not know yet
        self._unsent = UnsentFrames(self._loop, self._on_copied, self._on_copy_failed)
        self._numbers = itertools.count(1)
        self._template_numbers = itertools.count(1)
        self._template_count = self._template_bytes = 0
        self._deferred: deque[tuple[int, Payload]] = deque()  # responses and commands, in the order of their arrival
        self._turns = turns_of(self._loop)
        self._is_resuming = False  # `on_received` is called in a later turn
        self._references: dict[int, Any] = {}  # to borrowed outputs, by token
        self._thread = threading.get_ident()

    def connect(self, link: Link) -> None:
        self._link = link

    @property
    def request_count(self) -> int:
        return len(self._sent)

    def count_of(self, load: int) -> int:
        return self._counts[load]

    @property
    def held(self) -> HeldCounts:
        """What it holds of requests, and of the other process's memory."""
        return HeldCounts(
            requests=len(self._sent),
            copied=len(self._copied),
            abandoned=sum(opened.drops_responses for opened, _, _ in self._sent.values()),
            routes=len(self.routes),
            templates=self._template_count,
            layouts=len(self._layouts),
            segments=len(self._segments),
            input_bytes=sum(part.in_use for part in self._parts.values()),
        )

    def open_link(self) -> Link:
        """The link; NotReadyError if the other process has exited."""
        if self._link is None or not self._link.is_open:
            raise NotReadyError("Server exiting")
        return self._link

    def send(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)

    def part_of(self, number: int | None) -> InputPart | None:
        """This process's part of a segment of inputs, if it has one."""
        return None if number is None else self._parts.get(number)

    def route_to(self, route: VersionRoute) -> KnownRoute:
        """A route that the caller has found, with what is known of it here."""
        key = _GIVEN, route.number
        known = self.routes.get(key)
        if known is None:
            part = self.part_of(self._segments_of_loads.get(route.number))
            known = self.routes[key] = KnownRoute(route, part, None)
        return known

    def close(self, error: NaiadError) -> None:
        """The other process has exited: free what it had, and end its requests with *error*."""
        self._link = None
        sent, self._sent = self._sent, {}
        self._counts.clear()
        self._copied.clear()
        self._segments.clear()
        self.routes.clear()
        while self._parts:
            self._parts.popitem()[1].close()
        for opened, _, _ in sent.values():
            opened.fail(error)

    def forget_routes(self) -> None:
        """Look for routes again: they may be others."""
        if self._template_count:
            self.forget_templates()
        self.routes.clear()

    def forget_routes_to(self, load: int) -> None:
        """Look for the routes to a loaded version again. Others stay: a call of a guest without one goes elsewhere."""
        for key in [key for key, known in self.routes.items() if known.route.number == load]:
            del self.routes[key]

    # -- requests -------------------------------------------------------------------------------------------------

    def submit(self, opened: OpenRequest, origin: Origin | None = None, known: KnownRoute | None = None) -> None:
        """Send a request; what only the other process can reject is answered to its sink. See `EngineFacade.submit`.

        *origin* is what the other process has to know of it beside its content; without *known*, its route is found.
        """
        number = next(self._numbers) & _LARGEST_NUMBER
        request = opened.request
        opened.key, opened.holder, opened.instance = number, self, ""
        self._submitted += 1
        try:
            self._submit(opened, origin, known or self._route_of(request))
        except NaiadError:
            raise
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            waiting = self._copied.pop(number, None)
            if waiting is not None:
                self._remove(number)
                self._free_copied(waiting)
            problem = unexpected_error(f"submit the request to '{request.model_name}'", error)
        else:
            # What was done with it where it was before, the other process has to know, too.
            if opened.is_cancelled:
                self.cancel(opened)
            if opened.drops_responses:
                self.drop_responses(opened)
            return
        raise fresh(problem)  # outside the handler: as its context, the error would keep the request's tensors

    def _submit(
        self,
        opened: OpenRequest,
        origin: Origin | None,
        known: KnownRoute,
        copied: _CopiedRequest | None = None,
    ) -> None:
        """Send a request, or let it wait; with *copied*, it has waited."""
        link = self.open_link()
        number, request = opened.key, opened.request
        inputs, regions = request.inputs, None
        if request.device is not None:
            inputs, regions = split_regions(request, request.device)
        buffers = [tensor.data for tensor in inputs]
        sizes = list(map(len, buffers))
        template = None if request.layout_key is None or regions else known.templates.get(request.layout_key)
        if template is None or template.sizes != sizes:
            template = self._template(known, request, sizes)
        place = NO_PLACE
        copies: list[InputCopy] | None = None
        if template.size > wire.INLINE_LIMIT and known.part is not None:
            if copied is not None and copied.part is known.part:
                place = copied.place
            else:
                if template.size > COPIED_AT_ONCE:
                    copies = []
                place = known.part.place(inputs, template.offsets, template.size, copies)
        if copied is not None:  # its route may have changed meanwhile, also to one that takes a copy of its own
            self._remove(number)
        # Requests of a sequence keep their order.
        if copies or (self._copied and request.correlation_id and copied is None):
            part = known.part if place >= 0 else None
            self._put(_CopiedRequest(opened, origin, known, part, place), copies)
            return
        try:
            parts = [] if place >= 0 else _parts_of(buffers, template)
            data_size = 0 if place >= 0 else template.size
            self._add(opened, origin, known)
            if request.trace is not None:
                context = request.trace.context
                link.send(wire.frame(FrameKind.TRACE, TRACE.pack(context is not None) + (context or b"")))
            if (
                origin is None
                and not request.parameters
                and regions is None
                # Requests of ensembles and models may have the same layout key and differ in any of these.
                and request.correlation_id == 0
                and not (request.flags or request.priority or request.timeout_us)
                and (template.has_no_strings or all(tensor.strings is None for tensor in inputs))
            ):
                request_id = request.request_id.encode("utf-8", "surrogatepass") if request.request_id else b""
                propagated = orjson.dumps(dict(request.propagated)) if request.propagated else b""
                id_size, context_size = len(request_id), len(propagated)
                if id_size <= MAX_SHORT_TEXT and context_size <= MAX_SHORT_TEXT:
                    size = SHORT_REQUEST.size + id_size + context_size + data_size
                    head = SHORT_REQUEST_FRAME.pack(
                        size, FrameKind.SHORT_REQUEST, 0, number, template.number, place, id_size, context_size
                    )
                    parts = [head, request_id, propagated, *parts]
                    if size <= LONG_FRAME:
                        link.send(b"".join(parts))
                    else:
                        link.send_parts(parts)
                    return
            message = _full_request(number, template, request, place, data_size, origin, regions)
            link.send_parts([pack_before(FrameKind.REQUEST, message, data_size), *parts])
        except BaseException:
            self._remove(number)
            if place >= 0 and copied is None:
                assert known.part is not None
                known.part.free(place)
            raise

    def _route_of(self, request: InferRequest) -> KnownRoute:
        key = request.model_name, request.model_version
        known = self.routes.get(key)
        if known is None:
            assert self._find_route is not None
            known = self._find_route(*key)
        return known

    def _route_again(
        self, request: InferRequest, origin: Origin | None, before: KnownRoute | None = None
    ) -> KnownRoute:
        """The route of a request that had one *before*, which may have changed."""
        if self._find_route is None:
            assert before is not None
            return self.route_to(before.route)
        return self._route_of(request) if origin is None or origin.caller is None else self.route_of_call(request)

    def route_of_call(self, request: InferRequest) -> KnownRoute:
        """The route of a call, which the other process looks for: one without a part if none is known here."""
        key = request.model_name, request.model_version
        return self.routes.get(key) or KnownRoute(_UNKNOWN_ROUTE, None, None)

    def _add(self, opened: OpenRequest, origin: Origin | None, known: KnownRoute) -> None:
        load = known.route.number
        self._sent[opened.key] = opened, origin, load
        self._counts[load] += 1

    def _remove(self, number: int) -> OpenRequest | None:
        sent = self._sent.pop(number, None)
        if sent is None:
            return None
        opened, _, load = sent
        self._counts[load] -= 1
        if not self._counts[load]:
            del self._counts[load]
        return opened

    def _put(self, waiting: _CopiedRequest, copies: list[InputCopy] | None = None) -> None:
        """Send a request behind those that wait, once *copies* are made."""
        opened = waiting.opened
        self._add(opened, waiting.origin, waiting.known)
        self._copied[opened.key] = waiting
        self._unsent.put(b"", opened.key, copies)

    def _on_copied(self, _: bytes, number: int) -> None:
        """Send a request that has waited. Its route and its template may have changed meanwhile."""
        waiting = self._copied.pop(number, None)
        if waiting is None:
            return  # the other process has exited
        request, part = waiting.opened.request, waiting.part
        is_sent, known = False, None
        try:
            known = self._route_again(request, waiting.origin, waiting.known)
            self._submit(waiting.opened, waiting.origin, known, waiting)
            is_sent = True
        except NaiadError as error:
            self._reject_copied(waiting, error)
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            self._reject_copied(waiting, unexpected_error(f"submit the request to '{request.model_name}'", error))
        for act in waiting.later:
            act()
        if not is_sent or known is None or known.part is not part:
            self._free_copied(waiting)

    def _on_copy_failed(self, number: int, error: Exception) -> None:
        """The inputs of a request that waits cannot be copied."""
        waiting = self._copied.pop(number, None)
        if waiting is None:
            return
        name = waiting.opened.request.model_name
        logger.error("cannot copy the inputs of a request to '%s'", name, exc_info=error)
        self._reject_copied(waiting, unexpected_error(f"copy the inputs of the request to '{name}'", error))
        self._free_copied(waiting)

    def _reject_copied(self, waiting: _CopiedRequest, error: NaiadError) -> None:
        self._remove(waiting.opened.key)
        waiting.opened.reject(error)

    def _free_copied(self, waiting: _CopiedRequest) -> None:
        """Free the inputs of a request that was not sent with them, if their part is still there."""
        if waiting.part is not None and waiting.part in self._parts.values():
            waiting.part.free(waiting.place)

    def _has(self, opened: OpenRequest) -> bool:
        sent = self._sent.get(opened.key)
        return sent is not None and sent[0] is opened

    def cancel(self, opened: OpenRequest) -> None:
        if opened.key in self._copied:
            self._copied[opened.key].later.append(partial(self.cancel, opened))
        elif self._has(opened):
            opened.is_cancelled = True
            self.send(wire.frame(FrameKind.CANCEL, NUMBER.pack(opened.key)))

    def drop_responses(self, opened: OpenRequest) -> None:
        """See `Holder`. Responses that are on their way are dropped here, as those after them are there."""
        if opened.key in self._copied:
            self._copied[opened.key].later.append(partial(self.drop_responses, opened))
        elif self._has(opened):
            opened.drops_responses = True
            self.send(wire.frame(FrameKind.DROP_RESPONSES, NUMBER.pack(opened.key)))

    def confirm_sent(self, opened: OpenRequest, count: int) -> None:
        if self._has(opened):
            self.send(wire.frame(FrameKind.CONFIRM_SENT, CONFIRM_SENT.pack(opened.key, count)))

    def reject_waiting(self, opened: OpenRequest, error: NaiadError) -> None:
        """Nothing: see `is_waiting`."""

    def is_waiting(self, opened: OpenRequest) -> bool:  # noqa: ARG002 - see `Holder`
        """False: calls alone are asked, and an idle instance has them, or they come back."""
        return False

    def waits_of(self, opened: OpenRequest) -> Events:
        """See `Holder`. A request of which it is not known which instance has it is not looked at."""
        if self.find_guest is None or not opened.instance or not self._has(opened):
            return ()
        guest = self.find_guest(self._sent[opened.key][2], opened.instance)
        return () if guest is None else ((guest,),)

    def trace_of(self, number: int) -> Trace | None:
        """The trace of a request without its last response; None without one."""
        sent = self._sent.get(number)
        return None if sent is None else sent[0].request.trace

    # -- templates ------------------------------------------------------------------------------------------------

    def _template(self, known: KnownRoute, request: InferRequest, sizes: list[int]) -> _KnownTemplate:
        """The template of a request; a new one is announced to the other process."""
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
                self.forget_templates()
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
                None if known.part is None else known.part.number,
            )
            self.send(pack(FrameKind.TEMPLATE, message))
            known.templates[signature] = template
        if request.layout_key is not None and request.device is None:
            if all(tensor.datatype is not Datatype.BYTES for tensor in inputs):  # whose strings may have been counted
                template = template._replace(has_no_strings=True)
            known.templates[request.layout_key] = template
            self._template_count += 1
        return template

    def forget_templates(self) -> None:
        """Announce templates again: the other process forgets them, too."""
        for known in self.routes.values():
            known.templates.clear()
        self._template_count = self._template_bytes = 0
        self.send(wire.frame(FrameKind.FORGET_TEMPLATES, b""))

    def trim(self) -> bool:
        """Return free pages of a part to the system after a pause in traffic; whether pages are left.

        Under load there are moments without a request in flight, too: pages that went back then would be cleared again
        for the next one (of 1 MB: 4.8 page faults). Called periodically, and again in a later turn of the loop if pages
        are left after a few milliseconds.
        """
        if self._template_bytes >= _MAX_TEMPLATE_BYTES:  # one of them has the names of a whole request
            self.forget_templates()
        is_idle = not self._sent and self._submitted == self._submitted_before
        self._submitted_before = self._submitted
        return is_idle and any(part.trim() for part in self._parts.values())

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: Payload) -> None:
        """Handle a frame of the other process; while a call blocks, only what cannot call back into a frontend."""
        try:
            if kind == FrameKind.RESPONSE and not self.blocking and not self._deferred:  # most frames
                self._on_response(payload)
            else:
                self._take_in(kind, payload)
        except Exception:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of another process")

    def _take_in(self, kind: int, payload: Payload) -> None:
        if kind == FrameKind.LAYOUT:
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
            self.forget_routes()
            self.route_changes += 1
        elif kind == FrameKind.FORGET_PART:
            self._forget_part(*NUMBER.unpack(payload))
        elif kind == FrameKind.TRACED:
            self._on_traced(*NUMBER.unpack(payload))
        elif kind == FrameKind.TAKEN:
            number, instance = unpack(payload)
            if number in self._sent:
                self._sent[number][0].instance = instance
        elif self._take_other(kind, payload):
            pass
        elif self.blocking or self._deferred:
            self._deferred.append((kind, payload))
        else:
            self._handle(kind, payload)

    def on_received(self) -> None:
        """Pass on what has waited, for a share of the turn. While a call blocks, frontends expect no response."""
        deferred = self._deferred
        deadline = 0.0
        while deferred and not self.blocking:
            kind, payload = deferred.popleft()
            try:
                self._handle(kind, payload)
            except Exception:  # those after this one must still be handled
                logger.exception("cannot handle a message of another process")
            if deferred:
                now = clock.perf_counter()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline:
                    break
        self.resume_later()

    def resume_later(self) -> None:
        """Pass on in a later turn what has waited for a call."""
        if self._deferred and not self.blocking and not self._is_resuming:
            self._is_resuming = True
            self._turns.defer(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        self.on_received()

    def _handle(self, kind: int, payload: Payload) -> None:
        if kind == FrameKind.RESPONSE:
            self._on_response(payload)
        elif kind == FrameKind.FULL_RESPONSE:
            self._on_full_response(unpack(payload), payload)
        elif kind == FrameKind.COMPUTED:
            number, *times = COMPUTED.unpack(payload)
            trace = self.trace_of(number)
            if trace is not None:
                trace.on_computed(*times)
        elif kind == FrameKind.FORGET_LAYOUTS:
            (first,) = NUMBER.unpack(payload)
            self._layouts = {number: layout for number, layout in self._layouts.items() if number >= first}
        elif kind == FrameKind.FORGET_SEGMENT:
            del self._segments[NUMBER.unpack(payload)[0]]  # unmapped with its last view
        else:
            self._on_command(kind, unpack(payload))

    def _on_segment(self, announced: SegmentAnnouncement) -> None:
        assert self._link is not None
        descriptor = self._link.descriptors.popleft()
        self._segments[announced.number] = Segment(descriptor, announced.capacity).view
        os.close(descriptor)

    def _on_part(self, announced: PartAnnouncement) -> None:
        assert self._link is not None
        descriptor = self._link.descriptors.popleft()
        part = self._parts[announced.number] = InputPart(announced.number, descriptor, announced.start, announced.size)
        os.close(descriptor)
        self._segments_of_loads[announced.load] = announced.number
        known = self.routes.get((_GIVEN, announced.load))
        if known is not None:
            known.part = part
            known.templates.clear()  # they say where inputs are

    def _forget_part(self, number: int) -> None:
        part = self._parts.pop(number)
        part.close()
        for load in [load for load, segment in self._segments_of_loads.items() if segment == number]:
            del self._segments_of_loads[load]
        for key in [key for key, known in self.routes.items() if known.part is part]:
            del self.routes[key]  # with its templates, which say where inputs are

    # -- responses ------------------------------------------------------------------------------------------------

    def _on_traced(self, number: int) -> None:
        """The coordinator traces a request, whose responses follow."""
        if number in self._sent:
            opened = self._sent[number][0]
            opened.sink = _TimedSink(number, opened.sink, self.send)

    def _on_response(self, payload: Payload) -> None:
        number, layout_number, flags, token = RESPONSE.unpack_from(payload)
        final = bool(flags & FINAL)
        opened = self._find(number, final=final)
        position = RESPONSE.size
        if opened is None or opened.drops_responses:
            self._drop(opened, _NO_TOKEN if flags & NO_RESPONSE else token, final=final)
            return
        if flags & NO_RESPONSE:
            self._pass_on(opened, None, final=True)
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
        request_id, name, version = opened.request.request_id, layout.model_name, layout.model_version
        response = InferResponse(name, version, request_id, outputs, NO_PARAMETERS, None, layout)
        self._pass_on(opened, response, final=final)

    def _find(self, number: int, *, final: bool) -> OpenRequest | None:
        """The request that a response is for; forget it with its last one."""
        if final:
            return self._remove(number)
        sent = self._sent.get(number)
        return None if sent is None else sent[0]

    def _drop(self, opened: OpenRequest | None, token: int, *, final: bool) -> None:
        """Free the memory of a response that is discarded, and pass on the end of its request."""
        if token != _NO_TOKEN:
            self._release(token)
        if final and opened is not None:
            self._pass_on(opened, None, final=True)

    def _on_full_response(self, response: FullResponse, payload: Payload) -> None:
        _, origin, load = self._sent.get(response.number, (None, None, 0))
        opened = self._find(response.number, final=response.final)
        if opened is None or (opened.drops_responses and response.error is None):
            self._drop(opened, response.token, final=response.final)
            return
        outputs = []
        position = 0
        placed = [(place, size) for _, _, _, size, place in response.outputs if place is not None]
        buffers = iter(self._placed([place for place, _ in placed], [size for _, size in placed], response.token))
        view = memoryview(payload)[len(payload) - response.size :]
        for name, datatype, shape, size, place in response.outputs:
            if place is None:
                outputs.append(OutputTensor(name, datatype, shape, view[position : position + size]))
                position += size
            else:
                outputs.append(OutputTensor(name, datatype, shape, next(buffers)))
        error = None if response.error is None else error_of(response.error)
        if response.is_reroute and not opened.drops_responses:
            if self._send_elsewhere is not None:
                self._send_elsewhere(opened, load)
                return
            error = self._submit_again(opened, origin)
            if error is None:
                return
        if response.is_rejection and error is not None and isinstance(opened.sink, RejectableSink):
            opened.reject(error)
            return
        of = response.model_name, response.model_version, response.request_id
        read = InferResponse(*of, outputs, response.parameters or NO_PARAMETERS, error)
        self._pass_on(opened, read, final=response.final)

    def _pass_on(self, opened: OpenRequest, response: InferResponse | None, *, final: bool) -> None:
        """Send a response to a sink. If that fails, end it with an error, and cancel the request there."""
        try:
            opened.sink.send(response, final)
        except Exception as error:  # noqa: BLE001 - a sink may raise anything; it is logged
            of = response or opened.request
            end_failed_sink(opened.sink, error, (of.model_name, of.model_version, of.request_id))
            self.cancel(opened)
            self.drop_responses(opened)
            self._remove(opened.key)
            final = True
        if final:
            opened.release()

    def _submit_again(self, opened: OpenRequest, origin: Origin | None) -> NaiadError | None:
        """Send a request to the version that serves now; why that is not possible."""
        request = opened.request
        self.routes.pop((request.model_name, request.model_version), None)
        try:
            self.submit(opened, origin, self._route_again(request, origin))
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
    """Passes on the responses to a traced request, and reports to the coordinator when the connection took them."""

    __slots__ = ("_number", "_report", "_sink")

    def __init__(self, number: int, sink: Sink, report: Callable[[bytes], None]) -> None:
        self._number = number
        self._sink = sink
        self._report = report

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        began = clock.monotonic_ns()
        self._sink.send(response, final)
        self._report_sent(began, final=final)

    def reject(self, error: NaiadError) -> None:
        began = clock.monotonic_ns()
        reject_sink(self._sink, error)
        self._report_sent(began, final=True)

    def _report_sent(self, began: int, *, final: bool) -> None:
        times = TRACED_SENDING.pack(self._number, began, clock.monotonic_ns(), FINAL if final else 0)
        self._report(wire.frame(FrameKind.TRACED_SENDING, times))


def _parts_of(buffers: list[Buffer], template: _KnownTemplate) -> list[Buffer]:
    """The bytes of the inputs, and those between them, so that each is at its offset."""
    if template.is_dense:
        return buffers
    parts: list[Buffer] = []
    end = 0
    for data, offset in zip(buffers, template.offsets, strict=True):
        parts += bytes(offset - end), data
        end = offset + len(data)
    parts.append(bytes(template.size - end))
    return parts


def _full_request(
    number: int,
    template: _KnownTemplate,
    request: InferRequest,
    place: int,
    size: int,
    origin: Origin | None,
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
        size,
        dict(request.propagated),
        origin,
        regions,
    )
