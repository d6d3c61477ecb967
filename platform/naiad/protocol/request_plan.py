"""What a loaded version accepts, compiled once, and the check of a request against it.

A `RequestPlan` is compiled when a version is loaded (`engine.serving.compile_plan`). It is immutable plain data: it can
be pickled, sent to another process and used there, because this module needs no protobuf, and numpy only for long
BYTES tensors.

`RequestPlan.check` is a pure function. It takes a request and returns a `CheckedRequest` or raises; it changes neither.
A checked request consists of the request as the model sees it and a `CheckedLayout`: the batch size and the packed
description of the inputs that goes into the message to the guest.

A layout depends on names, datatypes, shapes and requested outputs, and on nothing else where every input has elements
of a fixed size. Such a layout `is_repeatable`: the engine keeps it in a `Memo` under the request's `layout_key` and
checks no further request with the same key. The memo belongs to one loaded version and is dropped with it, so that a
layout can never outlive the plan it was checked against; `CheckedLayout.generation` names that plan.

Error texts and their order are the reference's (CORE src/infer_request.cc, `Normalize`), because clients and tests
compare them. Of several wrong inputs the last one is named: the reference keeps inputs in a hash table, which yields
those that were added last first. (Where names fall into the same place of that table, it may name another one.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from naiad_stub.layout import Place, pack
from naiad_stub.segment import align

from naiad.core.errors import InvalidRequestError, UnsupportedRequestError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import device_bytes
from naiad.protocol.inference import Buffer, InferRequest, InputTensor, StringScan
from naiad.protocol.strings import scan_strings

_ID_LIMIT = 0xFFFE  # the message to the guest has 16 bits for the length
_CORRELATION_ID_LIMIT = 128
_LENGTH_SIZE = 4  # bytes of the length before each element of BYTES
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class InputRule(NamedTuple):
    """What one input must look like."""

    name: str
    datatype: Datatype
    dims: tuple[int, ...]  # its dimensions without the batch dimension; -1 is variable
    element_size: int  # bytes of one element; 0 for BYTES, whose elements have any length
    has_wildcard: bool = False
    is_optional: bool = False
    reshape: tuple[int, ...] | None = None  # dimensions the model sees instead of `dims`; None if they are the same


class OutputRule(NamedTuple):
    """What an output should look like where the model returns it; the shape has the batch dimension, -1 is variable."""

    datatype: Datatype
    shape: tuple[int, ...]

    def matches(self, datatype: Datatype, shape: Sequence[int]) -> bool:
        return (
            datatype is self.datatype
            and len(shape) == len(self.shape)
            and all(declared in {-1, size} for declared, size in zip(self.shape, shape, strict=True))
        )


class PackedInputs(NamedTuple):
    """The inputs of one request as the message to the guest describes them."""

    layout: bytes  # the packed layout (`naiad_stub.layout`), with the positions of the requested outputs
    offsets: tuple[int, ...]  # where each input begins, counted from the start of the request's block
    byte_size: int  # bytes from the start of the first input to the end of the last


class CheckedLayout(NamedTuple):
    """What the check of a request found, apart from its tensors' bytes."""

    generation: int  # generation of the plan it was checked against
    batch_size: int  # 1 for a model without batching
    is_repeatable: bool  # whether requests that differ in their tensors' bytes alone have this layout, too
    packed: PackedInputs | None  # None where the guest gets other inputs (see `RequestPlan.packs_inputs`)


class CheckedRequest(NamedTuple):
    """A request that fits its model; a copy with other shapes where the model reshapes an input, else the client's."""

    request: InferRequest
    layout: CheckedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """The compiled form of what one loaded version accepts and returns."""

    model_name: str
    model_version: int
    generation: int = 0  # number of this load among all loads of all versions; 0 for a plan that serves no requests
    max_batch_size: int = 0  # largest batch size; 0 for a model without batching, whose shapes have no batch dimension
    rules: Mapping[str, InputRule] = field(default_factory=dict)  # for inputs, in the configuration's order
    outputs: frozenset[str] = frozenset()  # that a request may name; if it names none, it gets all
    # All tensors that the guest may be given, in the order of their positions in messages. Beside the inputs: controls
    # and states of sequences, and tensors that only warm-up samples have.
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()  # all that the guest may return, in the order of positions in messages
    # What outputs should look like, by name. Responses that contradict it are delivered, as in the reference; the log
    # has a warning.
    output_rules: Mapping[str, OutputRule] = field(default_factory=dict)
    # Whether the check packs the inputs. False where the guest is given other inputs than the request's: an ensemble
    # has no guest, and a sequence batcher adds controls and states.
    packs_inputs: bool = False
    input_positions: Mapping[str, int] = field(init=False)
    output_positions: Mapping[str, int] = field(init=False)
    _required: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        for name, value in (
            ("input_positions", {name: position for position, name in enumerate(self.input_names)}),
            ("output_positions", {name: position for position, name in enumerate(self.output_names)}),
            ("_required", frozenset(rule.name for rule in self.rules.values() if not rule.is_optional)),
        ):
            object.__setattr__(self, name, value)  # how a frozen dataclass initializes a derived field

    # -- the check ----------------------------------------------------------------------------------------------

    def check(self, request: InferRequest) -> CheckedRequest:
        """The checked request; *request* stays as it is. InvalidRequestError with the first thing that is wrong."""
        correlation = request.correlation_id
        if isinstance(correlation, str) and len(correlation.encode("utf-8", "replace")) > _CORRELATION_ID_LIMIT:
            raise UnsupportedRequestError(
                f"string correlation ID cannot be longer than {_CORRELATION_ID_LIMIT} characters"
            )
        if request.requested_outputs:
            self._check_outputs(request)
        rules, batch_size = self._match_inputs(request)
        for tensor, rule in zip(reversed(request.inputs), reversed(rules), strict=True):
            self._check_input(request, tensor, rule)
        if len(request.request_id.encode()) > _ID_LIMIT:
            raise InvalidRequestError(f"request id must have at most {_ID_LIMIT} bytes")
        is_reshaped = any(rule.reshape is not None for rule in rules)
        if is_reshaped:
            request = replace(request, inputs=self._reshaped_inputs(request.inputs, rules))
        packed = self.pack_inputs(request) if self.packs_inputs else None
        # A reshaped request is a new object, so that finding its layout again would save little.
        is_repeatable = not is_reshaped and all(rule.element_size for rule in rules)
        return CheckedRequest(request, CheckedLayout(self.generation, batch_size, is_repeatable, packed))

    def _check_outputs(self, request: InferRequest) -> None:
        for name in request.requested_outputs:
            if name not in self.outputs:
                raise InvalidRequestError(f"unexpected inference output '{name}' for model '{self.model_name}'")
        repeated = _first_repeated(request.requested_outputs)
        if repeated is not None:
            raise InvalidRequestError(f"{error_prefix(request)}output '{repeated}' already exists in request")

    def _match_inputs(self, request: InferRequest) -> tuple[list[InputRule], int]:
        """The rule of each input, in the request's order, and the batch size; all required inputs are there once."""
        inputs = request.inputs
        names = {tensor.name for tensor in inputs}
        if not len(self._required) <= len(inputs) <= len(self.rules) or len(names) != len(inputs):
            raise self._count_error(request)
        rules: list[InputRule] = []
        batch_size = None
        for tensor in reversed(inputs):
            rule = self.rules.get(tensor.name)
            if rule is None:
                raise InvalidRequestError(f"unexpected inference input '{tensor.name}' for model '{self.model_name}'")
            rules.append(rule)
            if self.max_batch_size > 0:
                batch_size = self._batch_size(request, tensor, batch_size)
        if not self._required <= names:
            raise self._count_error(request)
        rules.reverse()
        if batch_size is None:
            return rules, 1
        if not 1 <= batch_size <= self.max_batch_size:
            limit = f"<= {self.max_batch_size}" if batch_size else ">= 1"
            raise InvalidRequestError(
                f"{error_prefix(request)}inference request batch-size must be {limit} for '{self.model_name}'"
            )
        return rules, batch_size

    def _batch_size(self, request: InferRequest, tensor: InputTensor, others: int | None) -> int:
        """The batch size of an input, which has to be that of the *others*; None for the first one."""
        if not tensor.shape:
            raise InvalidRequestError(
                f"{error_prefix(request)}input '{tensor.name}' has no shape but model requires batch dimension for "
                f"'{self.model_name}'"
            )
        batch_size = tensor.shape[0]
        if batch_size < 0:
            raise self._variable_dimension_error(request, tensor)
        if others is not None and batch_size != others:
            raise InvalidRequestError(
                f"{error_prefix(request)}input '{tensor.name}' batch size does not match other inputs for "
                f"'{self.model_name}'"
            )
        return batch_size

    def _check_input(self, request: InferRequest, tensor: InputTensor, rule: InputRule) -> None:
        if tensor.datatype is not rule.datatype:
            given = "<invalid>" if tensor.datatype is Datatype.INVALID else tensor.datatype.name
            raise InvalidRequestError(
                f"{error_prefix(request)}inference input '{tensor.name}' data-type is '{given}', but model "
                f"'{self.model_name}' expects '{rule.datatype.name}'"
            )
        dims = tensor.shape[1:] if self.max_batch_size > 0 else tensor.shape
        if dims != rule.dims and not (rule.has_wildcard and _match(dims, rule.dims)):
            if self.max_batch_size > 0 and min(dims, default=0) < 0:  # without batching, the reference sees the shape
                raise self._variable_dimension_error(request, tensor)
            raise self._shape_error(request, tensor, rule)
        if rule.has_wildcard and min(dims) < 0:
            raise self._variable_dimension_error(request, tensor)
        if rule.element_size:
            expected = prod(tensor.shape) * rule.element_size
            if len(tensor.data) != expected:
                raise InvalidRequestError(
                    f"{error_prefix(request)}input byte size mismatch for input '{tensor.name}' for model "
                    f"'{self.model_name}'. Expected {expected}, got {len(tensor.data)}"
                )
        elif device_bytes(tensor.data) is None:  # else the guest checks them, which can read them
            expected = prod(tensor.shape)
            check_strings(tensor.name, self.model_name, tensor.data, expected, error_prefix(request), tensor.strings)

    def _reshaped_inputs(self, inputs: Sequence[InputTensor], rules: Iterable[InputRule]) -> tuple[InputTensor, ...]:
        batched = 1 if self.max_batch_size > 0 else 0
        return tuple(
            tensor
            if rule.reshape is None
            else replace(
                tensor, shape=tensor.shape[:batched] + _reshape(tensor.shape[batched:], rule.dims, rule.reshape)
            )
            for tensor, rule in zip(inputs, rules, strict=True)
        )

    # -- packing ------------------------------------------------------------------------------------------------

    def pack_inputs(self, request: InferRequest) -> PackedInputs:
        """The packed inputs of a checked request, to which controls and states may have been added."""
        places = []
        offsets = []
        end = 0
        positions = self.input_positions
        for tensor in request.inputs:
            offset, size = align(end), len(tensor.data)
            end = offset + size
            offsets.append(offset)
            places.append(Place(positions[tensor.name], "", tensor.datatype, tensor.shape, offset, size))
        requested = None  # all
        if request.requested_outputs:
            requested = [self.output_positions[name] for name in request.requested_outputs]
        return PackedInputs(pack(places, requested), tuple(offsets), end)

    # -- errors -------------------------------------------------------------------------------------------------

    def _shape_error(self, request: InferRequest, tensor: InputTensor, rule: InputRule) -> InvalidRequestError:
        expected = (-1, *rule.dims) if self.max_batch_size > 0 else rule.dims
        note = _BATCH_NOTE if self.max_batch_size > 0 else ""
        return InvalidRequestError(
            f"{error_prefix(request)}unexpected shape for input '{tensor.name}' for model '{self.model_name}'. "
            f"Expected {_shape_text(expected)}, got {_shape_text(tensor.shape)}. {note}"
        )

    def _variable_dimension_error(self, request: InferRequest, tensor: InputTensor) -> InvalidRequestError:
        return InvalidRequestError(
            f"{error_prefix(request)}All input dimensions should be specified for input '{tensor.name}' for model "
            f"'{self.model_name}', got {_shape_text(tensor.shape)}"
        )

    def _count_error(self, request: InferRequest) -> InvalidRequestError:
        got = len(request.inputs)
        names = [tensor.name for tensor in request.inputs]
        repeated = _first_repeated(names)
        if repeated is not None:
            return InvalidRequestError(f"{error_prefix(request)}input '{repeated}' already exists in request")
        total, required = len(self.rules), len(self._required)
        start = f"{error_prefix(request)}expected "
        text = (
            f"{start}{total} inputs but got {got} inputs for model '{self.model_name}'."
            if required == total
            else f"{start}number of inputs between {required} and {total} but got {got} inputs for model "
            f"'{self.model_name}'."
        )
        missing = [name for name in self.rules if name not in names and name in self._required]
        if missing:
            given_list = ",".join(f"'{name}'" for name in reversed(names))
            missing_list = ",".join(f"'{name}'" for name in missing)
            text += (
                f" Got input(s) [{given_list}], but missing required input(s) [{missing_list}]. "
                "Please provide all required input(s)."
            )
        return InvalidRequestError(text)


def offsets_of(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where inputs of these sizes begin in a block, as guests expect them, and where the last one ends."""
    offsets = []
    end = 0
    for size in sizes:
        offsets.append(align(end))
        end = offsets[-1] + size
    return offsets, end


def error_prefix(request: InferRequest) -> str:
    """How most errors about a request begin (CORE src/infer_request.h, `LogRequest`)."""
    return f"[request id: {request.request_id or '<id_unknown>'}] "


def check_strings(
    name: str, model: str, data: Buffer, expected: int, start: str, scan: StringScan | None = None
) -> None:
    """Check that *data* holds exactly *expected* length-prefixed elements; *scan* has an earlier count up to that.

    Raises:
        InvalidRequestError: With the reference's text (CORE src/infer_request.cc, `ValidateBytesInputs`).
    """
    count, position = scan or scan_strings(data, expected)
    rest = len(data) - position
    if count == expected and not rest:
        return
    if not rest:
        raise InvalidRequestError(
            f"{start}expected {expected} string elements for inference input '{name}' for model '{model}', got {count}"
        )
    if count >= expected:
        raise InvalidRequestError(
            f"{start}unexpected number of string elements {count + 1} for inference input '{name}' for model "
            f"'{model}', expecting {expected}"
        )
    if rest < _LENGTH_SIZE:
        raise InvalidRequestError(
            f"{start}incomplete string length indicator for inference input '{name}' for model '{model}', "
            f"expecting 4 bytes but only {rest} bytes available. Please make sure the string length "
            "indicator is in one buffer."
        )
    length = int.from_bytes(data[position : position + _LENGTH_SIZE], "little")
    raise InvalidRequestError(
        f"{start}incomplete string data for inference input '{name}' for model '{model}', expecting string of "
        f"length {length} but only {rest - _LENGTH_SIZE} bytes available"
    )


def _first_repeated(names: Sequence[str]) -> str | None:
    seen = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _match(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether *dims* match the *expected* ones, where -1 matches any size."""
    return len(dims) == len(expected) and all(e in (d, -1) for d, e in zip(dims, expected, strict=True))


def _reshape(dims: tuple[int, ...], expected: tuple[int, ...], reshape: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of *reshape*; its variable ones take those of *dims*, in order (CORE src/infer_request.cc)."""
    variable = iter([d for d, e in zip(dims, expected, strict=True) if e == -1])
    return tuple(next(variable) if d == -1 else d for d in reshape)


def _shape_text(dims: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"
