"""In which process of the server each instance of a model runs, and why. Pure: everything that it depends on is given.

Process 0 is the one that loads models, the coordinator. A model with at least as many instances as there are processes,
which share nothing, has instances in each: each process has connections of clients. Every other model is in the
coordinator, and requests for it go there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from naiad.config.model.model_config import InstanceKind, ModelConfig, instance_groups, instance_names
from naiad.core.quantities import counted

COORDINATOR = 0


class LoadFacts(NamedTuple):
    """What a load knows of a model beside its configuration."""

    is_native: bool = False
    is_forked: bool = False
    is_debugged: bool = False  # whether its guests run at the terminal of the coordinator
    is_on_demand: bool = False
    is_cached: bool = False
    is_rate_limited: bool = False


class Placement(NamedTuple):
    """Where the instances of a model run."""

    processes: tuple[int, ...]  # the number of the process of each instance, in the order of the configuration
    reason: str

    @property
    def is_spread(self) -> bool:
        return len(set(self.processes)) > 1


def place_instances(config: ModelConfig, facts: LoadFacts, processes: int) -> Placement:
    """Where the instances of a model run; *processes* counts the coordinator."""
    count = len(instance_names(config))
    reason = "the server has one process" if processes <= 1 else _why_together(config, facts)
    if not reason and count < processes:
        reason = (
            f"it has {counted(count, 'instance')} for {processes} processes; with a count of {processes} or more, each "
            "would have one"
        )
    if reason:
        return Placement((COORDINATOR,) * count, reason)
    return Placement(tuple([number % processes for number in range(count)]), "its instances share nothing")


def place_ensemble(config: ModelConfig, members: Sequence[Collection[int]], *, is_cached: bool) -> Placement:
    """Which processes execute requests to an ensemble that arrive there; *members*: who has each step's model."""
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


def _why_together(config: ModelConfig, facts: LoadFacts) -> str:
    message = config.message
    if config.settings.is_in_one_process:
        return "its parameter ONE_PROCESS asks for one process"
    if message.HasField("sequence_batching"):
        return "a sequence stays with its instance, and one scheduler knows all of them"
    if message.HasField("dynamic_batching"):
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
    return ""
