"""The replicas of this process, as sessions with other processes need them."""

from __future__ import annotations

from collections.abc import Callable

from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest
from naiad.server.processes.own_replicas import OwnReplica, OwnReplicas
from naiad.server.processes.request_session import GoneError


class ReplicaModels:
    """Implements `OwnModels`: a request goes to the load of a version that its process had in mind, and stays here."""

    is_exiting = False  # the coordinator knows: it rejects requests, and closes all replicas

    def __init__(self, replicas: OwnReplicas) -> None:
        self._replicas = replicas

    def route(self, name: str, version: int, load: int) -> Target:
        return self.find_target(name, version, load)

    def find_target(self, name: str, version: int, load: int) -> Target:  # noqa: ARG002 - the signature of `OwnModels`
        return self._find(name, load).version

    def submit(
        self, request: InferRequest, sink: Sink, load: int, on_taken: Callable[[str], None] | None = None
    ) -> SubmittedRequest:
        replica = self._find(request.model_name, load)
        opened = OpenRequest(request, sink, on_taken is not None)
        if on_taken is None:
            replica.submit(opened)
        else:
            replica.submit_call(opened, on_taken)
        return opened

    def _find(self, name: str, load: int) -> OwnReplica:
        replica = self._replicas.find(load)
        if replica is None or not replica.is_open:
            raise GoneError(f"model '{name}' was unloaded while the request was received; send it again")
        return replica
