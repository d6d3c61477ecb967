"""Histories: models, and what clients, operators and guests do; made from a seed, or written down in a test.

A history is a value whose `repr` is what a test contains. What a guest does with a request is part of the request, so
that the requests that are left of a shortened history are treated as before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace

IO = 'input { name: "IN" data_type: TYPE_INT64 dims: [-1] } output { name: "OUT" data_type: TYPE_INT64 dims: [-1] }\n'
CONTROLS = "".join(
    f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} int32_false_true: [0, 1] }} }}\n'
    for name in ("START", "READY", "END")
)
STATE = (
    'state { input_name: "SUM_IN" output_name: "SUM" data_type: TYPE_INT64 dims: [1] '
    'initial_state { name: "zero" data_type: TYPE_INT64 dims: [1] zero_data: true } }'
)
WARM_UP = 'model_warmup { name: "zeros" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_INT64 dims: [1] zero_data: true } } }'

MEMBERS = {"chain": ("plain", "cached"), "stream_chain": ("plain", "stream")}
"""The models of each ensemble's steps."""
BATCHING = ("batch", "slots", "candidates", "iterative", "stateful", "limited_batch")
SEQUENCES = ("slots", "candidates", "stateful")
DECOUPLED = ("stream", "stream_chain")
KINDS = (*BATCHING, "plain", "cached", "warm", "stream", "chain", "stream_chain", "caller", "limited")
HARMFUL = ("hang", "dies before", "dies between", "garbage", "done twice", "two ends")
"""What a request may make its guest do that harms other requests, too."""

BATCH_RULES = {
    "delay": "max_queue_delay_microseconds: 20000",
    "short delay": "max_queue_delay_microseconds: 500",
    "ordered": "preserve_ordering: true",
    "levels": "priority_levels: 3 default_priority_level: 2",
    "preferred": "preferred_batch_size: [2]",
    "queue of 3": "default_queue_policy { max_queue_size: 3 }",
    "rejects late": "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 30000 allow_timeout_override: true }",
    "delays late": "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 20000 max_queue_size: 4 }",
}
QUEUES = ("queue of 3", "rejects late", "delays late")
PARAMETERS = {
    "demand": {"demand": "true", "idle_seconds": "1"},
    "scaled": {"min_instances": "1", "max_instances": "3"},
    "never hangs": {"HANG_SECONDS": "0"},
}


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """A value that is shown without the fields that have their default."""

    def __repr__(self) -> str:
        shown = [(each, getattr(self, each.name)) for each in fields(self)]
        return f"{type(self).__name__}({', '.join(f'{each.name}={value!r}' for each, value in shown if value != each.default)})"


@dataclass(frozen=True, slots=True, repr=False)
class Model(Shown):
    """A model; its name begins with its kind.

    Attributes:
        instances: Number of its instances.
        options: Rules of its configuration.
        starts: How its guests start, one after another (see `guest.SimulatedGuest`); "ok" for all further ones.
    """

    instances: int = 1
    options: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Event(Shown):
    """Something that clients or operators do.

    Attributes:
        at: Seconds after the models were loaded, or after the moment.
        moment: What happens before, such as "finalize plain"; the event is left out if that does not happen.
        model: The model.
        process: The process that clients and operators are connected to.
    """

    model: str
    at: float = 0.0
    moment: str = ""
    process: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Request(Event):
    """A client sends a request.

    Attributes:
        number: Its number.
        content: What its guest finds in the input; by default the number.
        how: What the guest does: "ok", "error" (fails), "answered" (the model returns an error), "call", "reschedules",
            or one of HARMFUL.
        takes: Seconds that `execute` takes.
        responses: How many a decoupled model sends.
        gap: Seconds between them.
        target: The model that is called.
        calls: How many calls the guest makes of it at once; they take as long as the request, and have its responses.
        called_elements: Size of their inputs.
        elements: Size of its input.
        is_short: Whether its responses have two elements, however many the input has.
        cancel: Seconds after which the client leaves, -1 for at once; None for never.
        cancels_while_sent: Whether it leaves while it is sent a response.
        confirms: Whether the client reads what it is sent.
        keeps: Seconds for which it keeps the bytes of its responses.
        reserves: Whether its body is read into the input segment.
        fails: Whether the first response cannot be passed on.
        sequence: Its sequence; 0 for none.
    """

    number: int = 0
    content: int = 0
    how: str = "ok"
    takes: float = 0.001
    responses: int = 1
    gap: float = 0.0
    target: str = ""
    calls: int = 1
    called_elements: int = 1
    elements: int = 1
    is_short: bool = False
    priority: int = 0
    timeout_us: int = 0
    cancel: float | None = None
    cancels_while_sent: bool = False
    confirms: bool = True
    keeps: float = 0.0
    reserves: bool = False
    fails: bool = False
    sequence: int = 0
    starts: bool = False
    ends: bool = False

    @property
    def byte_size(self) -> int:
        """Of each response."""
        return 16 if self.is_short else max(8 * self.elements, 16)

    @property
    def tag(self) -> int:
        """What its guest finds in the input."""
        return self.content or self.number


@dataclass(frozen=True, slots=True, repr=False)
class Load(Event):
    """An operator loads a model: from its files, or with so many instances."""

    instances: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Unload(Event):
    """An operator unloads a model."""

    with_members: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Kill(Event):
    """A guest is killed: of an instance, or the one that executes a request."""

    instance: int = 0
    request: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class KillProcess(Event):
    """A process of the server is killed, and its guests with it."""

    model: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Stop(Event):
    """The server stops before everything else has been done."""

    model: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class History(Shown):
    """What happens in one life of a server.

    Attributes:
        seed: Decides what the history leaves open.
        models: All models, by name; they are loaded at the start.
        events: What is done, in order.
        hang_seconds: `--stub-hang-seconds`.
        capacity: Units of the rate limiter's resource.
        exit_timeout: `--exit-timeout-secs`.
        restart_limit: `--stub-restart-limit`.
        deep: Whether an instance may hold several requests from the beginning.
        small: Whether the input segments of guests have room for one long input only.
        processes: Number of processes of the server.
    """

    seed: int = 0
    models: dict[str, Model] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    hang_seconds: float = 2.0
    capacity: int = 2
    exit_timeout: float = 5.0
    restart_limit: int = 5
    deep: bool = False
    small: bool = False
    processes: int = 1

    def requests(self) -> list[Request]:
        return [each for each in self.events if isinstance(each, Request)]

    @property
    def is_calm(self) -> bool:
        """Whether models stay as they are, and no guest exits."""
        if any(each != "ok" for model in self.models.values() for each in model.starts):
            return False
        return all(isinstance(each, Request) and each.how not in HARMFUL for each in self.events)


def kind_of(model: str) -> str:
    """The kind of a model."""
    return model.partition(" ")[0]


def config_text(name: str, instances: int, options: tuple[str, ...]) -> str:
    """`config.pbtxt` of a model."""
    kind = kind_of(name)
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for option in options
        for key, value in PARAMETERS.get(option, {}).items()
    )
    if kind in MEMBERS:
        first, second = MEMBERS[kind]
        steps = "".join(
            f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{taken}" }} '
            f'output_map {{ key: "OUT" value: "{made}" }} }}\n'
            for model, taken, made in ((first, "IN", "MID"), (second, "MID", "OUT"))
        )
        limit = "max_inflight_requests: 1" if "limit" in options else ""
        return f'name: "{name}" platform: "ensemble"\n{IO}ensemble_scheduling {{ {limit} {steps} }}'
    limiter = ""
    if kind.startswith("limited"):
        units = 2 if "greedy" in options else 1
        limiter = f'rate_limiter {{ resources [ {{ name: "R" count: {units} }} ] priority: {1 + ("late" in options)} }}'
    elif "limited" in options:
        limiter = 'rate_limiter { resources [ { name: "R" count: 1 } ] }'
    size = {"batch": 4, "limited_batch": 4, "iterative": 3, "slots": 2, "candidates": 2, "stateful": 2}.get(kind, 0)
    head = f'name: "{name}" backend: "python" max_batch_size: {size}\n{IO}{parameters}'
    head += f"instance_group [ {{ kind: KIND_CPU count: {instances} {limiter} }} ]\n"
    idle = "max_sequence_idle_microseconds: 300000"
    delay = f"max_queue_delay_microseconds: {5000 if 'delay' in options else 0}"
    if kind in {"batch", "limited_batch"}:
        return head + f"dynamic_batching {{ {' '.join(BATCH_RULES[each] for each in options if each in BATCH_RULES)} }}"
    if kind == "slots":
        utilization = f"minimum_slot_utilization: {0.5 if 'half full' in options else 0}"
        return head + f"sequence_batching {{ {idle} {CONTROLS} direct {{ {delay} {utilization} }} }}"
    if kind == "candidates":
        return head + f"sequence_batching {{ {idle} {CONTROLS} oldest {{ max_candidate_sequences: 3 {delay} }} }}"
    if kind == "stateful":
        return head + f"sequence_batching {{ {idle} {CONTROLS} {STATE} oldest {{ max_candidate_sequences: 3 }} }}"
    if kind == "iterative":
        return head + f"sequence_batching {{ {idle} iterative_sequence: true }}"
    more = {"stream": "model_transaction_policy { decoupled: true }", "cached": "response_cache { enable: true }"}
    return head + {**more, "warm": WARM_UP}.get(kind, "")


# -- from a seed ------------------------------------------------------------------------------------------------------

_OPTIONS = {
    "batch": ((), ("delay",), ("short delay", "preferred"), ("ordered",), ("ordered", "delay"), ("levels",), *((each,) for each in QUEUES)),
    "limited_batch": ((), *((each,) for each in QUEUES)),
    "slots": ((), ("delay",), ("half full", "delay")),
    "candidates": ((), ("delay",)),
    "limited": ((), ("greedy",), ("late",)),
    "caller": ((), (), ("limited",), ("never hangs",)),
    "chain": ((), ("limit",)),
    "stream_chain": ((), ("limit",)),
    "plain": ((), (), ("demand",), ("scaled",)),
    "stream": ((), (), ("demand",), ("narrow",)),
    "cached": ((), ("demand",)),
}  # fmt: skip
_MOMENTS = ("load", "ready", "execute", "respond", "call", "finalize", "exit")
_CALLED = ("stream", "stream", "plain", "batch", "cached", "limited")
_QUEUED = ("plain", "stream", "batch", "limited", "limited_batch")
"""Kinds that are alone in some histories, with many requests that wait."""
_GAPS = (0, 0, 1e-4, 2e-3, 2e-2, 0.3)
_SHORT_GAPS = (0, 0, 0, 1e-4, 2e-3)
"""With which more requests wait."""
_STARTS = (
    "fails",
    "dies",
    "dies at once",
    "hangs",
    "dies in warm-up",
    "fails in warm-up",
    "hangs in finalize",
    "dies in finalize",
)


def make(seed: int, *, most_events: int = 24) -> History:
    """The history of a seed."""
    rng = random.Random(f"history {seed}")
    theme = rng.random()
    if theme < 0.2:
        names = ["caller", rng.choice(_CALLED)]
    elif theme < 0.4:
        names = [rng.choice(_QUEUED)]
    else:
        names = rng.sample(KINDS, rng.randint(1, 3))
    if "caller" in names and rng.random() < 0.4:
        names.append("caller b")
    is_alone = len(names) == 1
    names += [member for name in list(names) for member in MEMBERS.get(name, ()) if member not in names]
    is_disturbed = rng.random() < 0.7
    harm = rng.choice((0, 0.1, 0.4)) if is_disturbed else 0.0
    bad_starts = rng.choice((0, 0, 0.2)) if is_disturbed else 0.0
    models = {}
    for name in sorted(set(names)):
        starts = tuple(
            rng.choice(_STARTS) if rng.random() < bad_starts else "ok" for _ in range(8 if bad_starts else 0)
        )
        instances = 1 if theme < 0.4 and rng.random() < 0.5 else rng.randint(1, 3)
        models[name] = Model(instances, rng.choice(_OPTIONS.get(kind_of(name), ((),))), starts)
    events: list[Event] = []
    steps: dict[tuple[str, int], int] = {}
    at = 0.0
    kills_only = rng.random() < 0.3
    gaps = _SHORT_GAPS if rng.random() < (0.7 if is_alone else 0.3) else _GAPS
    for number in range(1, rng.randint(4, most_events) + 1):
        at += rng.choice(gaps)
        model, moment, when = rng.choice(sorted(models)), "", at
        if rng.random() < 0.15:
            moment, when = f"{rng.choice(_MOMENTS)} {rng.choice(sorted(models))}", rng.choice((0, 0, 1e-4, 1e-3))
        if is_disturbed and rng.random() < 0.15:
            events.append(_disturb(rng, model, when, moment, kills_only=kills_only))
        else:
            events.append(_request(rng, number, model, when, moment, sorted(models), harm, steps))
    if is_disturbed and rng.random() < 0.3:
        events.append(
            Stop(at=at, moment=f"{rng.choice(_MOMENTS)} {rng.choice(sorted(models))}" if rng.random() < 0.3 else "")
        )
    return History(
        seed=seed,
        models=models,
        events=tuple(events),
        hang_seconds=rng.choice((2.0, 2.0, 0.0)),
        capacity=rng.choice((2, 2, 3)),
        exit_timeout=rng.choice((0.2, 5.0)),
        restart_limit=rng.choice((1, 5)),
        deep=rng.random() < 0.5,
        small=rng.random() < 0.2,
    )


def make_processes(seed: int, *, most_events: int = 24) -> History:
    """The history of a seed, of a server with two or three processes."""
    rng = random.Random(f"processes {seed}")
    processes = rng.choice((2, 2, 3))
    theme = rng.random()
    is_busy = rng.random() < 0.5  # nearly all requests come at once, for instances in all processes
    if theme < 0.35:
        names = ["caller", rng.choice(_CALLED)]
    elif theme < 0.55:
        names = [rng.choice(("plain", "stream"))]
    elif theme < 0.7:
        names = ["stream_chain"]
    else:
        names = rng.sample(KINDS, rng.randint(1, 3))
    if "caller" in names and rng.random() < 0.3:
        names.append("caller b")
    names += [member for name in list(names) for member in MEMBERS.get(name, ()) if member not in names]
    is_disturbed = rng.random() < 0.7
    harm = rng.choice((0, 0, 0.1, 0.3)) if is_disturbed else 0.0
    bad_starts = rng.choice((0, 0, 0, 0.2)) if is_disturbed else 0.0
    models = {}
    for name in sorted(set(names)):
        starts = tuple(
            rng.choice(_STARTS) if rng.random() < bad_starts else "ok" for _ in range(8 if bad_starts else 0)
        )
        options = () if rng.random() < 0.5 else rng.choice(_OPTIONS.get(kind_of(name), ((),)))
        counts = (processes,) if is_busy else (1, processes, processes, processes + 1)
        if kind_of(name) == "caller" and is_busy:
            counts = (processes, 2 * processes)
        models[name] = Model(rng.choice(counts), () if is_busy else options, starts)
    events: list[Event] = []
    steps: dict[tuple[str, int], int] = {}
    at = 0.0
    gaps = _SHORT_GAPS if is_busy or rng.random() < 0.5 else _GAPS
    deaths = rng.choice((0, 0, 0.1, 0.3)) if is_disturbed else 0.0
    changes = rng.choice((0, 0, 0.15)) if is_disturbed else 0.0
    for number in range(1, rng.randint(most_events if is_busy else 4, most_events) + 1):
        at += rng.choice(gaps)
        model, moment, when = rng.choice(sorted(models)), "", at
        if "caller" in models and is_busy and rng.random() < 0.7:
            model = "caller"
        if rng.random() < 0.15:
            moment, when = f"{rng.choice(_MOMENTS)} {rng.choice(sorted(models))}", rng.choice((0, 0, 1e-4, 1e-3))
        event: Event
        if rng.random() < deaths:
            event = KillProcess(at=when, moment=moment, process=rng.randrange(1, processes))
        elif rng.random() < changes:
            event = replace(_disturb(rng, model, when, moment, kills_only=False), process=rng.randrange(processes))
        else:
            request = _request(rng, number, model, when, moment, sorted(models), harm, steps)
            # The requests of a sequence have an order on one connection alone.
            event = replace(request, process=(request.sequence or rng.randrange(processes)) % processes)
        events.append(event)
    if is_disturbed and rng.random() < 0.2:
        events.append(Stop(at=at))
    return History(
        seed=seed,
        models=models,
        events=tuple(events),
        hang_seconds=rng.choice((2.0, 2.0, 0.0)),
        capacity=rng.choice((2, 2, 3)),
        exit_timeout=rng.choice((0.2, 5.0)),
        restart_limit=rng.choice((1, 5)),
        deep=rng.random() < 0.5,
        small=rng.random() < 0.1,
        processes=processes,
    )


def _disturb(rng: random.Random, model: str, at: float, moment: str, *, kills_only: bool) -> Event:
    what = Kill if kills_only else rng.choice((Load, Load, Unload, Kill, Kill))
    if what is Load:
        return Load(model=model, at=at, moment=moment, instances=rng.choice((0, 1, 2, 3)))
    if what is Unload:
        return Unload(model=model, at=at, moment=moment, with_members=rng.random() < 0.5)
    if not moment and rng.random() < 0.4:
        moment, at = f"{rng.choice(('execute', 'call'))} {model}", rng.choice((0, 1e-4, 2e-3, 0.02))
    return Kill(model=model, at=at, moment=moment, instance=rng.randrange(3))


def _request(
    rng: random.Random,
    number: int,
    model: str,
    at: float,
    moment: str,
    names: list[str],
    harm: float,
    steps: dict[tuple[str, int], int],
) -> Request:
    kind = kind_of(model)
    how, target = "ok", ""
    if rng.random() < harm:
        how = rng.choice(("error", "answered", *HARMFUL))
    elif kind == "caller":
        how, target = "call", rng.choice((*names, "nowhere"))
    elif kind == "iterative" and rng.random() < 0.6:
        how = "reschedules"
    is_short = kind in SEQUENCES or kind == "iterative"
    sequence, starts, ends = 0, False, False
    if kind in SEQUENCES:
        sequence, moment = rng.randint(1, 5), ""
        step = steps.get((model, sequence), 0)
        starts, ends = step == 0 and rng.random() < 0.95, rng.random() < 0.3
        steps[model, sequence] = 0 if ends else step + 1
    is_batching = kind in {"batch", "limited_batch"}
    cancel = rng.choice((-1, 0, 1e-4, 4e-3, 0.02, 0.2)) if rng.random() < 0.25 else None
    return Request(
        model=model,
        at=at,
        moment=moment,
        number=number,
        content=1000 + rng.randrange(3) if kind == "cached" else 0,
        how=how,
        takes=rng.choice((0, 5e-5, 4e-4, 5e-3, 0.1, 0.6)),
        responses=rng.choice((0, 1, 2, 9)) if kind in DECOUPLED or kind_of(target) in DECOUPLED else 1,
        gap=rng.choice((0, 1e-3, 0.05)) if kind in DECOUPLED else 0,
        target=target,
        calls=rng.choice((1, 1, 2)) if target else 1,
        called_elements=rng.choice((1, 1, 300, 20_000))
        if target and kind_of(target) not in (*SEQUENCES, "iterative")
        else 1,
        elements=1 if is_short or kind == "caller" else rng.choice((1, 1, 2, 300, 20_000)),
        is_short=kind != "cached" and rng.random() < 0.2,
        priority=rng.choice((0, 0, 1, 3)) if is_batching else 0,
        timeout_us=rng.choice((0, 0, 5_000, 100_000)) if is_batching else 0,
        cancel=cancel,
        cancels_while_sent=rng.random() < 0.04,
        confirms=cancel is None or rng.random() < 0.5,
        keeps=rng.choice((0, 0, 0.5)),
        reserves=rng.random() < 0.3,
        fails=harm > 0 and rng.random() < 0.03,
        sequence=sequence,
        starts=starts,
        ends=ends,
    )
