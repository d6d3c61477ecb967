"""Replicas: the instances of a loaded version that run in other processes of the server.

The version itself is in the coordinator, with its share of the instances. Each other process that has some of them runs
a replica: a version of its own, of the same number, with its own queue. A request is answered where it arrives, or goes
once, when it arrives, to where there is less to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from naiad.core.errors import NaiadError, unexpected_error
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.ensembles.graph import EnsembleStep
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.engine.serving.version_log import VersionLog
from naiad.engine.serving.warmup import WarmupSample
from naiad.engine.statistics.counters import Statistics
from naiad.guests.launch import LaunchSpec
from naiad.guests.worker import Worker
from naiad.protocol.metadata import InstanceStatus, MemoryUse

logger = logging.getLogger("naiad.engine")

_MOVE_SECONDS = 0.002  # how often calls that wait are looked at: an instance of another process may be idle
# After so many looks in vain, a call goes to a process whose numbers say that it is busy: requests may have been sent
# ahead to one of its instances, behind one that waits for this very call, while another instance is idle.
_ASK_LOOKS = 25


class ReplicaOrder(NamedTuple):
    """What a process needs to run a replica; plain values that can be pickled."""

    number: int  # of the version's load
    version: int
    namespace: str
    config: bytes  # its effective configuration, as bytes of the message
    specs: tuple[LaunchSpec, ...]  # how to start the guest of each of the replica's instances
    policy: RestartPolicy
    samples: tuple[WarmupSample, ...]
    row: int = 0  # of the version's loads on the table (`server.processes.load_table`)
    steps: tuple[EnsembleStep, ...] = ()  # of an ensemble, which has no instances; none for a model


class ReplicaCounts(NamedTuple):
    """What a replica reports of itself."""

    statistics: Statistics
    pending: int = 0  # requests that wait for an instance
    running: int = 0  # requests that instances have
    memory: tuple[MemoryUse, ...] = ()  # as its guests reported it
    refused: str = ""  # which requests it refuses now, as a sentence; empty for none


class ReplicaReport(NamedTuple):
    """What a process reports of one of its replicas."""

    counts: ReplicaCounts
    statuses: Sequence[InstanceStatus]
    is_asked: bool  # whether its model defines `is_ready`
    typical: int  # how long `execute` usually takes there, in nanoseconds


class ProcessCounts(NamedTuple):
    """What a process with replicas has counted."""

    received: int  # requests of its clients that it has answered, or sent to other replicas
    # Of its guests that it has executed itself, by the names of the calling and the called model.
    calls: Mapping[tuple[str, str], int]
    replicas: Mapping[int, ReplicaReport]  # by the number of the load


class Replicas(Protocol):
    """All replicas of one version, as the coordinator sees them."""

    typical: int  # how long `execute` usually takes in the slowest of them, as they reported last, in nanoseconds
    row: int  # where processes note their loads for the version
    is_decoupled: bool
    log: VersionLog  # the version's log, which gets what guests of replicas log, too
    take_back: Callable[[OpenRequest], None]  # called with a request that its replica did not take

    @property
    def processes(self) -> Collection[int]:
        """The numbers of the processes that have one."""

    async def start(self) -> None:
        """Start the replicas in all processes; raises the first failure when all have started or failed."""

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, then end all guests."""

    @property
    def in_flight(self) -> int:
        """Number of requests that the other processes have."""

    def is_serving(self) -> bool:
        """Whether an instance of a replica can serve now."""

    def are_all_serving(self) -> bool:
        """Whether every instance of every replica can."""

    def statuses(self) -> Sequence[InstanceStatus]:
        """The status of each of their instances."""

    def counts(self) -> Sequence[ReplicaCounts]:
        """What the replicas had counted when they reported last, those of processes that have exited included."""

    def queries(self) -> Sequence[Awaitable[bool]]:
        """Asks the models, where they define `is_ready`, whether one of them is *not* ready."""

    def note_load(self, in_flight: int) -> None:
        """Tell other processes how many requests the coordinator's instances have."""

    def note_instances(self, count: int) -> None:
        """Tell other processes how many of the coordinator's instances can serve."""

    def least_loaded(self, in_flight: int, instances: int) -> int | None:
        """The process whose replica has less to do than *instances* with *in_flight* requests; None without one."""

    def idle_process(self) -> int | None:
        """A process whose replica has an idle instance; None without one."""

    def process_to_ask(self) -> int | None:
        """A process whose replica serves, in turn: it may have an idle instance all the same. None without one."""

    def send(self, process: int, opened: OpenRequest) -> None:
        """Send a request to a replica. A replica without an idle instance does not take one that needs it: `take_back`.

        What becomes of it is told to its sink: this raises nothing.
        """

    def workers(self) -> Collection[Worker] | None:
        """The guests of all replicas, for the detection of deadlocks; None while one is being started."""


class ReplicaMaker(Protocol):
    """The other processes of the server."""

    @property
    def processes(self) -> int:
        """Number of processes, the coordinator included."""

    def make(self, order: ReplicaOrder, model: str, specs: Mapping[int, Sequence[LaunchSpec]]) -> Replicas:
        """The replicas of a version, not started; *order* has neither instances nor a row, *specs* are by process."""


class _WaitingCalls:
    """Moves calls between models that wait for an instance of this process to others that have an idle one.

    Clients' requests stay where they wait. A call may wait for its own caller here, while an instance is idle there.
    """

    def __init__(
        self,
        in_flight: RequestsInFlight,
        replicas: Replicas,
        move: Callable[[int, OpenRequest], None],
    ) -> None:
        self._is_waiting = in_flight.is_waiting
        # The requests that wait, those that may not move included: `add` is of use while there are any.
        self.queue = in_flight.waiting
        self._replicas = replicas
        self._move_one = move
        self._vain_looks = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._calls: deque[OpenRequest] = deque()  # in the order of arrival; some of them may not wait any more
        self._is_closed = False

    def add(self, call: OpenRequest) -> None:
        """A call that may go to another process waits: look at it soon, and again while it does."""
        if not self._is_closed:
            self._calls.append(call)
            self._look_later()

    def add_again(self, call: OpenRequest) -> None:
        """A call that was sent to another process waits here again: at its place, if it was not looked at since."""
        if call in self._calls:
            self._look_later()
        else:
            self.add(call)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_MOVE_SECONDS, self.look)

    def look(self) -> None:
        self._timer = None
        while (pending := self._oldest()) is not None:
            process = self._replicas.idle_process()
            if process is None:
                self._look_in_vain(pending)
                return
            self._vain_looks = 0
            self._move_one(process, pending)

    def _look_in_vain(self, oldest: OpenRequest) -> None:
        self._look_later()
        self._vain_looks += 1
        if self._vain_looks >= _ASK_LOOKS:
            self._vain_looks = 0
            process = self._replicas.process_to_ask()
            if process is not None:
                self._move_one(process, oldest)

    def _oldest(self) -> OpenRequest | None:
        while self._calls:
            if self._is_waiting(self._calls[0]):
                return self._calls[0]
            self._calls.popleft()
        return None

    def close(self) -> None:
        self._is_closed = True
        self._calls.clear()


class Spreading:
    """Takes the requests of a version that has replicas: submits each here, or sends it to a replica with less to do.

    A call of a model goes to an idle instance alone, here or there. Where none is idle it waits here, and moves as soon
    as one is: a call that waits in a replica would be missing where deadlocks are looked for.
    """

    def __init__(
        self, admission: Admission, in_flight: RequestsInFlight, replicas: Replicas, count_serving: Callable[[], int]
    ) -> None:
        """Spread the requests of one version, whose *in_flight* dispatches them one by one."""
        self._admission = admission
        self._in_flight = in_flight
        self._replicas = replicas
        self._count_serving = count_serving
        self._is_closed = False
        self._waiting = _WaitingCalls(in_flight, replicas, self._move)
        replicas.take_back = self._take_back

    def spread(self, opened: OpenRequest) -> None:
        needs_idle = opened.needs_idle
        is_taken = self._in_flight.has_idle() if needs_idle else self._in_flight.takes_at_once(self._replicas.typical)
        if (not is_taken or self._admission.reason) and not self._is_closed and is_movable(opened):
            process = self._replicas.idle_process() if needs_idle else self._better_process()
            if process is not None:
                self._admission.require_valid(opened.request)
                self._replicas.send(process, opened)
                return
        self._admission.admit(opened)
        self._replicas.note_load(len(self._in_flight))
        if needs_idle and self._waiting.queue and self._in_flight.is_waiting(opened) and is_movable(opened):
            self._waiting.add(opened)

    def close(self) -> None:
        self._is_closed = True
        self._waiting.close()

    def _better_process(self) -> int | None:
        instances = 0 if self._admission.reason else self._count_serving()
        return self._replicas.least_loaded(len(self._in_flight), instances)

    def _move(self, process: int, opened: OpenRequest) -> None:
        self._in_flight.give_away(opened)
        self._replicas.send(process, opened)

    def _take_back(self, opened: OpenRequest) -> None:
        """A replica is not idle any more: the request waits here."""
        opened.needs_idle = True
        try:
            self._admission.start(opened)
        except NaiadError as error:
            opened.fail(error)
        except Exception as error:
            logger.exception("cannot take a request to '%s' back", opened.request.model_name)
            opened.fail(unexpected_error(f"submit the request to '{opened.request.model_name}'", error))
        else:
            self._waiting.add_again(opened)


def is_movable(opened: OpenRequest) -> bool:
    """Whether a request may go to another process: tensors in GPU memory belong to this one."""
    return opened.request.device is None
