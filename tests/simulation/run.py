"""Runs a history, and looks for what must not happen."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import struct
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from naiad_stub.segment import Segment
from simulation.guest import INNER, SimulatedGuest
from simulation.histories import (
    BATCHING,
    DECOUPLED,
    HARMFUL,
    MEMBERS,
    SEQUENCES,
    Event,
    History,
    Kill,
    KillProcess,
    Load,
    Model,
    Request,
    Stop,
    Unload,
    config_text,
    kind_of,
)
from simulation.processes import FurtherProcess, Server
from simulation.world import SimulatedProcesses, SimulatedSocket, Stalled, World
from support.idle import leftovers as leftovers_of

from naiad.config.model import model_config
from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import Code, NaiadError
from naiad.engine import open_request
from naiad.engine.calls import model_calls
from naiad.engine.calls.model_calls import OpenCall
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.process_placement import COORDINATOR
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.loading import instance_change, loader, model_source
from naiad.engine.loading.loader import Loader, LoadSettings
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.scheduling.fifo import FifoScheduler
from naiad.engine.scheduling.rate_limit import ResourceCapacity
from naiad.engine.serving import requests_in_flight
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.guests import result_queue, worker
from naiad.guests.memory.instance import InstanceMemory
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.repositories import Repositories
from naiad.models.resolution.decision import Resolution
from naiad.models.resolution.layout import lay_out_guest
from naiad.models.resolution.resolve import ResolutionSettings
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor

SETTLE_SECONDS = 40.0
"""After so long without new requests all have ended, even those whose guests hang."""
LATE_CALL_NS = 100_000_000
UNKNOWN_NS = 60_000_000
"""For so long after its exit a guest may be sent requests."""
_SMALL_SEGMENT = 256 << 10
_SMALL_BLOCKS = 16 << 10
"""If more of a small segment is in use, some of it is a result, which its guest releases soon."""
LATE_SECONDS = 12.0
"""How long what is left of requests may stay: a hung guest is killed, memory is given back every two seconds."""


_LOGGER = logging.getLogger("naiad")


class _SinkError(Exception):
    """A client to which no response can be passed on."""


@dataclass
class Result:
    """What a run has shown.

    Attributes:
        failures: What must not happen, and has.
        digest: Equal for equal runs.
        events: What has happened, as time in ns and words.
    """

    failures: list[str]
    digest: str
    events: list[tuple[Any, ...]] = field(repr=False)

    def kinds(self) -> set[str]:
        """The failures without their details."""
        return {each.partition(": ")[0] for each in self.failures}


def run(history: History) -> Result:
    """Run a history from the start of its server to its end."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    world = World(history.seed)
    log, propagates = None, _LOGGER.propagate
    was_collecting = gc.isenabled()
    gc.disable()  # cycles are freed at other moments in each process
    try:
        with world.installed(), _settings_of(history) as patch:
            asyncio.set_event_loop(world.loop)
            each = _Run(history, world) if history.processes == 1 else ServerRun(history, world, patch)
            patch.setattr(Segment, "release", _checked_release(each.fail))
            log = _ExceptionLog(each)
            _LOGGER.addHandler(log)
            _LOGGER.propagate = False
            try:
                world.loop.run_until_complete(each.live())
            except Stalled as stalled:
                each.fail("the loop stalls", stalled, *each.open_requests())
            except Exception as error:
                each.fail("the run raises", f"{type(error).__name__}: {error}", traceback.format_exc(limit=-4))
            for problem in world.problems:
                each.fail("an exception reaches the loop", problem)
    finally:
        if log is not None:
            _LOGGER.removeHandler(log)
        _LOGGER.propagate = propagates
        asyncio.set_event_loop(None)
        world.close()
        logging.disable(disabled)
        if was_collecting:
            gc.enable()
    return Result(each.failures, world.digest(), world.events)


class _ExceptionLog(logging.Handler):
    """Exceptions that the engine did not expect, and logs: a failure, unless the history made them."""

    def __init__(self, run: _Run) -> None:
        super().__init__(logging.ERROR)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _SinkError):
            self._run.fail("an exception is logged", f"{record.getMessage()}: {type(error).__name__}: {error}")
        is_blamed = "it broke the protocol" in (text := record.getMessage())
        if is_blamed and not any(each.how in HARMFUL for each in self._run.history.requests()):
            self._run.fail("a guest is killed that does no harm", text)


class _Client:
    """The sink of a request, and what its client does.

    Attributes:
        process: The process that it is connected to; None for the coordinator.
        is_lost: Whether it is not connected any more.
    """

    def __init__(self, run: _Run, request: Request, process: FurtherProcess | None) -> None:
        self.run, self.request, self.process = run, request, process
        self.is_lost = False
        self.opened: Any = None
        self.is_ended = False
        self.responses = self.executed = 0
        self.error: NaiadError | None = None
        self.cancelled_at = 0.0
        self.sent_ns = run.world.now_ns
        # One that begins while the last request of another with its id waits may be executed beside that.
        self.sequence = request.model, request.sequence, run.sequences[request.model, request.sequence]
        self._fails = request.fails

    def send(self, response: InferResponse | None, final: bool) -> None:
        run, request = self.run, self.request
        if self.is_lost:
            return
        error = None if response is None else response.error
        run.world.note(
            "send", request.number, None if response is None else str(error.code) if error else "data", final
        )
        if self.is_ended:
            run.fail("a response after the end", request.number)
            return
        if self._fails:
            self._fails = False
            raise _SinkError
        self.is_ended, self.error = final, error or self.error
        if final:
            run.open.pop(request.number, None)
        if response is not None and error is None:
            self._on_data(response)
        if response is not None and self.opened is not None and request.confirms:
            run.world.loop.call_later(0.001, self.opened.confirm_sent)
        if request.cancels_while_sent and self.opened is not None and not final:
            self.opened.cancel()

    def lose(self) -> None:
        """Its connection is closed."""
        self.is_ended = self.is_lost = True
        self.run.open.pop(self.request.number, None)

    def _on_data(self, response: InferResponse) -> None:
        run, request = self.run, self.request
        data = response.outputs[0].data
        tag, index = struct.unpack_from("<qq", data)
        is_stream = kind_of(request.model) in DECOUPLED
        if tag != request.tag or len(data) != request.byte_size:
            run.fail("a response of another request", request.number, tag, len(data))
        if is_stream and index != self.responses:
            run.fail("responses out of order", request.number, index)
        if "ordered" in run.history.models[request.model].options and run.history.is_calm and run.is_alone:
            run.check_order("responses leave out of order", "ordered", request.number)
        self.responses += 1
        if not is_stream and self.responses > 1:
            run.fail("two responses of a model that is not decoupled", request.number)
        if request.keeps:
            run.world.loop.call_later(request.keeps, self._check_kept, data, tag)

    def _check_kept(self, data: Any, tag: int) -> None:
        if struct.unpack_from("<q", data)[0] != tag:
            self.run.fail("the bytes of a response change while a client has them", self.request.number)


class _ClientOfSeveral(_Client):
    """Implements `RejectableSink`: a request that another process has not accepted is none that was submitted."""

    def reject(self, error: NaiadError) -> None:
        if self.is_lost:
            return
        self.run.world.note("rejected late", self.request.number, str(error.code))
        if self.responses or self.is_ended:
            self.run.fail("a rejected request has a response", self.request.number)
        self.is_ended, self.error = True, error
        self.run.open.pop(self.request.number, None)
        self.run.accepted[self.request.model] -= 1


class _Run:
    """One run of a history. Implements `guest.Run`."""

    client: type[_Client] = _Client
    slack = 0.0
    """How much longer everything may take because it passes between processes of the server, in seconds."""

    def __init__(self, history: History, world: World) -> None:
        self.history, self.world = history, world
        self.failures: list[str] = []
        self.clients: list[_Client] = []
        self.open: dict[int, _Client] = {}
        self.sequences: Counter[tuple[str, int]] = Counter()  # how many have begun, by model and id
        changed = {each.model for each in history.events if isinstance(each, Load | Unload)}
        # With one instance, requests come to each of its guests in the order in which they were sent.
        self._in_order = {
            name
            for name, model in history.models.items()
            if name not in changed
            and self._is_single(name)
            and _is_in_order(name, model)
            and not history.small  # others may go before one that has no room
        }
        self.is_alone = len(history.models) == 1
        self._by_tag: dict[int, list[_Client]] = defaultdict(list)
        self._requests = {each.tag: each for each in history.requests()}
        self._executors: dict[int, SimulatedGuest] = {}  # the guest that got each request last
        self._moments: dict[str, list[Event]] = defaultdict(list)
        self._starts: Counter[str] = Counter()
        self._positions: dict[int, int] = {}  # of each request in the order in which they were sent
        self._last: dict[tuple[Any, ...], int] = {}
        self.accepted: Counter[str] = Counter()
        self._totals: dict[int, tuple[str, Any]] = {}
        self.changes: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self.processes = SimulatedProcesses(world, self._make_guest)
        world.on_moment, world.on_quiet = self._on_moment, self._check_promptness

    def fail(self, what: str, *details: object) -> None:
        text = f"{what}: {', '.join(map(str, details))}" if details else what
        if text not in self.failures:
            self.failures.append(text)
        self.world.note("FAILURE", text)

    def _is_single(self, name: str) -> bool:
        model = self.history.models[name]
        return model.instances == 1 and "scaled" not in model.options

    def open_requests(self) -> list[str]:
        return [f"request {number} of {client.request.model}" for number, client in sorted(self.open.items())]

    # -- for guests ---------------------------------------------------------------------------------------------

    def _make_guest(self, pid: int, spec: Any, memory: Any, socket: SimulatedSocket) -> SimulatedGuest:
        model = self.history.models[spec.load.model_name]
        number = self._starts[spec.load.model_name]
        self._starts[spec.load.model_name] += 1
        how = model.starts[number] if number < len(model.starts) else "ok"
        return SimulatedGuest(pid, spec, memory, socket, self, how, narrow="narrow" in model.options)

    def request_of(self, tag: int) -> Request | None:
        request = self._requests.get(tag % INNER)
        if request is None or tag < INNER:
            return request
        takes, responses = request.takes, request.responses
        return Request(
            model="", target=request.target, takes=takes, responses=responses, elements=request.called_elements
        )

    def on_caller_exited(self, guest: SimulatedGuest) -> None:
        for version in self.engine._registry.versions_alive.values():
            if isinstance(version, ModelVersion):
                for pending in version._in_flight._pending.values():
                    sink = pending.sink
                    if (
                        isinstance(sink, OpenCall)
                        and getattr(sink.worker, "pid", 0) == guest.pid
                        and not pending.is_cancelled
                    ):
                        self.fail("a call goes on after its caller has exited", guest.name, version.config.name)

    def on_executed(self, tag: int, guest: SimulatedGuest) -> None:
        self._executors[tag] = guest
        caller = self._executors.get(tag - INNER)
        late = LATE_CALL_NS + 1e9 * self.slack
        if caller is not None and caller.status is not None and self.world.now_ns - caller.exited_ns > late:
            self.fail("a call is executed long after its caller has exited", tag - INNER)
        clients = self._by_tag.get(tag, ())
        if len(clients) != 1 or kind_of(clients[0].request.model) in MEMBERS:
            return
        client, request = clients[0], clients[0].request
        if client.is_ended and client.error is not None and client.error.code is Code.CANCELLED and not client.executed:
            self.fail("a cancelled request is executed", request.number)
        if (
            client.cancelled_at
            and not client.executed
            and self.world.loop.time() - client.cancelled_at > 0.1 + self.slack
        ):
            self.fail("a request is executed long after its client has left", request.number)
        client.executed += 1
        if request.sequence and client.executed == 1:
            self.check_order("a sequence is executed out of order", client.sequence, request.number)
        elif request.model in self._in_order:
            self.check_order("requests are executed out of order", guest.pid, request.number)
        limit = request.timeout_us or 30_000
        has_timeout = "rejects late" in self.history.models[request.model].options
        if has_timeout and client.executed == 1 and not self._may_be_requeued(client):
            waited = (self.world.now_ns - client.sent_ns) / 1e6
            if waited > limit / 1000 + 40 + 1000 * self.slack:  # of which the way to the guest takes up to 30 ms
                self.fail("a request is executed after its timeout", request.number, f"{waited:.0f} ms")

    def _may_be_requeued(self, client: _Client) -> bool:
        """Whether a request may have been sent to a guest in vain: it has no timeout after that."""
        guests = self.processes.guests.values()
        return self.history.small or any(
            each.model == client.request.model and each.exited_ns > client.sent_ns - UNKNOWN_NS for each in guests
        )

    def check_order(self, what: str, place: object, number: int) -> None:
        """Requests must come to one place in the order in which they were sent."""
        position = self._positions[number]
        if self._last.get((what, place), 0) > position:
            self.fail(what, number)
        self._last[what, place] = position

    # -- what happens -------------------------------------------------------------------------------------------

    def _on_moment(self, what: str, model: str) -> None:
        for event in self._moments.pop(f"{what} {model}", ()):
            if event.at:
                self.world.later(event.at, self._do, event)
            else:
                self.world.loop.call_soon(self._do, event, context=self.world.context)

    def _do(self, event: Event) -> None:
        if self._stop.is_set():
            return
        self.world.note("do", event)
        if isinstance(event, Request):
            self.submit(event)
        elif isinstance(event, Kill):
            self._kill(event)
        elif isinstance(event, KillProcess):
            self.kill_process(event)
        elif isinstance(event, Stop):
            self._stop.set()
        else:
            self.change(event)

    def submit(self, request: Request) -> None:
        """A client sends a request."""
        self.submit_to(self.engine, request)

    def change(self, event: Event) -> None:
        """An operator loads or unloads a model."""
        self.changes.append(self.world.loop.create_task(self.change_by(self.engine, event)))

    def kill_process(self, event: KillProcess) -> None:
        """A process of the server is killed."""

    def submit_to(self, engine: Any, request: Request, process: FurtherProcess | None = None) -> None:
        self.sequences[request.model, request.sequence] += request.starts
        client = self.client(self, request, process)
        self._by_tag[request.tag].append(client)
        self.clients.append(client)
        self._positions[request.number] = len(self.clients)
        data: Any = struct.pack("<q", request.tag) + bytes(8 * (request.elements - 1))
        is_batching = kind_of(request.model) in BATCHING
        shape = (1, request.elements) if is_batching else (request.elements,)
        try:
            if request.reserves and len(data) > 1024:
                room = engine.reserve_input(request.model, -1, len(data), 0)
                if room is not None:
                    room[: len(data)] = data
                    data = room[: len(data)]
            client.opened = engine.submit(
                InferRequest(
                    request.model,
                    -1,
                    [InputTensor("IN", Datatype.INT64, shape, data)],
                    str(request.number),
                    priority=request.priority,
                    timeout_us=request.timeout_us,
                    correlation_id=request.sequence,
                    flags=request.starts | 2 * request.ends,
                    layout_key=(request.model, shape),
                ),
                client,
            )
        except NaiadError as error:
            self.world.note("rejected", request.number, str(error.code))
            if client.responses or client.is_ended:
                self.fail("a rejected request has a response", request.number)
            client.is_ended, client.error = True, error
            return
        except Exception as error:
            self.fail("submit raises", f"{type(error).__name__}: {error}", request.number)
            client.is_ended = True
            return
        self.accepted[request.model] += 1
        if not client.is_ended:
            self.open[request.number] = client
        if request.cancel == -1:
            self._cancel(client)
        elif request.cancel is not None:
            self.world.loop.call_later(request.cancel, self._cancel, client)

    def _cancel(self, client: _Client) -> None:
        if not client.is_ended:
            client.cancelled_at = self.world.loop.time()
        self.world.note("cancel", client.request.number)
        client.opened.cancel()

    def _kill(self, event: Kill) -> None:
        guests = self.processes.guests
        pids = [pid for pid in self.processes.running() if guests[pid].model == event.model]
        if event.request:
            pids = [pid for pid in pids if guests[pid] is self._executors.get(event.request)]
        if pids:
            guests[pids[event.instance % len(pids)]].exit(-11)

    async def change_by(self, engine: Any, event: Event) -> None:
        what = type(event).__name__.lower()
        try:
            if isinstance(event, Unload):
                await engine.unload(event.model, unload_dependents=event.with_members)
            else:
                assert isinstance(event, Load)
                parameters = {}
                if event.instances and kind_of(event.model) not in MEMBERS:
                    text = config_text(event.model, event.instances, self.history.models[event.model].options)
                    parameters = {"config": _as_json(text)}
                await engine.load(event.model, parameters)
            self.world.note(what, event.model, "done")
        except NaiadError as error:
            self.world.note(what, event.model, str(error.code), error.message[:120])
        except Exception as error:
            self.fail(f"{what} raises", f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3))

    # -- the whole life -----------------------------------------------------------------------------------------

    async def live(self) -> None:
        history, world = self.history, self.world
        self.limiter = SharedRateLimiter([ResourceCapacity("R", history.capacity)])
        made = _Loader(
            LoadSettings(
                resolution=ResolutionSettings(
                    backend_directories=(_place().backends,), guest=_place().guest, auto_complete=False
                ),
                auto_complete=False,
                limiter=self.limiter,
                hang_seconds=history.hang_seconds,
                is_caching=True,
                restart=RestartPolicy(limit=history.restart_limit, window=10.0, recovery=2.0),
                start_timeout=5.0,
                processes=self.processes,
                **self.of_several(),
            ),
            _Environments(),
        )
        settings = EngineSettings(
            repositories=_Repositories(history),
            is_explicit=True,
            startup_models=tuple(history.models),
            strict_config=True,
            response_cache_size=1 << 20,
            exit_timeout=history.exit_timeout,
        )
        self.engine = engine = Engine(settings, made)
        self.engine._registry.on_change = self._note_totals
        self.on_made(settings)
        for error in await engine.start():
            world.note("not loaded", error.message[:120])
            if not any(model.starts for model in history.models.values()):
                self.fail("a model does not load", error.message[:300])
        await self.open_ports()
        world.note("started")
        last = self._plan_events()
        await asyncio.wait([asyncio.ensure_future(self._stop.wait())], timeout=last + 0.001)
        if not self._stop.is_set():
            await self._settle()
        await self._end()

    def of_several(self) -> dict[str, Any]:
        """What loads have to know of other processes of the server."""
        return {}

    def on_made(self, settings: EngineSettings) -> None:
        """The engine was made."""

    async def open_ports(self) -> None:
        """The models were loaded."""

    async def stop_engine(self) -> None:
        """Stop the server."""
        await self.engine.finish_sequences()
        await self.engine.stop()

    def _plan_events(self) -> float:
        """Have everything done at its time; the last time that is known."""
        last = 0.0
        for event in self.history.events:
            if event.moment:
                self._moments[event.moment].append(event)
            else:
                last = max(last, event.at)
                self.world.loop.call_later(event.at, self._do, event)
        return last

    async def _settle(self) -> None:
        """Wait until everything has ended by itself; nothing may be left then."""
        loop = self.world.loop
        end = loop.time() + SETTLE_SECONDS
        while (self.open or not all(task.done() for task in self.changes)) and loop.time() < end:
            await asyncio.sleep(0.2)
        self._moments.clear()
        if not all(task.done() for task in self.changes):
            self.fail("a load or unload does not end")
        hangs = not self.history.hang_seconds or any(
            "never hangs" in each.options for each in self.history.models.values()
        )
        if self.open:
            if not (hangs and any(each.how in {"hang", "done twice"} for each in self.history.requests())):
                self.fail("requests wait for ever", *self.open_requests())
            return
        end = loop.time() + LATE_SECONDS
        while (left := self.leftovers()) and loop.time() < end:
            await asyncio.sleep(0.5)
        for each in left:
            if not (hangs and any(request.how in {"hang", "done twice"} for request in self.history.requests())):
                self.fail("left behind", each)
        if not left:
            await self.check_end()

    async def check_end(self) -> None:
        """Nothing is in progress, and nothing is left: what was counted must be right."""
        self._check_counts()

    def leftovers(self) -> list[str]:
        blocks = [
            f"{guest.name}: {len(guest.blocks)} blocks of outputs"
            for guest in self.processes.guests.values()
            if guest.status is None and guest.blocks
        ]
        return leftovers_of(self.engine) + blocks

    async def _end(self) -> None:
        loop, began = self.world.loop, self.world.loop.time()
        self._stop.set()
        await self.stop_engine()
        limit = self.history.exit_timeout
        if self.history.processes > 1:  # the models of other processes end first
            limit += 2 * min(limit, 5)
        elif any(kind_of(name) in (*SEQUENCES, "iterative") for name in self.history.models):
            limit += min(limit, 5)  # if sequences have used up the time, models get so much for `finalize`
        # `finalize` has at least 0.1 s, a killed process a moment to exit.
        if (took := loop.time() - began) > limit + 0.5 + 10 * self.slack:
            self.fail("the stop takes too long", f"{took:.2f} s of {self.history.exit_timeout} s")
        self.world.note("stopped")
        await asyncio.sleep(0.1)
        if running := self.processes.running():
            self.fail("guests run after the stop", *(self.processes.guests[pid].name for pid in running))
        if not all(task.done() for task in self.changes):
            self.fail("a load or unload goes on after the stop")
        if lost := [client.request.number for client in self.clients if not client.is_ended]:
            self.fail("requests without an end", *lost)
        await asyncio.sleep(10)
        own = {asyncio.current_task(), *self.changes}
        for task in asyncio.all_tasks() - own - self.world.loop.tasks_of_dead():
            if "_Run" not in repr(task.get_coro()) and "Event.wait" not in repr(task.get_coro()):
                self.fail("a task is left after the stop", getattr(task.get_coro(), "__qualname__", "?"))
        for name in self.world.loop.scheduled():
            if "Process" not in name and not name.startswith(("_Run", "_Client", "SimulatedGuest", "SimulatedSocket")):
                self.fail("a timer is left after the stop", name)

    # -- what must hold -----------------------------------------------------------------------------------------

    def _check_promptness(self) -> None:
        """Nothing is due: no request may wait for an instance that is idle, unless something else holds it."""
        for version in self.versions() if hasattr(self, "engine") else ():
            if version._is_ending:
                continue
            scheduler, gate = version._in_flight._scheduler, version._in_flight._gate
            idle = [
                each.name
                for each in version._active
                if each.worker is not None and not each.worker.batches and each.is_serving
            ]
            if (
                idle
                and gate is None
                and scheduler.waiting_count
                and isinstance(scheduler, FifoScheduler | DynamicScheduler)
            ):
                self.fail("requests wait for an idle instance", idle[0])
        for (_, name), used in self.limiter._limiter._used.items():
            if not used and any(self.limiter._staged.values()):
                self.fail("batches wait for a free resource", name)

    def versions(self) -> list[ModelVersion]:
        """All versions that have instances, in all processes."""
        return [each for each in self.engine._registry.versions_alive.values() if isinstance(each, ModelVersion)]

    def _note_totals(self) -> None:
        """Remember what is counted of each version: some are gone when everything is added up."""
        for version in self.engine._registry.versions_alive.values():
            self.note_totals(version.config.name, version.totals)

    def note_totals(self, name: str, totals: Any) -> None:
        """What is counted of a version, or of one of its replicas."""
        self._totals[id(totals)] = name, totals

    def _check_counts(self) -> None:
        """Every accepted request is one success or one failure of its model."""
        self._note_totals()
        counted: Counter[str] = Counter()
        for name, totals in self._totals.values():
            counted[name] += _requests_of(totals)
        models = self.history.models
        inner = {member for name in models for member in MEMBERS.get(kind_of(name), ())}
        if any(kind_of(name) == "caller" for name in models):
            inner |= models.keys()
        for name in models.keys() - inner:
            is_dormant = "demand" in models[name].options  # a loaded version continues the counts of the dormant one
            if is_dormant or kind_of(name) == "iterative":  # each round of a request counts
                continue
            if counted[name] != self.accepted[name]:
                self.fail(
                    "requests are not counted once", f"{name}: {self.accepted[name]} accepted, {counted[name]} counted"
                )


class ServerRun(_Run):
    """One run of a history of a server that has several processes."""

    client = _ClientOfSeveral
    slack = 0.2

    def __init__(self, history: History, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(history, world)
        self.is_alone = False
        self._in_order = set()  # requests that come to several processes have no order
        self._lost_ns: list[int] = []  # when processes were killed
        self._sent = 0  # requests that clients of other processes have sent
        self.server = Server(self, history.processes, patch)

    # -- what happens -------------------------------------------------------------------------------------------

    def _process(self, number: int) -> FurtherProcess | None:
        """The process that a client connects to; None for the coordinator."""
        process = self.server.running().get(number)
        return process if process is not None and process.is_listening else None

    def submit(self, request: Request) -> None:
        process = self._process(request.process)
        if process is not None:
            process.run(self.submit_to, process.engine, request, process)
            self._sent += self.clients[-1].opened is not None
        elif request.process == COORDINATOR:
            self.submit_to(self.server.facade, request)
        else:
            self.world.note("no connection", request.number)

    def change(self, event: Event) -> None:
        process = self._process(event.process)
        if process is not None:
            self.changes.append(process.run(self.world.loop.create_task, self.change_by(process.engine, event)))
        else:
            self.changes.append(self.world.loop.create_task(self.change_by(self.server.facade, event)))

    def kill_process(self, event: KillProcess) -> None:
        process = self.server.running().get(event.process)
        if process is not None:
            self._lost_ns.append(self.world.now_ns)
            process.exit(-9)

    def on_process_exit(self, process: FurtherProcess) -> None:
        """A process has exited: its clients are disconnected."""
        for client in self.clients:
            if client.process is process and not client.is_ended:
                client.lose()
        gone = self.world.loop.tasks_of(process)
        self.changes = [each for each in self.changes if each not in gone]

    async def stop_clients(self, process: FurtherProcess | None, grace: float) -> None:
        """Wait for the requests of a process's clients, then disconnect them: as listeners do."""
        loop = self.world.loop
        end = loop.time() + grace

        def left() -> list[_Client]:
            return [each for each in self.clients if each.process is process and not each.is_ended]

        while left() and loop.time() < end:
            await asyncio.sleep(0.02)
        for client in left():
            client.lose()
            client.opened.cancel()

    # -- the whole life -----------------------------------------------------------------------------------------

    def of_several(self) -> dict[str, Any]:
        return {"replicas": self.server.replicas, "link_memory": self.server.memory}

    def on_made(self, settings: EngineSettings) -> None:
        self.server.start(self.engine, settings)
        announce = self.engine._registry.on_change  # to the other processes

        def note_and_announce() -> None:
            self._note_totals()
            announce()

        self.engine._registry.on_change = note_and_announce

    async def open_ports(self) -> None:
        await self.server.pool.start(())

    async def stop_engine(self) -> None:
        engine, server = self.engine, self.server
        await engine.end_loads()
        server.replicas.close_replicas()
        await engine.finish_sequences()
        await server.stop()
        await engine.stop()
        for process in server.processes:
            if process.status is None:
                self.fail("a process runs after the stop", process.number)
        server.close()

    # -- what must hold -----------------------------------------------------------------------------------------

    def on_executed(self, tag: int, guest: SimulatedGuest) -> None:
        super().on_executed(tag, guest)
        clients = self._by_tag.get(tag, ())
        if len(clients) != 1 or kind_of(clients[0].request.model) in (*MEMBERS, "iterative"):
            return
        if clients[0].executed > 1 and not self._may_be_requeued(clients[0]):
            self.fail("a request is executed twice", clients[0].request.number)

    def versions(self) -> list[ModelVersion]:
        replicas = [version for process in self.server.running().values() for version in process.replicas._versions()]
        return super().versions() + replicas

    def leftovers(self) -> list[str]:
        return [*super().leftovers(), *self.server.leftovers()]

    async def check_end(self) -> None:
        self._check_answers()
        if self._lost_ns:
            return
        self._check_counts()
        await self.engine.gather_counts()
        received = sum(each.peer.session.received_count for each in self.server.replicas.running.values())
        if received != self._sent:
            self.fail("requests are not received once", f"{self._sent} sent, {received} received")
        for number, version in self.server.replicas._versions.items():
            own = [each.replicas.find(number) for each in self.server.running().values()]
            counted = sum(_requests_of(each.totals) for each in own if each is not None)
            reported = sum(_requests_of(each.statistics) for each in version.counts())
            if any(own) and counted != reported:
                self.fail("the coordinator counts other requests", f"{version._of[0]}: {reported} of {counted}")

    def _check_answers(self) -> None:
        """Where nothing is disturbed, every request has its responses; where processes die, it may be told of that."""
        history = self.history
        requests = [each for each in history.events if not isinstance(each, KillProcess)]
        if history.small or not History(models=history.models, events=tuple(requests)).is_calm:
            return
        for client in self.clients:
            request = client.request
            if kind_of(request.model) not in {"plain", "stream", "stream_chain", "warm"} or request.fails:
                continue
            if request.how != "ok" or request.cancel is not None or request.cancels_while_sent or client.is_lost:
                continue
            if client.error is not None:
                # A process that does not run gets no requests, once others can know that.
                late = client.sent_ns - LATE_CALL_NS
                was_told = "exited" in client.error.message and any(lost > late for lost in self._lost_ns)
                if not was_told:
                    self.fail("a request fails without a reason", request.number, client.error.message)
            elif client.responses != request.responses:
                self.fail("a request has not all of its responses", request.number, client.responses)


def _requests_of(totals: Any) -> int:
    return int(totals._success + totals._fail.count)


def _is_in_order(name: str, model: Model) -> bool:
    """Whether nothing but the order of requests decides when a model executes them."""
    if kind_of(name) == "batch":
        return not {"levels", "delays late"}.intersection(model.options)
    return name in {"plain", "stream"}


# -- what the engine is given -----------------------------------------------------------------------------------------


class _Environments:
    """Provides an interpreter that is never started."""

    def prepare(self, source: object, *, python: object = None, python_origin: str = "", label: str = "") -> Any:
        return SimpleNamespace(
            python=Path("/python3"), version=(3, 11, 0), is_host=False, lease=None, environ=lambda _: {}
        )

    def activity(self) -> dict[str, str]:
        return {}


_resolutions: dict[tuple[Path, str], Resolution] = {}
_messages: dict[Path, pb.ModelConfig] = {}
_rendered: dict[bytes, Any] = {}


class _Loader(Loader):
    """Resolves each model once, for all histories."""

    def _resolve(self, config: Any, files: ModelFiles, version: int) -> Resolution:
        key = files.directory, config.name
        if key not in _resolutions:
            _resolutions[key] = super()._resolve(config, files, version)
        return _resolutions[key]

    def _unfetched(self, files: ModelFiles, resolution: Resolution) -> str:
        return ""


class _Repositories(Repositories):
    """The models of one history. All histories share the files of equal models."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._own = {}
        for name, model in history.models.items():
            text = config_text(name, model.instances, model.options)
            folder = _folder(name, text)
            self._own[name] = ModelFiles(name=name, repository=folder.parent, directory=folder)

    def scan(self) -> Any:
        return SimpleNamespace(models=dict(self._own), duplicates=())

    def known_models(self) -> list[ModelFiles]:
        return list(self._own.values())

    def fetch(self, files: ModelFiles) -> None:
        pass


@functools.cache
def _place() -> Any:
    folder = tempfile.TemporaryDirectory(prefix="naiad-simulation-")  # removed at the exit, by its finalizer
    root = Path(folder.name)
    (root / "backends").mkdir()
    return SimpleNamespace(folder=folder, root=root, backends=root / "backends", guest=lay_out_guest(root / "guest"))


@functools.cache
def _folder(name: str, text: str) -> Path:
    """The folder of a model with that configuration."""
    folder = _place().root / f"{_folder.cache_info().misses}" / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text)
    if kind_of(name) not in MEMBERS:
        (folder / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    return folder


@functools.cache
def _as_json(text: str) -> str:
    message = pb.ModelConfig()
    text_format.Parse(text, message)
    return str(json_format.MessageToJson(message))


_release = Segment.release
_originals = model_source.read_config, model_config.to_json, loader.threads_each
_threads_each = functools.cache(loader.threads_each)
"""Reads the limits of this machine's control groups once, and not for each instance."""


def _read_config(files: ModelFiles, **more: Any) -> pb.ModelConfig:
    if files.directory not in _messages:
        _messages[files.directory] = _originals[0](files, **more)
    message = pb.ModelConfig()
    message.CopyFrom(_messages[files.directory])
    return message


def _to_json(message: pb.ModelConfig) -> Any:
    key = message.SerializeToString(deterministic=True)
    if key not in _rendered:
        _rendered[key] = _originals[1](message)
    return _rendered[key]


def _small_memory(name: str, **more: Any) -> InstanceMemory:
    memory = InstanceMemory(name, **more)
    memory.inputs.capacity = _SMALL_SEGMENT
    return memory


def _checked_release(fail: Callable[..., None]) -> Callable[[Segment, int], bool]:
    def release(segment: Segment, offset: int) -> bool:
        if not (is_released := _release(segment, offset)):
            fail("an input block is freed twice", offset)
        return is_released

    return release


@contextlib.contextmanager
def _settings_of(history: History) -> Iterator[pytest.MonkeyPatch]:
    """Read and render each configuration once for all histories, and set constants to what the history wants.

    Small values reach states for which a real server needs many requests.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(model_source, "read_config", _read_config)
    patch.setattr(model_config, "to_json", _to_json)
    for module in (loader, instance_change):
        patch.setattr(module, "threads_each", _threads_each)
    patch.setattr(open_request, "_CREDIT_RESPONSES", 2)
    if history.small:
        patch.setattr(worker, "InstanceMemory", _small_memory)
        patch.setattr(result_queue, "_SMALL_BLOCKS", _SMALL_BLOCKS)
    if history.deep:
        patch.setattr(requests_in_flight, "_INITIAL_PACE_NS", 0)
        patch.setattr(model_calls, "_FEW_CALLS", 0)
    try:
        yield patch
    finally:
        patch.undo()
