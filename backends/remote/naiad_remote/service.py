"""One loaded remote model: from the server's requests to calls of targets, and from their ends to responses.

Each call in flight has a thread with a blocking socket. On an event loop a response sender could not block until its
client reads, so each stream would need a queue with limits of its own. In the host, a crash of this code would be the
server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

import triton_python_backend_utils as pb_utils

from naiad_remote import batches, chain, completion, settings
from naiad_remote.caller import Caller
from naiad_remote.errors import CallError, Cause
from naiad_remote.listed import NODE_VARIABLE, ListedCaller
from naiad_remote.metrics import Metrics
from naiad_remote.shadow import Shadow
from naiad_remote.watch import Watch
from naiad_remote.wire import CODES, DATATYPES, Parameter, WireRequest, WireResponse, WireTensor

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_SEQUENCE_START, _SEQUENCE_END = 1, 2


class TritonPythonModel:
    """Calls the targets of one model on separate threads, so that requests do not wait for each other.

    Responses are sent by response senders, so `execute` returns at once.
    """

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Complete the configuration from the targets' own."""
        return completion.complete(config, pb_utils.get_model_dir())

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._settings = settings.read(config, pb_utils.get_model_dir())
        self._is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        if self._is_decoupled:
            _require_streams(self._settings)
        self._is_batching = config.get("max_batch_size", 0) > 0 and not self._is_decoupled
        self._output_order = {output["name"]: index for index, output in enumerate(config.get("output", ()))}
        self._link = chain.link(_server_id(), args["model_name"], args["model_version"])
        metrics = Metrics(args["model_name"], args["model_version"], args["model_instance_name"])
        self._watch = Watch()
        given = self._settings
        options = {"watch": self._watch, "metrics": metrics, "is_decoupled": self._is_decoupled}
        new_caller = partial(Caller, given, **options, random=random.random)
        self._caller: Any
        if given.servers:
            node = os.environ.get(NODE_VARIABLE, "")
            self._caller = ListedCaller(
                given, node, lambda listed: new_caller(listed.targets, kind="primary", near=listed.near)
            )
        else:
            self._caller = new_caller(given.targets, given.weights, kind="primary")
        self._shadow = None
        if given.shadows:
            shadows = new_caller(given.shadows, kind="shadow")
            self._shadow = Shadow(shadows, given.shadow_share, given.shadow_in_flight, random.random)
        self._threads = ThreadPoolExecutor(given.max_in_flight, "remote")

    def execute(self, requests: List[Any]) -> None:
        """Call a target for each request, or for several that can be joined; responses follow by their senders."""
        calls: List[_Call] = []
        joined: Dict[Any, _Call] = {}
        for request in requests:
            sender = request.get_response_sender()
            try:
                wire = self._to_wire(request)
                rows = batches.rows_of(wire) if self._is_batching and not request.correlation_id() else 0
                layout = batches.layout_of(wire) if rows else None
            except Exception as error:  # noqa: BLE001 - sent to the client; the other requests of the batch go on
                _send_error([sender], error)
                continue
            if rows:
                call = joined.setdefault(layout, _Call(request.timeout()))
                call.timeout_us = min(call.timeout_us, request.timeout()) or max(call.timeout_us, request.timeout())
            else:
                call = _Call(request.timeout())
            if not call.parts:
                calls.append(call)
            call.parts.append((request, sender, wire, rows))
        for call in calls:
            self._threads.submit(self._run, call)

    def is_ready(self) -> bool:
        return self._caller.is_ready()

    def finalize(self) -> None:
        """Wait for the calls in flight, then close all connections."""
        self._threads.shutdown(wait=True)
        if self._shadow is not None:
            self._shadow.close()
        self._caller.close()
        self._watch.close()

    def _to_wire(self, request: Any) -> WireRequest:
        """The call that a request becomes; CallError for a chain that returns to this model, or an invalid header."""
        parameters: Dict[str, Parameter] = json.loads(request.parameters())
        headers = dict(self._settings.headers)
        received, forwarded = "", frozenset()
        traced: List[Tuple[str, str]] = []
        context = request.trace().get_context()
        if context:
            received, forwarded, traced = chain.read_context(context)
        for name in self._settings.forward_headers:
            _forward(name, parameters, forwarded, headers)
        if traced:
            headers.update({name.lower(): value for name, value in traced if settings.is_header(name, value)})
        headers[chain.HEADER] = chain.extend(received, self._link, self._settings.max_chain)
        if request.correlation_id():
            parameters["sequence_id"] = request.correlation_id()
            parameters["sequence_start"] = bool(request.flags() & _SEQUENCE_START)
            parameters["sequence_end"] = bool(request.flags() & _SEQUENCE_END)
        if request.timeout():
            parameters["timeout"] = request.timeout()
        outputs = sorted(request.requested_output_names(), key=lambda name: self._output_order.get(name, -1))
        inputs = [_to_wire(tensor) for tensor in request.inputs()]
        return WireRequest(request.request_id(), inputs, outputs, parameters, list(headers.items()))

    def _run(self, call: _Call) -> None:
        requests, senders, wires, rows = zip(*call.parts)
        try:
            joined = batches.join(wires)
            sequence = requests[0].correlation_id() or None
            clients = [each.is_cancelled for each in requests]
            for response in self._caller.call(joined, clients, call.timeout_us, sequence, call.began):
                self._send(senders, batches.split(response, rows))
            if self._is_decoupled:
                senders[0].send(flags=_FINAL)
            if self._shadow is not None:
                self._shadow.offer(joined)
        except Exception as error:  # noqa: BLE001 - sent to the clients; other requests go on
            _send_error(senders, error)

    def _send(self, senders: Sequence[Any], responses: Sequence[WireResponse]) -> None:
        flags = 0 if self._is_decoupled else _FINAL
        for sender, each in zip(senders, responses):
            parameters = {name: value for name, value in each.parameters.items() if not name.startswith("triton_")}
            if self._is_decoupled and not each.outputs and not parameters:
                continue  # the empty end of a stream
            tensors = [_from_wire(tensor) for tensor in each.outputs]
            sender.send(pb_utils.InferenceResponse(tensors, parameters=parameters), flags)


@dataclass
class _Call:
    """Requests that become one call of a target."""

    timeout_us: int  # the shortest of the requests; 0 if none has one
    began: float = field(default_factory=time.monotonic)  # when the first of them arrived
    # Each request with its response sender, as it is sent, and its rows.
    parts: List[Tuple[Any, Any, WireRequest, int]] = field(default_factory=list)


# Methods of tensors that are private to the product, which this backend is part of: the public `as_numpy` would decode
# and encode each element of BYTES, and numpy has no BF16.


def _to_wire(tensor: Any) -> WireTensor:
    """A tensor of a request. Its bytes are those of the server's memory while the result refers to them."""
    code, shape, data, _ = tensor._payload()  # noqa: SLF001 - see above
    return WireTensor(tensor.name(), DATATYPES[code], tuple(shape), [data])


def _from_wire(tensor: WireTensor) -> Any:
    """A tensor of a response, without a copy."""
    code, (data,) = CODES[tensor.datatype], tensor.parts
    return pb_utils.Tensor._received(tensor.name, code, tensor.shape, data)  # noqa: SLF001 - see above


def _require_streams(given: settings.Settings) -> None:
    if given.servers and not given.servers_port.startswith("grpc"):
        raise ValueError(
            "the model is decoupled, and HTTP has one response for a request: set the parameter 'servers_port' to grpc"
        )
    for target in (*given.targets, *given.shadows):
        if not target.is_grpc:
            raise ValueError(
                f"the model is decoupled, and HTTP has one response for a request: give {target} as an address of gRPC"
            )


def _server_id() -> str:
    """Identifies this server in chains of calls; another server than naiad gives no id to its models."""
    return os.environ.get("NAIAD_SERVER_ID") or f"{socket.gethostname()}-{secrets.token_hex(3)}"


def _forward(name: str, parameters: Dict[str, Parameter], forwarded: Collection[str], headers: Dict[str, str]) -> None:
    """Send a parameter that the server made from a header as a header again; *name* is in lower case.

    CallError for one that the client sent: a proxy that sets or checks headers, as after a login, has not seen it.
    """
    for given in [each for each in parameters if each.lower() == name]:
        if given not in forwarded:
            text = (
                f"cannot forward the header '{name}': it came as a parameter of the request; send it as a header that "
                "the server forwards, and in calls between models pass the request's trace"
            )
            raise CallError(Cause.BLOCKED, text, "INVALID_ARG")
        value = str(parameters.pop(given))
        if not settings.is_header(name, value):
            raise CallError(Cause.BLOCKED, f"cannot forward the header '{name}': its value is invalid", "INVALID_ARG")
        headers[name] = value


def _send_error(senders: Sequence[Any], error: Exception) -> None:
    """Send why the call of some requests failed."""
    if not isinstance(error, CallError):
        pb_utils.Logger.log_error(f"a call of a remote model failed: {error!r}")
        error = CallError(Cause.ERROR, f"cannot call a remote model: {error!r}", "INTERNAL")
    code = getattr(pb_utils.TritonError, error.code)
    for sender in senders:
        # Of requests that are one call, some may have their response already: their senders are closed.
        with contextlib.suppress(pb_utils.TritonModelException):
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error.text, code)), flags=_FINAL)
