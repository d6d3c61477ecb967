"""Requests to the models of another process of the server, over the link to it, and the responses to them.

The other end is `request_session.RequestSession`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from naiad_stub import wire
from naiad_stub.memo import size_of
from naiad_stub.segment import Segment

from naiad.core.errors import Code, NaiadError, NotReadyError, fresh, unexpected_error
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.served import Target
from naiad.guests.memory.instance import COPY_LIMIT
from naiad.guests.memory.tracking import track
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE, InputCopy, UnsentFrames
from naiad.guests.worker import Worker
from naiad.protocol.datatypes import Datatype
from naiad.protocol.delivery import end_failed_sink
from naiad.protocol.inference import (
    NO_PARAMETERS,
    Buffer,
    InferRequest,
    InferResponse,
    OutputTensor,
    Trace,
)
from naiad.server.processes.calls import RemoteCalls
from naiad.server.processes.input_part import InputPart
from naiad.server.processes.link import Link, Payload
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
    FrameKind,
    FullRequest,
    FullResponse,
    RequestTemplate,
    ResponseLayout,
    TemplateInput,
    VersionRoute,
    input_offsets,
    pack_before,
    scheduling_of,
    unpack,
)
from naiad.server.processes.own_replicas import OwnReplica
from naiad.server.processes.region_use import split_regions
from naiad.server.processes.traces import TimedSink

logger = logging.getLogger("naiad.frontends")

_LARGEST_NUMBER = 0xFFFFFFFF  # of a request
_MAX_TEMPLATES = 4096
_MAX_TEMPLATE_BYTES = 1 << 20  # bytes of the names in templates, of tensors that the model may not have
_NO_TOKEN = 0


class _KnownTemplate(NamedTuple):
    """A template that the other process knows."""

    number: int
    sizes: list[int]  # bytes of each input
    offsets: tuple[int, ...]  # where each begins
    size: int  # bytes of all together
    is_dense: bool  # no gaps are between them
    has_no_strings: bool = False  # no request with the layout key that it was found by has counted strings


class _CopiedRequest(NamedTuple):
    """A request that is sent once its inputs have been copied to a part, or one of a sequence that is to follow it."""

    opened: OpenRequest
    known: KnownRoute  # the route that was known when it came
    part: InputPart | None  # where its inputs are; None if they were not copied
    place: int  # where they begin there


@dataclass(eq=False)
class KnownRoute:
    """What requests go to in the other process."""

    load: int  # the number of its load; 0 if the other process looks for it
    is_decoupled: bool
    part: InputPart | None = None  # this process's part of its segment of inputs
    replica: OwnReplica | None = None  # what executes requests to it here
    route: VersionRoute | None = None  # None where it was not found by a name
    target: Target | None = None  # what steps of ensembles go to here; None before the first one
    templates: dict[Hashable, _KnownTemplate] = field(default_factory=dict)  # of requests, by layout key


class RequestLink:
    """Requests to another process. Implements `Holder`: a request's key is its number on the link."""

    def __init__(
        self,
        link: Link,
        calls: RemoteCalls,
        send_elsewhere: Callable[[OpenRequest], None],
        find_route: Callable[[OpenRequest], KnownRoute] | None = None,
    ) -> None:
        """*send_elsewhere* gets a request that was not accepted.

        The other process does not have its version's load any more, or has no idle instance of it for a call.
        *find_route* finds the route of a request, which may have changed; None if routes are not found by names.
        """
        # As far as known, by the name and version in requests, or by the number of the load; dropped when they may have
        # changed.
        self.routes: dict[tuple[str, int] | int, KnownRoute] = {}
        self.route_changes = 0  # how often they were dropped
        self._find_route = find_route
        self._send_elsewhere = send_elsewhere
        # Finds the guest of an instance there, by the number of the version's load and the instance's name, to look for
        # deadlocks; None where that is not done.
        self.find_guest: Callable[[int, str], Worker | None] | None = None
        self._has_worked = False  # whether there was a request since `trim` was called last
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._notify = calls.notify
        self._parts: dict[int, InputPart] = {}  # by the number of the segment of inputs
        self._segments: dict[int, memoryview] = {}
        self._layouts: dict[int, ResponseLayout] = {}
        # By number. If a request's load is gone when the other process reads it, it is sent once more.
        self._sent: dict[int, OpenRequest] = {}
        self._counts: Counter[int] = Counter()  # of `_sent`, by load
        self._copied: dict[int, _CopiedRequest] = {}  # those of `_sent` that the other process does not know yet
        self._unsent = UnsentFrames(self._loop, self._on_copied, self._on_copy_failed)
        self._numbers = itertools.count(1)
        self._template_numbers = itertools.count()
        self._template_count = self._template_bytes = 0
        self._references: dict[int, Any] = {}  # to borrowed outputs, by token
        self.handlers = {
            FrameKind.RESPONSE: self._on_response,
            FrameKind.FULL_RESPONSE: self._on_full_response,
            FrameKind.INPUTS_FREE: self._on_inputs_free,
        }
        calls.services.update(
            {
                "layout": self._on_layout,
                "forget_layouts": self._layouts.clear,
                "segment": self._on_segment,
                "forget_segment": self._segments.__delitem__,  # unmapped with its last view
                "part": self._on_part,
                "forget_part": self._forget_part,
                "routes_changed": self._on_routes_changed,
                "taken": self._on_taken,
                "refused": self._on_refused,
                "rejected": self._on_rejected,
                "traced": self._on_traced,
                "computed": self._on_computed,
            }
        )

    @property
    def request_count(self) -> int:
        return len(self._sent)

    def count_of(self, load: int) -> int:
        return self._counts[load]

    def open_link(self) -> Link:
        """The link; NotReadyError if the other process has exited."""
        if not self._link.is_open:
            raise NotReadyError("Server exiting")
        return self._link

    def part_of(self, load: int) -> InputPart | None:
        """This process's part of the segment of inputs of a load, if it has one."""
        return next((part for part in self._parts.values() if part.load == load), None)

    def route_to(self, load: int, *, is_decoupled: bool) -> KnownRoute:
        """The route to a version that the caller has found."""
        known = self.routes.get(load)
        if known is None:
            known = self.routes[load] = KnownRoute(load, is_decoupled, self.part_of(load))
        return known

    def close(self, error: NaiadError) -> None:
        """The other process has exited: free what it had, and end its requests with *error*."""
        sent, self._sent = self._sent, {}
        self._counts.clear()
        self._copied.clear()
        self._segments.clear()
        self.routes.clear()
        while self._parts:
            self._parts.popitem()[1].close()
        for opened in sent.values():
            opened.fail(error)

    def forget_routes(self) -> None:
        """Look for routes again: they may be others."""
        if self._template_count:
            self.forget_templates()
        self.routes.clear()

    def _on_routes_changed(self) -> None:
        self.forget_routes()
        self.route_changes += 1

    def forget_routes_to(self, load: int) -> None:
        """Look for the routes to a loaded version again. Others stay: a call of a guest without one goes elsewhere."""
        for key in [key for key, known in self.routes.items() if known.load == load]:
            del self.routes[key]

    # -- requests -------------------------------------------------------------------------------------------------

    def send_request(self, opened: OpenRequest, known: KnownRoute) -> None:
        """Send a request; what only the other process can reject is answered to its sink. See `EngineFacade.submit`."""
        number = next(self._numbers) & _LARGEST_NUMBER
        request = opened.request
        opened.key, opened.holder, opened.instance = number, self, ""
        self._has_worked = True
        try:
            self._send(opened, known)
        except NaiadError:
            raise
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            problem = unexpected_error(f"submit the request to '{request.model_name}'", error)
        else:
            return
        raise fresh(problem)  # outside the handler: as its context, the error would keep the request's tensors

    def _send(self, opened: OpenRequest, known: KnownRoute, copied: _CopiedRequest | None = None) -> None:
        """Send a request, or let it wait; with *copied*, it has waited."""
        link = self.open_link()
        number, request = opened.key, opened.request
        inputs, regions = request.inputs, None
        if request.device is not None:
            inputs, regions = split_regions(request, request.device)
        buffers = [tensor.data for tensor in inputs]
        sizes = list(map(len, buffers))
        template = known.templates.get(request.layout_key)
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
            self._unsent.put(b"", number, copies)
            self._add(opened, known)
            self._copied[number] = _CopiedRequest(opened, known, known.part if place >= 0 else None, place)
            return
        try:
            parts = [] if place >= 0 else _parts_of(buffers, template)
            data_size = 0 if place >= 0 else template.size
            self._add(opened, known)
            head = self._short_head(opened, template, place, data_size)
            if head is None:
                message = FullRequest(
                    number,
                    template.number,
                    request.request_id,
                    dict(request.parameters),
                    scheduling_of(request),
                    tuple([tensor.strings for tensor in request.inputs]),
                    place,
                    data_size,
                    dict(request.propagated),
                    opened.origin,
                    opened.needs_idle,
                    request.trace is not None,
                    None if request.trace is None else request.trace.context,
                    regions,
                )
                head = pack_before(FrameKind.REQUEST, message, data_size)
            link.send_parts([head, *parts])
        except BaseException:
            self._remove(number)
            if place >= 0 and copied is None:
                assert known.part is not None
                known.part.free(place)
            raise
        # What was done with it where it was before, or while it waited, the other process has to know, too.
        if opened.is_cancelled:
            self.cancel_request(opened)
        if opened.drops_responses:
            self.drop_responses(opened)

    def _short_head(self, opened: OpenRequest, template: _KnownTemplate, place: int, size: int) -> bytes | None:
        """What a request's inputs of *size* bytes follow; None if it has more than a template and an id."""
        request = opened.request
        if (
            opened.origin is not None
            or opened.needs_idle
            or request.trace is not None
            or request.device is not None
            or request.parameters
            # Requests of ensembles and models may have the same layout key and differ in any of these.
            or request.correlation_id != 0
            or (request.flags or request.priority or request.timeout_us)
            or not (template.has_no_strings or all(tensor.strings is None for tensor in request.inputs))
        ):
            return None
        request_id = request.request_id.encode("utf-8", "surrogatepass") if request.request_id else b""
        context = orjson.dumps(dict(request.propagated)) if request.propagated else b""
        id_size, context_size = len(request_id), len(context)
        if id_size > MAX_SHORT_TEXT or context_size > MAX_SHORT_TEXT:
            return None
        size += SHORT_REQUEST.size + id_size + context_size
        head = SHORT_REQUEST_FRAME.pack(
            size, FrameKind.SHORT_REQUEST, 0, opened.key, template.number, place, id_size, context_size
        )
        return head + request_id + context if id_size or context_size else head

    def _add(self, opened: OpenRequest, known: KnownRoute) -> None:
        opened.load = load = known.load
        self._sent[opened.key] = opened
        self._counts[load] += 1

    def _remove(self, number: int) -> OpenRequest | None:
        opened = self._sent.pop(number, None)
        if opened is None:
            return None
        load = opened.load
        self._counts[load] -= 1
        if not self._counts[load]:
            del self._counts[load]
        return opened

    def _on_copied(self, _: bytes, number: int) -> None:
        """Send a request that has waited. Its route and its template may have changed meanwhile."""
        waiting = self._copied.pop(number, None)
        if waiting is None:
            return  # the other process has exited
        try:
            if self._find_route is None:
                known = self.route_to(waiting.known.load, is_decoupled=waiting.known.is_decoupled)
            else:
                known = self._find_route(waiting.opened)
            self._send(waiting.opened, known, waiting)
        except Exception as error:  # noqa: BLE001 - its client gets it, and the log if it is unexpected
            self._fail_copied(waiting, "submit", error)
            return
        if known.part is not waiting.part:
            self._free_copied(waiting)

    def _on_copy_failed(self, number: int, error: Exception) -> None:
        waiting = self._copied.pop(number, None)
        if waiting is not None:
            self._fail_copied(waiting, "copy the inputs of", error)

    def _fail_copied(self, waiting: _CopiedRequest, action: str, error: Exception) -> None:
        """Reject a request that has waited: its inputs cannot be copied, or it cannot be sent."""
        opened = waiting.opened
        name = opened.request.model_name
        if not isinstance(error, NaiadError):
            logger.error("cannot %s a request to '%s'", action, name, exc_info=error)
            error = unexpected_error(f"{action} the request to '{name}'", error)
        self._remove(opened.key)
        opened.reject(error)
        self._free_copied(waiting)

    def _free_copied(self, waiting: _CopiedRequest) -> None:
        """Free the inputs of a request that was not sent with them."""
        if waiting.part is not None:
            waiting.part.free(waiting.place)

    def _has(self, opened: OpenRequest) -> bool:
        return self._sent.get(opened.key) is opened

    def cancel_request(self, opened: OpenRequest) -> None:
        if self._has(opened):
            opened.is_cancelled = True
            if opened.key not in self._copied:  # else the other process is told when it knows the request
                self._notify("cancel", opened.key)

    def drop_responses(self, opened: OpenRequest) -> None:
        """See `Holder`. Responses that are on their way are dropped here, as those after them are there."""
        if self._has(opened):
            opened.drops_responses = True
            if opened.key not in self._copied:
                self._notify("drop_responses", opened.key)

    def confirm_responses(self, opened: OpenRequest, count: int) -> None:
        if self._has(opened):
            self._link.send(wire.frame(FrameKind.CONFIRM_SENT, CONFIRM_SENT.pack(opened.key, count)))

    def reject_waiting(self, opened: OpenRequest, error: NaiadError) -> None:
        """Nothing: see `is_waiting`."""

    def is_waiting(self, opened: OpenRequest) -> bool:  # noqa: ARG002 - see `Holder`
        """False: calls alone are asked, and an idle instance has them, or they come back."""
        return False

    def waits_of(self, opened: OpenRequest) -> Events:
        """See `Holder`. A request of which it is not known which instance has it is not looked at."""
        if self.find_guest is None or not opened.instance or not self._has(opened):
            return ()
        guest = self.find_guest(opened.load, opened.instance)
        return () if guest is None else ((guest,),)

    def trace_of(self, number: int) -> Trace | None:
        """The trace of a request without its last response; None without one."""
        opened = self._sent.get(number)
        return None if opened is None else opened.request.trace

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
            message = RequestTemplate(
                template.number,
                request.model_name,
                request.model_version,
                inputs,
                outputs,
                known.load,
                known.is_decoupled,
                None if known.part is None else known.part.number,
            )
            self._notify("template", message)
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
        self._notify("forget_templates")

    def trim(self) -> bool:
        """Return free pages of a part to the system after a pause in traffic; whether pages are left.

        Under load there are moments without a request in flight, too: pages that went back then would be cleared again
        for the next one (of 1 MB: 4.8 page faults). Called periodically, and again in a later turn of the loop if pages
        are left after a few milliseconds.
        """
        if self._template_bytes >= _MAX_TEMPLATE_BYTES:  # one of them has the names of a whole request
            self.forget_templates()
        is_idle = not self._sent and not self._has_worked
        self._has_worked = False
        return is_idle and any(part.trim() for part in self._parts.values())

    # -- what the other process announces -------------------------------------------------------------------------

    def _on_layout(self, layout: ResponseLayout) -> None:
        self._layouts[layout.number] = layout

    def _on_segment(self, descriptor: int, number: int, capacity: int) -> None:
        """Outputs may be in this segment of a guest: see `PLACE`."""
        self._segments[number] = Segment(descriptor, capacity).view
        os.close(descriptor)

    def _on_part(self, descriptor: int, number: int, start: int, size: int, load: int) -> None:
        """This process has *size* bytes from *start* on of a segment of inputs (`SharedInputs.number`) of a load."""
        part = self._parts[number] = InputPart(number, descriptor, start, size, load)
        os.close(descriptor)
        known = self.routes.get(load)
        if known is not None:
            known.part = part
            known.templates.clear()  # they say where inputs are

    def _forget_part(self, number: int) -> None:
        part = self._parts.pop(number)
        part.close()
        for key in [key for key, known in self.routes.items() if known.part is part]:
            del self.routes[key]  # with its templates, which say where inputs are

    def _on_inputs_free(self, payload: Payload) -> None:
        number, start = PLACE.unpack(payload)
        part = self._parts.get(number)
        if part is not None:
            part.free(start)

    def _on_taken(self, number: int, instance: str) -> None:
        if number in self._sent:
            self._sent[number].instance = instance

    def _on_refused(self, number: int) -> None:
        opened = self._remove(number)
        if opened is None:
            return
        if opened.drops_responses:  # its client has left: nothing executes it, so nothing counts it
            opened.reject(NaiadError("Request was cancelled", code=Code.CANCELLED))
        else:
            self._send_elsewhere(opened)

    def _on_rejected(self, number: int, error: NaiadError) -> None:
        opened = self._remove(number)
        if opened is not None:
            opened.reject(error)

    def _on_traced(self, number: int) -> None:
        """The coordinator traces a request, whose responses follow."""
        if number in self._sent:
            opened = self._sent[number]
            opened.sink = TimedSink(number, opened.sink, self._notify)

    def _on_computed(self, number: int, *times: int) -> None:
        trace = self.trace_of(number)
        if trace is not None:
            trace.on_computed(*times)

    # -- responses ------------------------------------------------------------------------------------------------

    def _on_response(self, payload: Payload) -> None:
        number, layout_number, flags, token = RESPONSE.unpack_from(payload)
        final = bool(flags & FINAL)
        opened = self._find(number, final=final)
        position = RESPONSE.size
        if opened is None or opened.drops_responses:
            self._drop(opened, token, final=final)
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
        return self._remove(number) if final else self._sent.get(number)

    def _drop(self, opened: OpenRequest | None, token: int, *, final: bool) -> None:
        """Free the memory of a response that is discarded, and pass on the end of its request."""
        if token != _NO_TOKEN:
            self._release(token)
        if final and opened is not None:
            self._pass_on(opened, None, final=True)

    def _on_full_response(self, payload: Payload) -> None:
        full: FullResponse = unpack(payload)
        opened = self._find(full.number, final=full.final)
        if opened is None or (opened.drops_responses and full.error is None):
            self._drop(opened, full.token, final=full.final)
            return
        outputs = []
        position = 0
        placed = [(place, size) for _, _, _, size, place in full.outputs if place is not None]
        buffers = iter(self._placed([place for place, _ in placed], [size for _, size in placed], full.token))
        view = memoryview(payload)[len(payload) - full.size :]
        for name, datatype, shape, size, place in full.outputs:
            if place is None:
                outputs.append(OutputTensor(name, datatype, shape, view[position : position + size]))
                position += size
            else:
                outputs.append(OutputTensor(name, datatype, shape, next(buffers)))
        of = full.model_name, full.model_version, full.request_id
        response = InferResponse(*of, outputs, full.parameters or NO_PARAMETERS, full.error)
        self._pass_on(opened, response, final=full.final)

    def _pass_on(self, opened: OpenRequest, response: InferResponse | None, *, final: bool) -> None:
        """Send a response to a sink. If that fails, end it with an error, and cancel the request there."""
        try:
            opened.sink.send(response, final)
        except Exception as error:  # noqa: BLE001 - a sink may raise anything; it is logged
            of = response or opened.request
            end_failed_sink(opened.sink, error, (of.model_name, of.model_version, of.request_id))
            self.cancel_request(opened)
            self.drop_responses(opened)
            self._remove(opened.key)
            final = True
        if final:
            opened.release()

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
                self._release(token)

        for (segment, offset), size in zip(places, sizes, strict=True):
            view, reference = track(self._segments[segment], offset, size, on_dropped)
            buffers.append(view)
            tracked.append(reference)
        self._references[token] = tracked
        return buffers

    def _release(self, token: int) -> None:
        self._link.send_lazily(wire.frame(FrameKind.RELEASE_OUTPUTS, NUMBER.pack(token)))


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
