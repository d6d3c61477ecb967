"""The owner's side of one frontend process: its messages become requests to the engine, the responses go back.

Everything runs on the event loop's thread. When the process exits, its requests are cancelled. Its parts of segments
are free once the guests, which may still read inputs in them, have let go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from naiad_stub import wire
from naiad_stub.memo import size_of

from naiad.core.errors import NaiadError, NotReadyError, unexpected_error
from naiad.engine.engine import Engine
from naiad.engine.serving.forwarding import Forwarding
from naiad.engine.serving.pending import ForwardedRequest
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.frontend_memory import FrontendMemory, SharedInputs
from naiad.guests.tensors import TensorLayout
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import device_bytes
from naiad.protocol.inference import (
    NO_HEADERS,
    NO_PARAMETERS,
    Buffer,
    InferRequest,
    InferResponse,
    InputPlace,
    InputTensor,
    OutputTensor,
    Sink,
)
from naiad.protocol.request_plan import CheckedLayout
from naiad.server.processes.link import Link
from naiad.server.processes.messages import (
    CONFIRM_SENT,
    FINAL,
    NO_RESPONSE,
    NUMBER,
    PLACE,
    PLACED,
    RESPONSE,
    RESPONSE_FRAME,
    SHORT_REQUEST,
    TRACED_SENDING,
    CallResult,
    FrameKind,
    FullRequest,
    FullResponse,
    OwnerCall,
    PartAnnouncement,
    RequestTemplate,
    ResponseLayout,
    SegmentAnnouncement,
    TracedArrival,
    UsedRegions,
    VersionRoute,
    error_fields,
    input_offsets,
    pack,
    unpack,
)
from naiad.server.processes.region_use import join_regions
from naiad.server.processes.shared_tracer import TracedSink

logger = logging.getLogger("naiad.frontends")

_MAX_LAYOUTS = 1024
_MAX_LAYOUT_BYTES = 1 << 20
_MAX_ATTEMPTS = 3
"""After so many requests of a template, its layout is known if it ever will be."""
_USUAL_ID = 1024
_DOOR = (
    "server_metadata",
    "is_live",
    "is_ready",
    "check_server_ready",
    "check_ready",
    "is_model_ready",
    "gather_counts",
    "statistics",
    "ready_index",
    "repository_index",
    "load",
    "unload",
)
"""Methods of the engine that a frontend process calls by their names."""

Service = Callable[..., Any]


class _OwnedTemplate:
    """A template, and what is derived from it. It is the layout key of its requests, and where they are forwarded from.

    Implements `ForwardSource`.

    Attributes:
        forwarding: Forwards requests of this template to the version that serves it now; None until that is known.
        layout: Their layout there.
        first_ticket: The engine's ticket of a request to that version, without the request's number.
        attempts: How often that was looked for, until it is found or given up.
    """

    __slots__ = (
        "_session",
        "attempts",
        "first_ticket",
        "forwarding",
        "inputs",
        "is_decoupled",
        "layout",
        "load",
        "model_name",
        "model_version",
        "offsets",
        "outputs",
        "shared",
        "size",
    )

    def __init__(self, session: FrontendSession, template: RequestTemplate, shared: SharedInputs | None) -> None:
        self._session = session
        self.model_name = template.model_name
        self.model_version = template.model_version
        self.inputs = template.inputs
        self.outputs = template.requested_outputs
        self.load = template.load
        self.is_decoupled = template.is_decoupled
        self.offsets, self.size = input_offsets(template.inputs)
        self.shared = shared
        self.forget_version()

    def forget_version(self) -> None:
        """Another version may serve the model from now on."""
        self.forwarding: Forwarding | None = None
        self.layout: CheckedLayout | None = None
        self.first_ticket = self.attempts = 0

    def request_of(self, forwarded: ForwardedRequest) -> InferRequest:
        """See `ForwardSource`."""
        return self.request(self.slices(forwarded.inputs), forwarded.request_id, forwarded.context, None)

    def sink_of(self, number: int) -> Sink:
        """See `ForwardSource`."""
        return self._session.sink_of(number)

    def respond(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        """See `ForwardSource`."""
        self._session.respond_forwarded(number, model, layout, outputs)

    def request(
        self, inputs: list[InputTensor], request_id: bytes, context: bytes, place: InputPlace | None
    ) -> InferRequest:
        """A request with nothing but an id, a context and inputs."""
        return InferRequest(
            self.model_name,
            self.model_version,
            inputs,
            str(request_id, "utf-8", "surrogatepass") if request_id else "",
            self.outputs,
            layout_key=self,
            place=place,
            propagated=orjson.loads(context) if context else NO_HEADERS,
        )

    def slices(self, data: bytes | memoryview) -> list[InputTensor]:
        """The inputs of a request whose bytes are *data*."""
        return [
            InputTensor(name, datatype, shape, data[offset : offset + size])
            for (name, datatype, shape, size), offset in zip(self.inputs, self.offsets)  # noqa: B905 - on the request path
        ]


class _SessionSink:
    """Sends the responses to one request to the frontend process."""

    __slots__ = ("_number", "_send")

    def __init__(self, number: int, send: Callable[[int, InferResponse | None, bool], None]) -> None:
        self._number = number
        self._send = send

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """See `Sink.send`."""
        self._send(self._number, response, final)


class FrontendSession:
    """One frontend process, as the owner sees it.

    Attributes:
        received_count: Number of requests that it has sent here. It is counted here, so that a process that is killed
            takes none of them along.
        answered_count: Number of requests that it has answered by its own branches, as it reported last.
        on_branch_message: Called with the kind and content of what it sends about its branches.
    """

    def __init__(
        self,
        engine: Engine,
        memory: FrontendMemory,
        tracer: Tracer,
        services: Mapping[str, Service],
        on_report: Callable[[FrontendSession, Any], None],
    ) -> None:
        """A session without a link; see `connect`.

        Args:
            engine: The engine.
            memory: The memory that frontend processes share with guests.
            tracer: Traces requests of all processes.
            services: What the process may call beside the engine's door, or in place of it, by name; "find_part" is for
                its requests. It may be completed until the process listens.
            on_report: Called with what the process reports of itself.
        """
        self.received_count = 0
        self.answered_count = 0
        self.on_branch_message: Callable[[int, Any], None] = lambda *_: None
        self._engine = engine
        self._memory = memory
        self._tracer = tracer
        self._traces: dict[int, TracedSink] = {}  # by the numbers of requests
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        self._taking: dict[int, asyncio.Future[Sequence[str]]] = {}
        self._is_pinged = False
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._link: Link | None = None
        self._services = services
        self._door: dict[str, Service] = {name: getattr(engine, name) for name in _DOOR}
        self._door["route"] = self._route
        self._parts: dict[int, int] = {}  # by the number of the segment of inputs
        self._templates: dict[int, _OwnedTemplate] = {}
        self._open: dict[int, int] = {}  # tickets of the engine by the numbers of requests; 0 while they are submitted
        self._layouts: dict[tuple[object, bool], int] = {}
        self._layout_count = 0
        self._layout_bytes = 0  # of the names in `_layouts`
        self._segments: set[int] = set()
        self._lent: dict[int, InferResponse] = {}
        self._token = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, Callable[[bytes], None]] = {
            FrameKind.REQUEST: self._on_request,
            FrameKind.TEMPLATE: self._on_template,
            FrameKind.FORGET_TEMPLATES: self._on_forget_templates,
            FrameKind.CANCEL: self._on_cancel,
            FrameKind.CONFIRM_SENT: self._on_confirm_sent,
            FrameKind.RELEASE_OUTPUTS: self._on_release_outputs,
            FrameKind.CALL: self._on_call,
            FrameKind.REPORT: self._on_process_report,
            FrameKind.TRACED_SENDING: self._on_traced_sending,
            FrameKind.CONFIRM: self._on_confirm,
            FrameKind.PONG: self._on_pong,
            FrameKind.USED_REGIONS: self._on_used_regions,
            FrameKind.ORDERED: lambda payload: self.on_branch_message(FrameKind.ORDERED, unpack(payload)),
            FrameKind.TELL_OWNER: lambda payload: self.on_branch_message(FrameKind.TELL_OWNER, unpack(payload)),
        }

    def connect(self, link: Link) -> None:
        """Use *link*, whose frames go to `on_frame`."""
        self._link = link

    @property
    def request_count(self) -> int:
        """Number of requests without their last response."""
        return len(self._open)

    @property
    def template_count(self) -> int:
        """Number of templates of the process that are known."""
        return len(self._templates)

    @property
    def segment_count(self) -> int:
        """Number of segments of guests that the process has mapped."""
        return len(self._segments)

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Handle a frame of the frontend process."""
        try:
            if kind == FrameKind.SHORT_REQUEST:  # most frames
                self._on_short_request(payload)
            else:
                self._handlers[kind](payload)
        except Exception as error:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of a frontend process")
            if kind in {FrameKind.SHORT_REQUEST, FrameKind.REQUEST}:
                self._reject_unreadable(kind, payload, error)

    def close(self) -> None:
        """The process has exited: cancel its requests, and free what it had.

        Its calls in progress, such as a load or unload, are completed, as when a client disconnects from a server
        without frontend processes. An unload that is cancelled half-way would leave guests running.
        """
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for ticket in list(self._open.values()):
            if ticket:
                self._engine.cancel(ticket)
        self._open.clear()
        self._lent.clear()
        for traced in self._traces.values():
            traced.on_process_end()
        self._traces.clear()
        while self._unconfirmed:
            self._on_confirm(b"")
        for taken in self._taking.values():
            if not taken.done():
                taken.set_result(())
        self._taking.clear()
        for number, part in self._parts.items():
            shared = self._memory.inputs.get(number)
            if shared is not None:
                shared.retire_part(part)
        self._parts.clear()

    def send(self, kind: int, message: Any) -> None:
        """Send a pickled message now."""
        if self._link is not None:
            self._link.send(pack(kind, message))
            self._link.flush()

    def send_soon(self, kind: int, message: Any) -> None:
        """Send a pickled message at the end of the loop's turn."""
        if self._link is not None:
            self._link.send(pack(kind, message))

    def send_board(self, descriptor: int, processes: int, number: int) -> None:
        """Send the memory of the load board, with what the process needs to know of it."""
        if self._link is not None:
            self._link.send_descriptor(pack(FrameKind.BOARD, (processes, number)), descriptor)

    def announce(self, kind: int, message: Any) -> asyncio.Future[None]:
        """Send a message that the process confirms; done once it has, or has exited."""
        confirmed = self._loop.create_future()
        if self._link is None:
            confirmed.set_result(None)
            return confirmed
        self._unconfirmed.append(confirmed)
        self.send(kind, message)
        return confirmed

    def _on_confirm(self, _: bytes) -> None:
        confirmed = self._unconfirmed.popleft()
        if not confirmed.done():
            confirmed.set_result(None)

    def take_regions(self, number: int, names: Sequence[str]) -> asyncio.Future[Sequence[str]]:
        """Have the process take regions out of its registry; those of them that it uses."""
        taken: asyncio.Future[Sequence[str]] = self._loop.create_future()
        if self._link is None:
            taken.set_result(())
        else:
            self._taking[number] = taken
            self.send(FrameKind.TAKE_REGIONS, (number, names))
        return taken

    def _on_used_regions(self, payload: bytes) -> None:
        used: UsedRegions = unpack(payload)
        taken = self._taking.pop(used.number)
        if not taken.done():
            taken.set_result(used.names)

    def ping(self) -> bool:
        """Ask for a sign of life; whether the process has given the one that was asked for before."""
        was_alive = not self._is_pinged
        if was_alive and self._link is not None:
            self._is_pinged = True
            self._link.send(wire.frame(FrameKind.PING, b""))
        return was_alive

    def _on_pong(self, _: bytes) -> None:
        self._is_pinged = False

    # -- requests -------------------------------------------------------------------------------------------------

    def _on_template(self, payload: bytes) -> None:
        template: RequestTemplate = unpack(payload)
        # The segment that the process has used: the version that serves now may have another one.
        shared = None if template.segment is None else self._memory.inputs.get(template.segment)
        self._templates[template.number] = _OwnedTemplate(self, template, shared)

    def _on_forget_templates(self, _: bytes) -> None:
        self._templates.clear()

    def _on_short_request(self, payload: bytes) -> None:
        self.received_count += 1
        number, template_number, start, id_size, context_size = SHORT_REQUEST.unpack_from(payload)
        template = self._templates[template_number]
        position = SHORT_REQUEST.size
        request_id = context = b""
        if id_size:
            request_id = payload[position : position + id_size]
            position += id_size
        if context_size:
            context = payload[position : position + context_size]
            position += context_size
        data = payload[position:]
        if start < 0 and not self._engine.is_exiting:
            layout = template.layout or self._known_layout(template)
            if layout is not None:  # forward the request as it came, if it need not be submitted like any other
                assert template.forwarding is not None
                key = template.forwarding.forward(ForwardedRequest(template, number, request_id, data, context), layout)
                if key:
                    self._open[number] = template.first_ticket + key
                    return
        found = self._inputs(template, start, data)
        if found is None:
            self._reroute(number, template, str(request_id, "utf-8", "surrogatepass"))
            return
        inputs, place = found
        self._submit(number, template, template.request(inputs, request_id, context, place))

    def _known_layout(self, template: _OwnedTemplate) -> CheckedLayout | None:
        """The layout of a template's requests, once the version that serves them has checked one."""
        if template.attempts >= _MAX_ATTEMPTS or template.is_decoupled:
            return None
        template.attempts += 1
        try:
            target = self._engine.find_target(template.model_name, template.model_version)
        except NaiadError:
            return None  # which submitting the request reports
        forwarding = None if target.direct is None else target.direct.forwarding
        if forwarding is not None:
            template.forwarding = forwarding
            template.first_ticket = self._engine.ticket_of(target.number, 0)
            template.layout = forwarding.known_layout(template, template.size)
        return template.layout

    def _on_request(self, payload: bytes) -> None:
        self.received_count += 1
        full: FullRequest = unpack(payload)
        template = self._templates[full.template]
        found = self._inputs(template, full.place, full.data)
        if found is None:
            self._reroute(full.number, template, full.request_id)
            return
        inputs, place = found
        for tensor, scan in zip(inputs, full.scans, strict=True):
            tensor.strings = scan
        use = None
        if full.regions is not None:  # whose layout is not that of the template
            place = None
            try:
                use = join_regions(inputs, full.regions, self._services["find_part"])
            except NaiadError as error:
                self._reject(full.number, template.request(inputs, full.request_id.encode(), b"", None), error)
                return
        # The check of a request depends on these two as well, so a layout that was checked earlier is not enough.
        is_usual = isinstance(full.correlation_id, int) and len(full.request_id) < _USUAL_ID and use is None
        request = InferRequest(
            template.model_name,
            template.model_version,
            inputs,
            full.request_id,
            template.outputs,
            full.parameters or NO_PARAMETERS,
            full.correlation_id,
            full.flags,
            full.priority,
            full.timeout_us,
            template if is_usual else None,
            place=place,
            propagated=full.propagated,
            device=use,
        )
        self._submit(full.number, template, request, full.arrival)

    def _inputs(
        self, template: _OwnedTemplate, start: int, data: bytes
    ) -> tuple[list[InputTensor], InputPlace | None] | None:
        """The inputs of a request: in the part of the process from *start* on, or, below 0, in *data*.

        None if they were in the memory of a version that has been unloaded, and that is unmapped.
        """
        if start < 0:
            return template.slices(data), None
        shared = template.shared
        if shared is None or shared.is_closed:
            return None
        number = shared.number
        part = self._parts[number]
        view = shared.lend(part, start, template.size, lambda: self._on_inputs_dropped(number, start))
        return template.slices(view), InputPlace(number, part * shared.part_size + start, view)

    def _submit(
        self, number: int, template: _OwnedTemplate, request: InferRequest, arrival: TracedArrival | None = None
    ) -> None:
        self._open[number] = 0
        sink = self.sink_of(number)
        try:
            version = self._engine.route(request.model_name, request.model_version)
            if version.number != template.load and version.config.decoupled != template.is_decoupled:
                raise NotReadyError(
                    f"model '{request.model_name}' was loaded again with another transaction policy while the request "
                    "was received; send it again"
                )
            if arrival is not None:
                sink = self._trace(number, request, sink, arrival)
            ticket = self._engine.submit(request, sink)
        except NaiadError as error:
            if request.trace is not None:
                request.trace.on_rejected()
                self._traces.pop(number, None)
            self._reject(number, request, error)
            return
        except Exception as error:
            logger.exception("cannot submit a request to '%s'", request.model_name)
            self._reject(number, request, unexpected_error(f"submit the request to '{request.model_name}'", error))
            return
        if number in self._open:
            self._open[number] = ticket

    def _trace(self, number: int, request: InferRequest, sink: Sink, arrival: TracedArrival) -> Sink:
        """Trace a request if its turn has come; the sink for its responses."""
        recorder = self._tracer.start(request, arrival.protocol, arrival.headers, arrival.received)
        if recorder is None:
            return sink
        traced = TracedSink(recorder, sink, arrival.protocol, lambda: self._send_traced(number))
        self._traces[number] = traced
        return traced

    def _send_traced(self, number: int) -> None:
        if self._link is not None:
            self._link.send(wire.frame(FrameKind.TRACED, NUMBER.pack(number)))

    def _on_traced_sending(self, payload: bytes) -> None:
        number, began, ended, final = TRACED_SENDING.unpack(payload)
        traced = self._traces.pop(number) if final else self._traces[number]
        traced.on_sent(began, ended, final=bool(final))

    def _reroute(self, number: int, template: _OwnedTemplate, request_id: str) -> None:
        """Have the frontend process send a request again, whose inputs are in memory that is unmapped here."""
        self.received_count -= 1
        error = NotReadyError(
            f"model '{template.model_name}' was unloaded while the request was received; send it again"
        )
        name, version = template.model_name, template.model_version
        self._reject(number, InferRequest(name, version, (), request_id), error, is_reroute=True)

    def _reject(self, number: int, request: InferRequest, error: NaiadError, *, is_reroute: bool = False) -> None:
        self._open.pop(number, None)
        name, version = request.model_name, request.model_version
        fields = error_fields(error)
        message = FullResponse(
            number, True, name, version, request.request_id, (), b"", 0, {}, fields, True, is_reroute
        )
        if self._link is not None:
            self._link.send(pack(FrameKind.FULL_RESPONSE, message))

    def _reject_unreadable(self, kind: int, payload: bytes, error: Exception) -> None:
        """Reject a request that could not be read or submitted: its client waits."""
        number = NUMBER.unpack_from(payload)[0] if kind == FrameKind.SHORT_REQUEST else unpack(payload).number
        self._reject(number, InferRequest("", -1, ()), unexpected_error("read a request of a frontend process", error))

    def _on_cancel(self, payload: bytes) -> None:
        ticket = self._open.get(NUMBER.unpack(payload)[0])
        if ticket:
            self._engine.cancel(ticket)

    def _on_confirm_sent(self, payload: bytes) -> None:
        number, count = CONFIRM_SENT.unpack(payload)
        ticket = self._open.get(number)
        if ticket:
            self._engine.confirm_sent(ticket, count)

    def _on_inputs_dropped(self, number: int, start: int) -> None:
        # The last reference to inputs is nearly always dropped on the loop's thread, where this costs least.
        if threading.get_ident() == self._thread:
            self._send_inputs_free(number, start)
        elif self._link is not None:
            self._loop.call_soon_threadsafe(self._send_inputs_free, number, start)

    def _send_inputs_free(self, number: int, start: int) -> None:
        if self._link is not None:
            self._link.send_lazily(wire.frame(FrameKind.INPUTS_FREE, PLACE.pack(number, start)))

    # -- responses ------------------------------------------------------------------------------------------------

    def sink_of(self, number: int) -> Sink:
        """What gets the responses to a request of this process."""
        return _SessionSink(number, self._respond)

    def respond_forwarded(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        """Send the response to a forwarded request, as the guest wrote it."""
        self._open.pop(number, None)
        link = self._link
        if link is None:
            return  # the process has exited
        known = self._layouts.get((layout, True))
        if known is None:
            known = self._announce_layout((layout, True), *model, tuple(layout.entries))
        size = RESPONSE.size + len(outputs)
        link.send(RESPONSE_FRAME.pack(size, FrameKind.RESPONSE, 0, number, known, FINAL, 0) + outputs)

    def _respond(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        if final:
            self._open.pop(number, None)
        link = self._link
        if link is None:
            return  # the process has exited
        if response is None:
            link.send(wire.frame(FrameKind.RESPONSE, RESPONSE.pack(number, 0, FINAL | NO_RESPONSE, 0)))
            return
        outputs = response.outputs
        places = [self._place_of(output) for output in outputs]
        is_placed = bool(places) and None not in places
        if (
            response.layout is None
            or response.error is not None
            or response.is_on_device
            or response.parameters
            or not (is_placed or not any(places))
        ):
            self._respond_in_full(number, response, places, final=final)
            return
        layout = self._layouts.get((response.layout, False)) or self._announce_joined(response)
        body: Buffer
        if is_placed:
            head = RESPONSE.pack(number, layout, PLACED | final, self._lend(response))
            body = b"".join([PLACE.pack(*place) for place in places if place is not None])
        else:
            head = RESPONSE.pack(number, layout, final, 0)
            body = outputs[0].data if len(outputs) == 1 else b"".join([output.data for output in outputs])
        link.send(b"".join((wire.FRAME.pack(len(head) + len(body), FrameKind.RESPONSE, 0), head, body)))

    def _respond_in_full(
        self, number: int, response: InferResponse, places: list[tuple[int, int] | None], *, final: bool
    ) -> None:
        # Outputs in GPU memory are in regions of clients.
        found = [b"" if device_bytes(output.data) is not None else output.data for output in response.outputs]
        outputs = tuple(
            [
                (output.name, output.datatype, tuple(output.shape), len(data), place)
                for output, place, data in zip(response.outputs, places, found, strict=True)
            ]
        )
        data = [data for data, place in zip(found, places, strict=True) if place is None]
        error = None if response.error is None else error_fields(response.error)
        message = FullResponse(
            number,
            final,
            response.model_name,
            response.model_version,
            response.request_id,
            outputs,
            b"".join(data),
            self._lend(response) if any(places) else 0,
            dict(response.parameters),
            error,
        )
        assert self._link is not None
        self._link.send(pack(FrameKind.FULL_RESPONSE, message))

    def _place_of(self, output: OutputTensor) -> tuple[int, int] | None:
        """The segment of an output, which the process has been told of, and where it begins there."""
        data = output.data
        if not isinstance(data, memoryview):
            return None
        segment = self._memory.find(data)
        if segment is None:
            return None
        if segment.number not in self._segments:
            self._segments.add(segment.number)
            assert self._link is not None
            announcement = SegmentAnnouncement(segment.number, segment.capacity)
            self._link.send_descriptor(pack(FrameKind.SEGMENT, announcement), segment.descriptor)
        return segment.number, segment.offset_of(data)

    def _lend(self, response: InferResponse) -> int:
        self._token = token = self._token % 0xFFFFFFFF + 1
        self._lent[token] = response
        return token

    def _on_release_outputs(self, payload: bytes) -> None:
        self._lent.pop(NUMBER.unpack(payload)[0], None)

    def _announce_joined(self, response: InferResponse) -> int:
        """Announce the layout of a response whose outputs are sent one after the other."""
        outputs = []
        end = 0
        for output in response.outputs:
            start, end = end, end + len(output.data)
            outputs.append((output.name, output.datatype, tuple(output.shape), start, end))
        return self._announce_layout(
            (response.layout, False), response.model_name, response.model_version, tuple(outputs)
        )

    def _announce_layout(
        self,
        key: tuple[object, bool],
        model_name: str,
        model_version: int,
        outputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...],
    ) -> int:
        assert self._link is not None
        self._layout_count += 1
        self._layout_bytes += size_of(outputs)
        if len(self._layouts) >= _MAX_LAYOUTS or self._layout_bytes > _MAX_LAYOUT_BYTES:
            self._layouts.clear()
            self._layout_bytes = size_of(outputs)
            self._link.send(wire.frame(FrameKind.FORGET_LAYOUTS, NUMBER.pack(self._layout_count)))
        message = ResponseLayout(self._layout_count, model_name, model_version, outputs)
        self._link.send(pack(FrameKind.LAYOUT, message))
        self._layouts[key] = self._layout_count
        return self._layout_count

    # -- calls ----------------------------------------------------------------------------------------------------

    def _on_call(self, payload: bytes) -> None:
        call: OwnerCall = unpack(payload)
        try:
            service = self._services.get(call.method) or self._door[call.method]
            value = service(*call.arguments, **call.keywords)
        except NaiadError as error:
            self._reply(call.number, None, error)
            return
        except Exception as error:
            logger.exception("cannot call '%s'", call.method)
            self._reply(call.number, None, unexpected_error(f"call '{call.method}'", error))
            return
        if isinstance(value, Awaitable):
            task = self._loop.create_task(self._reply_later(call, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._reply(call.number, value, None)

    async def _reply_later(self, call: OwnerCall, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except NaiadError as error:
            self._reply(call.number, None, error)
        except Exception as error:
            logger.exception("cannot call '%s'", call.method)
            self._reply(call.number, None, unexpected_error(f"call '{call.method}'", error))
        else:
            self._reply(call.number, value, None)

    def _reply(self, number: int, value: Any, error: NaiadError | None) -> None:
        result = CallResult(number, value, None if error is None else error_fields(error))
        try:
            self.send(FrameKind.RESULT, result)
        except Exception as problem:  # a frontend process, or one of its clients, waits for the result
            logger.exception("cannot pack the result of a call of a frontend process")
            failure = error_fields(unexpected_error("return the result of a call", problem))
            self.send(FrameKind.RESULT, CallResult(number, None, failure))

    def _route(self, name: str, version: int) -> VersionRoute:
        found = self._engine.route(name, version)
        shared = None if found.direct is None else found.direct.shared_inputs
        if shared is not None and shared.number not in self._parts and self._link is not None:
            part = shared.take_part()
            if part is None:
                shared = None  # until guests are done with the inputs of processes that have exited
            else:
                self._parts[shared.number] = part
                announcement = PartAnnouncement(shared.number, part * shared.part_size, shared.part_size)
                self._link.send_descriptor(pack(FrameKind.PART, announcement), shared.descriptor)
        return VersionRoute(
            number=found.number,
            is_decoupled=found.config.decoupled,
            metadata=self._engine.model_metadata(name, version),
            config=self._engine.model_config(name, version),
            inputs=None if shared is None else shared.number,
        )

    def on_routes_changed(self) -> None:
        """Announce that names may be served by other versions."""
        for template in self._templates.values():
            template.forget_version()
        self.send(FrameKind.ROUTES_CHANGED, frozenset(self._memory.inputs))

    def forget_segment(self, number: int) -> None:
        """Have the process unmap an output segment, after the responses that were sent and name it."""
        if number in self._segments and self._link is not None:
            self._segments.remove(number)
            self._link.send(wire.frame(FrameKind.FORGET_SEGMENT, NUMBER.pack(number)))

    def _on_process_report(self, payload: bytes) -> None:
        self._on_report(self, unpack(payload))
