"""The steps of an ensemble, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One step."""

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]  # pairs of a model input and the ensemble tensor mapped to it
    outputs: Mapping[str, str]  # ensemble tensors by the model output that sets them
    decoupled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleGraph:
    """An ensemble."""

    name: str
    steps: tuple[EnsembleStep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    consumers: Mapping[str, tuple[int, ...]] = field(init=False)
    input_counts: tuple[int, ...] = field(init=False)  # number of different tensors that each step uses
    producers: Mapping[str, int] = field(init=False)  # the step that sets a tensor, by tensor
    decoupled: bool = field(init=False)

    def __post_init__(self) -> None:
        consumers: dict[str, list[int]] = {}
        producers: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            for source in dict.fromkeys(tensor for _, tensor in step.inputs):
                consumers.setdefault(source, []).append(index)
            producers.update(dict.fromkeys(step.outputs.values(), index))
        object.__setattr__(self, "consumers", {name: tuple(steps) for name, steps in consumers.items()})
        counts = tuple(len({tensor for _, tensor in step.inputs}) for step in self.steps)
        object.__setattr__(self, "input_counts", counts)
        object.__setattr__(self, "producers", producers)
        object.__setattr__(self, "decoupled", any(step.decoupled for step in self.steps))

    def needed_for(self, outputs: Iterable[str]) -> frozenset[int]:
        needed: set[int] = set()
        pending = list(outputs)
        while pending:
            producer = self.producers.get(pending.pop())
            if producer is not None and producer not in needed:
                needed.add(producer)
                pending += [tensor for _, tensor in self.steps[producer].inputs]
        return frozenset(needed)
