"""In which process of the server each instance of a model runs, and why. Pure: everything that it depends on is given.

Process 0 is the one that loads models, the coordinator. The instances of a model are spread evenly over all processes,
since each has connections of clients. The coordinator has one in any case: requests that need what only the coordinator
has go to that. A model with one instance is in the process that has the fewest: several of them use all cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from naiad.config.model.model_config import InstanceKind, ModelConfig, instance_groups, instance_names

__all__ = [
    "COORDINATOR",
    "LoadFacts",
    "Placement",
    "describe_ensemble",
    "describe_placement",
    "place_ensemble",
    "place_instances",
]

COORDINATOR = 0


class LoadFacts(NamedTuple):
    """What a load knows of a model beside its configuration.

    Attributes:
        is_native: Whether a native backend runs it.
        is_forked: Whether its guests are forked from a process that has done their imports.
        is_debugged: Whether its guests run at the terminal of the coordinator.
        is_on_demand: Whether its first request loads it.
        is_cached: Whether the server caches responses.
        is_rate_limited: Whether the server limits resources.
        has_gpus: Whether the server has GPUs, in whose memory clients and models may have tensors.
        passes_tensors: Whether it is a step of an ensemble, or named by LOAD_AFTER as a model that calls or is called.
    """

    is_native: bool = False
    is_forked: bool = False
    is_debugged: bool = False
    is_on_demand: bool = False
    is_cached: bool = False
    is_rate_limited: bool = False
    has_gpus: bool = False
    passes_tensors: bool = False


_NOTHING: Mapping[int, int] = MappingProxyType({})


class Placement(NamedTuple):
    """Where the instances of a model run.

    Attributes:
        processes: The number of the process of each instance, in the order of the configuration.
        reason: Why they are there, as the rest of a sentence.
        is_free: Whether its only instance might be in any process: which one depends on what else is loaded.
    """

    processes: tuple[int, ...]
    reason: str
    is_free: bool = False

    @property
    def is_spread(self) -> bool:
        """Whether several processes have instances."""
        return len(set(self.processes)) > 1


def place_instances(
    config: ModelConfig,
    facts: LoadFacts,
    processes: int,
    before: Mapping[str, int] | None = None,
    busy: Mapping[int, int] = _NOTHING,
) -> Placement:
    """Where the instances of a model run.

    Args:
        config: Its configuration.
        facts: What else is known of it.
        processes: Number of the server's processes, the coordinator included.
        before: The processes of the instances that stay where they are, by name.
        busy: How many instances of other models each process has.
    """
    names = [instance.name for instance in instance_names(config)]
    reason = "the server has one process" if processes <= 1 else _why_together(config, facts, len(names))
    if reason or not names:
        return Placement((COORDINATOR,) * len(names), reason)
    if len(names) == 1:
        return _place_one(names[0], processes, before or {}, busy)
    return Placement(_spread(names, processes, before or {}), "its instances share nothing")


def _place_one(name: str, processes: int, before: Mapping[str, int], busy: Mapping[int, int]) -> Placement:
    """The process of the only instance of a model.

    The first one is in the coordinator, as in a server of one process. Then that counts as a process with one more,
    since it also loads models.
    """
    number = before.get(name, processes)
    if number < processes:
        return Placement((number,), "its only instance was there before", is_free=True)
    counts = {each: busy.get(each, 0) for each in range(processes)}
    counts[COORDINATOR] += counts[COORDINATOR] > 0
    number = min(counts, key=lambda each: (counts[each], each))
    return Placement((number,), "it has one instance, and no process has fewer", is_free=True)


def place_ensemble(config: ModelConfig, members: Sequence[Collection[int]], *, is_cached: bool) -> Placement:
    """Which processes execute requests to an ensemble that arrive there; the coordinator executes all others.

    Args:
        config: The ensemble's configuration.
        members: For the model of each step, the processes beside the coordinator that have instances of it.
        is_cached: Whether the server caches responses.
    """
    message = config.message
    if is_cached and message.response_cache.enable:
        return Placement((COORDINATOR,), "one cache has its responses")
    if message.ensemble_scheduling.max_inflight_requests:
        return Placement((COORDINATOR,), "it limits the requests in one of its steps")
    shared = set.intersection(*map(set, members)) if members else set()
    if not shared:
        return Placement((COORDINATOR,), "no other process has instances of all of its models")
    return Placement((COORDINATOR, *sorted(shared)), "they have instances of all of its models")


def describe_ensemble(placement: Placement) -> str:
    """Which processes execute requests to an ensemble, and why, as a sentence without its end."""
    names = ", ".join(map(str, placement.processes))
    if not placement.is_spread:
        return f"its requests are executed in process {names}, because {placement.reason}"
    return f"its requests are executed in processes {names}, where they arrive, because {placement.reason}"


def describe_placement(config: ModelConfig, placement: Placement) -> str:
    """Where the instances of a model run, and why, as a sentence without its end."""
    names = [instance.name for instance in instance_names(config)]
    if not placement.is_spread:
        number = placement.processes[0] if placement.processes else COORDINATOR
        return f"all instances in process {number}, because {placement.reason}"
    places = [f"{name} in process {process}" for name, process in zip(names, placement.processes, strict=True)]
    return f"{', '.join(places)}, because {placement.reason}"


def _spread(names: Sequence[str], processes: int, before: Mapping[str, int]) -> tuple[int, ...]:
    """The process with the fewest instances for each new one; the coordinator has one."""
    counts = Counter(before[name] for name in names if name in before)
    chosen = []
    for name in names:
        number = before.get(name)
        if number is None:
            number = (
                min(range(processes), key=lambda each: (counts[each], each)) if counts[COORDINATOR] else COORDINATOR
            )
            counts[number] += 1
        chosen.append(number)
    return tuple(chosen)


def _why_together(config: ModelConfig, facts: LoadFacts, count: int) -> str:
    """Why the coordinator must have all *count* instances; empty if it need not."""
    message = config.message
    if config.settings.is_in_one_process:
        return "its parameter ONE_PROCESS asks for one process"
    if message.HasField("sequence_batching"):
        return "a sequence stays with its instance, and one scheduler knows all of them"
    if message.HasField("dynamic_batching") and count > 1:
        return "one queue fills the batches of all instances"
    if config.settings.scaling is not None:
        return "the number of its instances follows their load"
    if facts.is_native:
        return "instances of a native backend may share memory"
    if facts.is_forked:
        return "its instances are forked from one process"
    if facts.is_debugged:
        return "it runs under a debugger"
    if facts.is_on_demand:
        return "it is loaded on demand"
    if facts.is_cached and message.response_cache.enable:
        return "one cache has its responses"
    groups = instance_groups(config).values()
    if facts.is_rate_limited and any(group.HasField("rate_limiter") for group in groups):
        return "one rate limiter grants the resources of its instances"
    if any(group.passive for group in groups):
        return "it has passive instances"
    if any(instance.kind in {InstanceKind.GPU, InstanceKind.MODEL} for instance in instance_names(config)):
        return "tensors in GPU memory pass through one process"
    if count > 1:
        return ""
    if facts.has_gpus:
        return "tensors in the memory of this machine's GPUs pass through one process"
    if facts.passes_tensors:
        return "models of one process pass long tensors to each other without copies"
    return ""
