"""The steps of an ensemble and what flows between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["EnsembleGraph", "EnsembleStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One step.

    Attributes:
        model: The model that it runs.
        version: Its version; -1 for the latest.
        inputs: The model's inputs and the ensemble's tensors that go into them.
        outputs: The ensemble's tensors by the model's outputs that they come from.
        decoupled: Whether the model may answer any number of times.
    """

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: Mapping[str, str]
    decoupled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleGraph:
    """An ensemble.

    Attributes:
        name: Its name.
        steps: Its steps.
        inputs: Its inputs.
        outputs: Its outputs in order.
        consumers: The steps that take a tensor, by the tensor.
        input_counts: How many different tensors each step takes.
        makers: The step that makes a tensor, by the tensor.
        decoupled: Whether it may answer a request any number of times.
    """

    name: str
    steps: tuple[EnsembleStep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    consumers: Mapping[str, tuple[int, ...]] = field(init=False)
    input_counts: tuple[int, ...] = field(init=False)
    makers: Mapping[str, int] = field(init=False)
    decoupled: bool = field(init=False)

    def __post_init__(self) -> None:
        consumers: dict[str, list[int]] = {}
        makers: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            for source in dict.fromkeys(tensor for _, tensor in step.inputs):
                consumers.setdefault(source, []).append(index)
            makers.update(dict.fromkeys(step.outputs.values(), index))
        object.__setattr__(self, "consumers", {name: tuple(steps) for name, steps in consumers.items()})
        counts = tuple(len({tensor for _, tensor in step.inputs}) for step in self.steps)
        object.__setattr__(self, "input_counts", counts)
        object.__setattr__(self, "makers", makers)
        object.__setattr__(self, "decoupled", any(step.decoupled for step in self.steps))

    def needed_for(self, outputs: Iterable[str]) -> frozenset[int]:
        """The steps without which these outputs would not come about."""
        needed: set[int] = set()
        ahead = list(outputs)
        while ahead:
            maker = self.makers.get(ahead.pop())
            if maker is not None and maker not in needed:
                needed.add(maker)
                ahead += [tensor for _, tensor in self.steps[maker].inputs]
        return frozenset(needed)
