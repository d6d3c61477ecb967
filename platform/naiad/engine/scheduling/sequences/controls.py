"""Control tensors: inputs that tell a model the sequence and the flags of each request.

Documented in Triton's batcher.md, "Control Inputs".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import InvalidRequestError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InputTensor

_Kind = pb.ModelSequenceBatching.Control
_FLAG_BITS = SEQUENCE_START | SEQUENCE_END


class _Flag(NamedTuple):
    false: InputTensor
    true: InputTensor


class Controls:
    """The control tensors of a model, of shape [1], or [1, 1] for a model with a batch dimension."""

    __slots__ = ("_by_flags", "_correlation", "_shape", "_unready", "has_ready")

    def __init__(self, config: ModelConfig) -> None:
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        self._correlation: tuple[str, Datatype] | None = None
        flags: dict[int, _Flag] = {}
        for tensor in config.message.sequence_batching.control_input:
            for control in tensor.control:
                if control.kind == _Kind.CONTROL_SEQUENCE_CORRID:
                    self._correlation = tensor.name, Datatype(control.data_type)
                else:
                    flags[control.kind] = self._flag(tensor.name, control)
        # Whether the model has the READY control, which tells requests from padding rows.
        self.has_ready = _Kind.CONTROL_SEQUENCE_READY in flags
        self._by_flags = tuple(_choose(flags, bits, is_ready=True) for bits in range(_FLAG_BITS + 1))
        self._unready = _choose(flags, 0, is_ready=False) + self._correlation_tensor(None)

    def check(self, correlation_id: int | str, model: str) -> None:
        """Check that *correlation_id* has the type of the CORRID control; raise InvalidRequestError if not."""
        if self._correlation is None:
            return
        name, datatype = self._correlation
        if isinstance(correlation_id, str) is not (datatype is Datatype.BYTES):
            given = "BYTES" if isinstance(correlation_id, str) else "UINT64"
            raise InvalidRequestError(
                f"sequence batching control '{name}' data-type is '{given}', but model '{model}' "
                f"expects '{datatype.name}'"
            )

    def tensors_for(self, flags: int, correlation_id: int | str) -> tuple[InputTensor, ...]:
        """The tensors of a request with *flags*, in the order START, END, READY, CORRID."""
        tensors = self._by_flags[flags & _FLAG_BITS]
        return tensors if self._correlation is None else tensors + self._correlation_tensor(correlation_id)

    def padding_tensors(self) -> tuple[InputTensor, ...]:
        return self._unready

    def _flag(self, name: str, control: pb.ModelSequenceBatching.Control) -> _Flag:
        if control.int32_false_true:
            datatype, form, values = Datatype.INT32, "<i", tuple(control.int32_false_true)
        elif control.fp32_false_true:
            return self._pair(name, Datatype.FP32, "<f", tuple(control.fp32_false_true))
        else:
            datatype, form, values = Datatype.BOOL, "<?", tuple(control.bool_false_true)
        return self._pair(name, datatype, form, values)

    def _pair(self, name: str, datatype: Datatype, form: str, values: tuple[float, ...]) -> _Flag:
        false, true = (InputTensor(name, datatype, self._shape, struct.pack(form, value)) for value in values)
        return _Flag(false, true)

    def _correlation_tensor(self, correlation_id: int | str | None) -> tuple[InputTensor, ...]:
        if self._correlation is None:
            return ()
        name, datatype = self._correlation
        if datatype is Datatype.BYTES:
            text = str(correlation_id or "").encode()
            data = len(text).to_bytes(4, "little") + text
        else:
            # As in the reference, a control of fewer bits receives the low ones.
            size = datatype.byte_size
            data = (int(correlation_id or 0) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        return (InputTensor(name, datatype, self._shape, data),)


def _choose(flags: dict[int, _Flag], bits: int, *, is_ready: bool) -> tuple[InputTensor, ...]:
    states = (
        (_Kind.CONTROL_SEQUENCE_START, bool(bits & SEQUENCE_START)),
        (_Kind.CONTROL_SEQUENCE_END, bool(bits & SEQUENCE_END)),
        (_Kind.CONTROL_SEQUENCE_READY, is_ready),
    )
    return tuple(flags[kind].true if state else flags[kind].false for kind, state in states if kind in flags)
