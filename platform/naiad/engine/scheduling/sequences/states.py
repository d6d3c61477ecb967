"""Implicit state: tensors that the server keeps for a sequence between its requests.

The model receives them as inputs, and returns their next values among its outputs (Triton's batcher.md, "Implicit
State Management").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from naiad.protocol.inference import InputTensor, OutputTensor


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state."""

    output_name: str
    initial: InputTensor  # the input that receives it, with its value at the start of a sequence


class SequenceState:
    """The state of one sequence."""

    __slots__ = ("_positions", "inputs")

    def __init__(self, states: Sequence[StateTensor]) -> None:
        self.inputs = [state.initial for state in states]
        self._positions = {state.output_name: position for position, state in enumerate(states)}

    def update(self, outputs: Iterable[OutputTensor]) -> None:
        """Store the new values of the state, with the datatypes and shapes that the model returned."""
        for output in outputs:
            position = self._positions[output.name]
            # Copied: the data may be borrowed from the guest's segment, which would fill up while sequences last.
            self.inputs[position] = InputTensor(
                self.inputs[position].name, output.datatype, output.shape, bytes(output.data)
            )
