"""Requests of another process of the server to models of this one: its messages become requests, the responses go back.

The other end is `request_link.RequestLink`. Everything runs on the event loop's thread. When the process exits, its
requests are cancelled. Its parts of segments are free once the guests, which may still read inputs there, have let go.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import orjson
from naiad_stub import wire
from naiad_stub.memo import size_of

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NaiadError, NotReadyError, unexpected_error, without_frames
from naiad.engine.open_request import ForwardedRequest, OpenRequest
from naiad.engine.served import Target
from naiad.engine.serving.forwarding import Forwarding
from naiad.frontends.regions import RegionPart
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory, SharedInputs
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
    SubmittedRequest,
)
from naiad.protocol.request_plan import CheckedLayout
from naiad.server.processes.calls import RemoteCalls
from naiad.server.processes.link import Link, Payload
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
    FrameKind,
    FullRequest,
    FullResponse,
    GuestCaller,
    Origin,
    RequestTemplate,
    ResponseLayout,
    TracedArrival,
    input_offsets,
    pack_before,
    unpack,
)
from naiad.server.processes.region_use import join_regions
from naiad.server.processes.traces import RemoteTrace, TracedSink

logger = logging.getLogger("naiad.frontends")

_MAX_LAYOUTS = 1024
_MAX_LAYOUT_BYTES = 1 << 20
_MAX_ATTEMPTS = 3  # after so many requests of a template, its layout is known if it ever will be
_USUAL_ID = 1024


class GoneError(NaiadError):
    """The version that a request was sent to is not here any more, or no instance of it is idle for a call."""


class RequestTarget(Protocol):
    """What a request of another process goes to."""

    @property
    def number(self) -> int: ...

    @property
    def config(self) -> ModelConfig: ...

    def accept(self, opened: OpenRequest) -> None:
        """See `Target.accept`; `GoneError` if the process has to look again."""


class OwnModels(Protocol):
    """The models of this process, as sessions need them. Versions are named, and have the number of their load."""

    @property
    def is_exiting(self) -> bool:
        """Whether requests are rejected because the server ends."""

    def admitted_target(self, request: InferRequest, load: int) -> RequestTarget:
        """What a request goes to; NaiadError, a refusal, for none, `GoneError` if the process has to look again."""

    def find_target(self, name: str, version: int, load: int) -> Target:
        """What an inference request would go to; raises like `admitted_target`."""


class _OwnedTemplate:
    """A template, and what is derived from it. It is the layout key of its requests; implements `ForwardSource`."""

    def __init__(self, session: RequestSession, template: RequestTemplate, shared: SharedInputs | None) -> None:
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
        # Forwards its requests to the version that serves it now; None until that is known.
        self.forwarding: Forwarding | None = None
        self.layout: CheckedLayout | None = None  # of its requests there
        self.attempts = 0  # how often that was looked for, until it is found or given up

    def request_of(self, forwarded: ForwardedRequest) -> InferRequest:
        return self.request(self.slices(forwarded.inputs), forwarded.request_id, forwarded.context, None)

    def sink_of(self, number: int) -> Sink:
        return self._session.sink_of(number)

    def respond(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        self._session.respond_forwarded(number, model, layout, outputs)

    def request(
        self, inputs: list[InputTensor], request_id: bytes, context: bytes, place: InputPlace | None
    ) -> InferRequest:
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
        return [
            InputTensor(name, datatype, shape, data[offset : offset + size])
            for (name, datatype, shape, size), offset in zip(self.inputs, self.offsets)  # noqa: B905 - on the request path
        ]


class _SessionSink:
    """Sends the responses to one request to the other process."""

    __slots__ = ("_number", "_session")

    def __init__(self, number: int, session: RequestSession) -> None:
        self._number = number
        self._session = session

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        self._session.respond(self._number, response, final)

    def reject(self, error: NaiadError) -> None:
        """See `RejectableSink`: a third process, which has the model, has not accepted the request."""
        self._session.reject_late(self._number, error)


class RequestSession:
    """Requests of one other process."""

    def __init__(
        self,
        link: Link,
        calls: RemoteCalls,
        models: OwnModels,
        memory: LinkMemory,
        tracer: Tracer | None = None,
        find_part: Callable[[str, int, int], RegionPart] | None = None,
    ) -> None:
        """Requests that may be traced go elsewhere without *tracer*, those with GPU memory without *find_part*."""
        # Requests of its clients: those that it has sent here, which are counted here, so that a process that is killed
        # takes none of them along, and those that it has executed itself or sent elsewhere, as it reported last.
        self.received_count = 0
        self._notify, self._notify_with = calls.notify, calls.notify_with
        self._models = models
        self._memory = memory
        memory.users.append(self)
        self._tracer = tracer
        self._find_part = find_part
        self._traces: dict[int, TracedSink] = {}  # by the numbers of requests
        self._link = link
        self._parts: dict[int, int] = {}  # by the number of the segment of inputs
        self._templates: dict[int, _OwnedTemplate] = {}
        self._open: dict[int, SubmittedRequest | None] = {}  # by the numbers of requests; None while one is accepted
        # Submits a call of one of its guests.
        self.on_call: Callable[[GuestCaller, InferRequest, Sink], SubmittedRequest | None] = lambda *_: None
        self._layouts: dict[tuple[object, bool], int] = {}
        self._layout_count = 0
        self._layout_bytes = 0  # of the names in `_layouts`
        self._segments: set[int] = set()
        self._lent: dict[int, InferResponse] = {}
        self._token = 0
        self.handlers: dict[int, Callable[[Payload], None]] = {
            FrameKind.SHORT_REQUEST: self._on_short_request,
            FrameKind.REQUEST: self._on_request,
            FrameKind.CONFIRM_SENT: self._on_confirm_sent,
            FrameKind.RELEASE_OUTPUTS: self._on_release_outputs,
        }
        calls.services.update(
            {
                "template": self._on_template,
                "forget_templates": self._templates.clear,
                "cancel": self._on_cancel,
                "drop_responses": self._on_drop_responses,
                "traced_sending": self._on_traced_sending,
            }
        )

    @property
    def request_count(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """The process has exited: cancel its requests, and free what it had."""
        if self in self._memory.users:  # it may be closed twice
            self._memory.users.remove(self)
        for submitted in list(self._open.values()):
            if submitted is not None:
                submitted.cancel()
        self._open.clear()
        self._lent.clear()
        for traced in self._traces.values():
            traced.on_process_end()
        self._traces.clear()
        for number, part in self._parts.items():
            shared = self._memory.inputs.get(number)
            if shared is not None:
                shared.retire_part(part)
        self._parts.clear()

    def share_inputs(self, target: Target) -> None:
        """Give the process a part of the segment of a version's inputs, if there is one and it has none."""
        shared = None if target.direct is None else target.direct.shared_inputs
        if shared is not None and shared.number not in self._parts and self._link.is_open:
            part = shared.take_part()
            if part is None:
                return  # until guests are done with the inputs of processes that have exited
            self._parts[shared.number] = part
            start, size = part * shared.part_size, shared.part_size
            self._notify_with(shared.descriptor, "part", shared.number, start, size, target.number)

    def on_routes_changed(self) -> None:
        """Announce that names may be served by other versions."""
        for template in self._templates.values():
            template.forget_version()
        self._notify("routes_changed")
        self._link.flush()

    def forget_part(self, number: int) -> None:
        """Have the process unmap its part of a segment of inputs, whose version has ended."""
        if self._parts.pop(number, None) is not None:
            self._notify("forget_part", number)

    def forget_segment(self, number: int) -> None:
        """Have the process unmap an output segment, after the responses that were sent and name it."""
        if number in self._segments:
            self._segments.remove(number)
            self._notify("forget_segment", number)

    # -- requests -------------------------------------------------------------------------------------------------

    def _on_template(self, template: RequestTemplate) -> None:
        # The segment that the process has used: the version that serves now may have another one.
        shared = None if template.segment is None else self._memory.inputs.get(template.segment)
        self._templates[template.number] = _OwnedTemplate(self, template, shared)
        if template.segment is None:  # from the next template on, inputs may be in shared memory
            with contextlib.suppress(NaiadError):
                self.share_inputs(self._models.find_target(template.model_name, template.model_version, template.load))

    def _on_short_request(self, payload: Payload) -> None:
        self.received_count += 1
        number, template_number, start, id_size, context_size = SHORT_REQUEST.unpack_from(payload)
        template = self._templates[template_number]
        position = SHORT_REQUEST.size
        request_id = context = b""
        if id_size:
            request_id = bytes(payload[position : position + id_size])
            position += id_size
        if context_size:
            context = bytes(payload[position : position + context_size])
            position += context_size
        data = payload[position:]
        if start < 0 and not self._models.is_exiting:
            layout = template.layout or self._known_layout(template)
            if layout is not None:  # forward the request as it came, if it need not be submitted like any other
                assert template.forwarding is not None
                short = ForwardedRequest(template, number, request_id, bytes(data), context)
                forwarded = template.forwarding.forward(short, layout)
                if forwarded is not None:
                    self._open[number] = forwarded
                    return
        found = self._inputs(template, start, data)
        if found is None:
            self._refuse(number)
            return
        inputs, place = found
        self._open_request(number, template, template.request(inputs, request_id, context, place))

    def _known_layout(self, template: _OwnedTemplate) -> CheckedLayout | None:
        """The layout of a template's requests, once the version that serves them has checked one."""
        if template.attempts >= _MAX_ATTEMPTS or template.is_decoupled:
            return None
        template.attempts += 1
        try:
            target = self._models.find_target(template.model_name, template.model_version, template.load)
        except NaiadError:
            return None  # which submitting the request reports
        forwarding = None if target.direct is None else target.direct.forwarding
        if forwarding is not None:
            template.forwarding = forwarding
            template.layout = forwarding.known_layout(template, template.size)
        return template.layout

    def _on_request(self, payload: Payload) -> None:
        self.received_count += 1
        full: FullRequest = unpack(payload)
        template = self._templates[full.template]
        found = self._inputs(template, full.place, payload[len(payload) - full.size :])
        if found is None:
            self._refuse(full.number)
            return
        inputs, place = found
        for tensor, scan in zip(inputs, full.scans, strict=True):
            tensor.strings = scan
        request = InferRequest(
            template.model_name,
            template.model_version,
            inputs,
            full.request_id,
            template.outputs,
            full.parameters or NO_PARAMETERS,
            *full.scheduling,
            place=place,
            propagated=full.propagated,
        )
        if full.regions is not None:  # whose layout is not that of the template
            assert self._find_part is not None
            request.place = None
            try:
                request.device = join_regions(inputs, full.regions, self._find_part)
            except NaiadError as error:
                self._reject(full.number, error)
                return
        # The check of a request depends on these two as well, so a layout that was checked earlier is not enough.
        elif isinstance(request.correlation_id, int) and len(request.request_id) < _USUAL_ID:
            request.layout_key = template
        if full.is_traced:
            request.trace = RemoteTrace(full.number, full.context, self._notify)
        self._open_request(full.number, template, request, full.origin, needs_idle=full.needs_idle)

    def _inputs(
        self, template: _OwnedTemplate, start: int, data: Payload
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
        free = wire.frame(FrameKind.INPUTS_FREE, PLACE.pack(number, start))
        view = shared.lend(part, start, template.size, lambda: self._link.send_lazily(free))
        return template.slices(view), InputPlace(number, part * shared.part_size + start, view)

    def _open_request(
        self,
        number: int,
        template: _OwnedTemplate,
        request: InferRequest,
        origin: Origin | None = None,
        *,
        needs_idle: bool = False,
    ) -> None:
        """Pass a request to what it goes to."""
        self._open[number] = None
        sink = self.sink_of(number)
        try:
            if isinstance(origin, GuestCaller):
                self.received_count -= 1
                opened = self.on_call(origin, request, sink)
            else:
                target = self._models.admitted_target(request, template.load)
                if target.number != template.load and target.config.decoupled != template.is_decoupled:
                    raise NotReadyError(
                        f"model '{request.model_name}' was loaded again with another transaction policy while the "
                        "request was received; send it again"
                    )
                if origin is not None:
                    sink = self._trace(number, request, sink, origin)
                opened = OpenRequest(request, sink, needs_idle)
                target.accept(opened)
                if needs_idle:
                    self._notify("taken", number, "" if opened.worker is None else opened.worker.spec.name)
        except GoneError:
            self._refuse(number)
            return
        except NaiadError as error:
            if request.trace is not None:
                request.trace.on_rejected()
                self._traces.pop(number, None)
            self._reject(number, error)
            return
        if number in self._open:
            self._open[number] = opened

    def _trace(self, number: int, request: InferRequest, sink: Sink, arrival: TracedArrival) -> Sink:
        """Trace a request if its turn has come; the sink for its responses."""
        assert self._tracer is not None
        recorder = self._tracer.start(request, arrival.protocol, arrival.headers, arrival.received)
        if recorder is None:
            return sink
        self._notify("traced", number)  # that process reports when it has sent the responses
        traced = self._traces[number] = TracedSink(recorder, sink, arrival.protocol)
        return traced

    def _on_traced_sending(self, number: int, began: int, ended: int, final: bool) -> None:  # noqa: FBT001 - by its position, from the link
        traced = self._traces.pop(number, None) if final else self._traces.get(number)
        if traced is not None:  # else the request was rejected when it came
            traced.on_sent(began, ended, final=final)

    def _refuse(self, number: int) -> None:
        """Have the process send a request elsewhere: its version is gone, or the memory with its inputs."""
        self.received_count -= 1
        self._open.pop(number, None)
        self._notify("refused", number)

    def _reject(self, number: int, error: NaiadError) -> None:
        self._open.pop(number, None)
        self._notify("rejected", number, without_frames(error))

    def reject_late(self, number: int, error: NaiadError) -> None:
        if number in self._open:
            self._reject(number, error)

    def reject_unreadable(self, kind: int, payload: Payload, error: Exception) -> None:
        """Reject a request whose message could not be handled: its client waits."""
        if kind in {FrameKind.SHORT_REQUEST, FrameKind.REQUEST}:
            number = NUMBER.unpack_from(payload)[0] if kind == FrameKind.SHORT_REQUEST else unpack(payload).number
            self._reject(number, unexpected_error("take a request of another process", error))

    def _on_cancel(self, number: int) -> None:
        submitted = self._open.get(number)
        if submitted is not None:
            submitted.cancel(drops_responses=False)

    def _on_drop_responses(self, number: int) -> None:
        submitted = self._open.get(number)
        if submitted is not None:
            submitted.drop_responses()

    def _on_confirm_sent(self, payload: Payload) -> None:
        number, count = CONFIRM_SENT.unpack(payload)
        submitted = self._open.get(number)
        if submitted is not None:
            submitted.confirm_sent(count)

    # -- responses ------------------------------------------------------------------------------------------------

    def sink_of(self, number: int) -> Sink:
        return _SessionSink(number, self)

    def respond_forwarded(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        """Send the response to a forwarded request, as the guest wrote it."""
        self._open.pop(number, None)
        link = self._link
        if not link.is_open:
            return  # the process has exited
        known = self._layouts.get((layout, True))
        if known is None:
            known = self._announce_layout((layout, True), *model, tuple(layout.entries))
        size = RESPONSE.size + len(outputs)
        link.send(RESPONSE_FRAME.pack(size, FrameKind.RESPONSE, 0, number, known, FINAL, 0) + outputs)

    def respond(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        if final:
            self._open.pop(number, None)
        link = self._link
        if not link.is_open:
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
        body: list[Buffer]
        if is_placed:
            head = RESPONSE.pack(number, layout, PLACED | final, self._lend(response))
            body = [PLACE.pack(*place) for place in places if place is not None]
        else:
            head = RESPONSE.pack(number, layout, final, 0)
            body = [output.data for output in outputs]
        size = len(head) + sum(map(len, body))
        link.send_parts([wire.FRAME.pack(size, FrameKind.RESPONSE, 0), head, *body])

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
        parts = [data for data, place in zip(found, places, strict=True) if place is None]
        size = sum(map(len, parts))
        token = self._lend(response) if any(places) else 0
        of = response.model_name, response.model_version, response.request_id
        message = FullResponse(number, final, *of, outputs, size, token, dict(response.parameters), response.error)
        self._link.send_parts([pack_before(FrameKind.FULL_RESPONSE, message, size), *parts])

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
            self._notify_with(segment.descriptor, "segment", segment.number, segment.capacity)
        return segment.number, segment.offset_of(data)

    def _lend(self, response: InferResponse) -> int:
        self._token = token = self._token % 0xFFFFFFFF + 1
        self._lent[token] = response
        return token

    def _on_release_outputs(self, payload: Payload) -> None:
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
        self._layout_count += 1
        self._layout_bytes += size_of(outputs)
        if len(self._layouts) >= _MAX_LAYOUTS or self._layout_bytes > _MAX_LAYOUT_BYTES:
            self._layouts.clear()
            self._layout_bytes = size_of(outputs)
            self._notify("forget_layouts")
        self._notify("layout", ResponseLayout(self._layout_count, model_name, model_version, outputs))
        self._layouts[key] = self._layout_count
        return self._layout_count
