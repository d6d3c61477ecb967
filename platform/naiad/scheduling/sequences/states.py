"""Implicit state: tensors that the server keeps for a sequence between its requests.

A model is given them as inputs, and hands the next ones back among the outputs of its responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from naiad.protocol.inference import InputTensor, OutputTensor

__all__ = ["SequenceState", "StateTensor"]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor that is kept.

    Attributes:
        output_name: The output that it comes from.
        initial: The input that it goes to, as a sequence begins with it.
    """

    output_name: str
    initial: InputTensor


class SequenceState:
    """What is kept of one sequence.

    Attributes:
        inputs: The tensors its next request is given.
    """

    __slots__ = ("_positions", "inputs")

    def __init__(self, states: Sequence[StateTensor]) -> None:
        self.inputs = [state.initial for state in states]
        self._positions = {state.output_name: position for position, state in enumerate(states)}

    def keep(self, outputs: Iterable[OutputTensor]) -> None:
        """Take over the new values of the states; whatever type and shape the model gave them."""
        for output in outputs:
            position = self._positions[output.name]
            # Copied: the bytes may lie in the guest's segment, which has no room to lend for as long as sequences live.
            self.inputs[position] = InputTensor(
                self.inputs[position].name, output.datatype, output.shape, bytes(output.data)
            )
