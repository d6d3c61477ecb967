"""Responses, their outputs, response factories, and states of sequences."""

from __future__ import annotations

import itertools
import json
from typing import Dict, FrozenSet, Optional, Protocol, Tuple

from naiad_stub import wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.native import memory
from naiad_stub.native.core import (
    Core,
    NativeOutput,
    NativeResponse,
    NativeState,
    Recipient,
)
from naiad_stub.native.errors import ALREADY_EXISTS, INVALID_ARG, UNAVAILABLE, ApiCallError
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

FINAL = 1


class ResponseDelivery(Protocol):
    """Sends responses."""

    def send(self, recipient: Recipient, response: Optional[InferenceResponse], flags: int) -> None:
        """Send a response, or flags alone.

        Raises:
            TritonModelException: If the request has had its last response, or may not have this one.
        """

    def is_cancelled(self, recipient: Recipient) -> bool:
        """Whether the client cancelled the request."""


class ResponseFunctions:
    """Functions on responses, outputs, factories and states."""

    def __init__(
        self,
        core: Core,
        blocks: OutputBlocks,
        model_name: str,
        outputs: FrozenSet[str],
        states: FrozenSet[str],
    ) -> None:
        self._core = core
        self._responses = core.responses
        self._outputs = core.outputs
        self._blocks = blocks
        self._model_name = model_name
        self._output_names: Dict[Optional[bytes], str] = {name.encode(): name for name in outputs}
        self._state_names = states

    # -- factories ------------------------------------------------------------------------------------------------

    def backend_response_factory_new(self, factory: int, request: int) -> int:
        recipient = self._core.requests[request].recipient
        if recipient.positions is None:
            recipient.positions = itertools.count()
        memory.set_uint64(factory, self._core.factories.add(recipient))
        return 0

    def backend_response_factory_delete(self, factory: int) -> int:
        self._core.factories.remove(factory)
        return 0

    def backend_response_factory_is_cancelled(self, factory: int, cancelled: int) -> int:
        memory.set_bool(cancelled, self._is_cancelled(self._core.factories[factory]))
        return 0

    def backend_response_factory_send_flags(self, factory: int, flags: int) -> int:
        recipient = self._core.factories[factory]
        if flags & ~FINAL:
            raise ApiCallError(INVALID_ARG, f"unsupported response flags {flags}")
        if flags:
            self._send(recipient, None, flags)
        return 0

    # -- responses ------------------------------------------------------------------------------------------------

    def backend_response_new(self, response: int, request: int) -> int:
        recipient = self._core.requests[request].recipient
        memory.set_uint64(response, self._responses.add(NativeResponse(recipient)))
        return 0

    def backend_response_new_from_factory(self, response: int, factory: int) -> int:
        recipient = self._core.factories[factory]
        memory.set_uint64(response, self._responses.add(NativeResponse(recipient)))
        return 0

    def backend_response_delete(self, response: int) -> int:
        self._revoke(self._responses.remove(response))
        return 0

    def backend_response_set_string_parameter(
        self, response: int, name: Optional[bytes], value: Optional[bytes]
    ) -> int:
        self._responses[response].set_parameter(name, memory.text_of(value, "the parameter's value"))
        return 0

    def backend_response_set_int_parameter(self, response: int, name: Optional[bytes], value: int) -> int:
        self._responses[response].set_parameter(name, value)
        return 0

    def backend_response_set_bool_parameter(self, response: int, name: Optional[bytes], value: bool) -> int:
        self._responses[response].set_parameter(name, value)
        return 0

    def backend_response_set_double_parameter(self, response: int, name: Optional[bytes], value: float) -> int:
        self._responses[response].set_parameter(name, value)
        return 0

    def backend_response_output(
        self, response: int, output: int, name: Optional[bytes], datatype: int, shape: int, dims: int
    ) -> int:
        found = self._responses[response]
        text = self._output_names.get(name)
        if text is None:
            text = memory.text_of(name, "the output's name")
            raise ApiCallError(INVALID_ARG, f"unexpected inference output '{text}' for model '{self._model_name}'")
        if dims > wire.MAX_DIMENSIONS:
            raise ApiCallError(
                INVALID_ARG,
                f"output '{text}' has {dims} dimensions; tensors of at most {wire.MAX_DIMENSIONS} can be sent",
            )
        made = NativeOutput(text, datatype, memory.read_int64s(shape, dims))
        handle = self._outputs.add(made)
        found.outputs.append((handle, made))
        memory.set_uint64(output, handle)
        return 0

    def backend_response_send(self, response: int, flags: int, error: int) -> int:
        found = self._responses.remove(response)
        if found.outputs:
            self._revoke(found)
        if error:
            # The backend keeps the error, and deletes it after this call.
            passed = self._core.errors[error]
            message = memory.read_bytes(passed.text.address, passed.text.size).decode("utf-8", "replace")
            answer = InferenceResponse._received([], TritonError._received(message, passed.code), "")
        else:
            tensors = [output.tensor or _empty(output) for _, output in found.outputs]
            parameters = json.dumps(found.parameters) if found.parameters else ""
            answer = InferenceResponse._received(tensors, None, parameters)
        self._send(found.recipient, answer, flags)
        return 0

    @staticmethod
    def _is_cancelled(recipient: Recipient) -> bool:
        delivery: ResponseDelivery = recipient.delivery
        return delivery.is_cancelled(recipient)

    def _send(self, recipient: Recipient, response: Optional[InferenceResponse], flags: int) -> None:
        try:
            recipient.delivery.send(recipient, response, flags & FINAL)
        except TritonModelException as error:
            raise ApiCallError(INVALID_ARG, str(error)) from None

    def _revoke(self, response: NativeResponse) -> None:
        for handle, output in response.outputs:
            self._outputs.pop(handle, None)
            if output.attributes:
                self._core.drop_attributes(output)

    # -- outputs --------------------------------------------------------------------------------------------------

    def backend_output_buffer(self, output: int, buffer: int, size: int, memory_type: int, memory_type_id: int) -> int:
        found = self._outputs[output]
        if found.tensor is not None:
            raise ApiCallError(ALREADY_EXISTS, f"allocated buffer for output '{found.name}' already exists")
        found.tensor, found.address = self._allocate(found.name, found.code, found.shape, size)
        found.size = size
        memory.set_uint64(buffer, found.address)
        memory.set_uint32(memory_type, memory.CPU)
        memory.set_uint64(memory_type_id, 0)
        return 0

    def backend_output_buffer_attributes(self, output: int, attributes: int) -> int:
        found = self._outputs[output]
        handle = self._core.lend_attributes(found, found.size)
        memory.set_uint64(attributes, handle)
        return 0

    def _allocate(self, name: str, code: int, shape: Tuple[int, ...], size: int) -> Tuple[Tensor, int]:
        """A tensor to be sent and the address of its bytes: in the output segment unless it has few bytes."""
        try:
            if size <= wire.INLINE_LIMIT:
                data = memory.new_bytes(size)
                return Tensor._received(name, code, shape, data), memory.address_in(data)
            block, view = self._blocks.allocate_for_model(size)
        except TritonModelException as error:
            raise ApiCallError(UNAVAILABLE, str(error)) from None
        tensor = Tensor._received(name, code, shape, view)
        tensor._place = block
        return tensor, memory.address_of(view)

    def backend_inference_response_output(
        self, response: int, index: int, name: int, datatype: int, shape: int, dims: int
    ) -> int:
        found = self._responses[response]
        if index >= len(found.outputs):
            raise ApiCallError(INVALID_ARG, f"out of bounds index {index}, response has {len(found.outputs)} outputs")
        self._describe(found, found.outputs[index][1], name, datatype, shape, dims)
        return 0

    def backend_inference_response_output_by_name(
        self, response: int, name: Optional[bytes], datatype: int, shape: int, dims: int
    ) -> int:
        found = self._responses[response]
        wanted = memory.text_of(name, "the output's name")
        for _, output in found.outputs:
            if output.name == wanted:
                self._describe(found, output, 0, datatype, shape, dims)
                return 0
        raise ApiCallError(INVALID_ARG, f"unable to find response output named '{wanted}'")

    def _describe(
        self, found: NativeResponse, output: NativeOutput, name: int, datatype: int, shape: int, dims: int
    ) -> None:
        text, sizes = self._core.lent.text(output.name), self._core.lent.shape(output.shape)
        found.kept = [*(found.kept or ()), text, sizes]
        memory.set_uint64(name, text.address)
        memory.set_uint32(datatype, output.code)
        memory.set_uint64(shape, sizes.address)
        memory.set_uint64(dims, len(output.shape))

    # -- states ---------------------------------------------------------------------------------------------------

    def backend_state_new(
        self, state: int, request: int, name: Optional[bytes], datatype: int, shape: int, dims: int
    ) -> int:
        found = self._core.requests[request]
        wanted = memory.text_of(name, "the state's name")
        if not self._state_names:
            problem = f"unable to add state '{wanted}'. State configuration is missing for model '{self._model_name}'."
            raise ApiCallError(INVALID_ARG, problem)
        if wanted not in self._state_names:
            raise ApiCallError(INVALID_ARG, f"state '{wanted}' is not a valid state name.")
        made = NativeState(found.recipient, wanted, datatype, memory.read_int64s(shape, dims))
        handle = self._core.states.add(made)
        found.attach(self._core.states, handle)
        memory.set_uint64(state, handle)
        return 0

    def backend_state_buffer(self, state: int, buffer: int, size: int, memory_type: int, memory_type_id: int) -> int:
        found = self._core.states[state]
        if found.tensor is not None:
            raise ApiCallError(
                INVALID_ARG, f"a buffer of state '{found.name}' was already asked for: a state has one buffer"
            )
        found.tensor, address = self._allocate(found.name, found.code, found.shape, size)
        memory.set_uint64(buffer, address)
        memory.set_cpu(memory_type, memory_type_id)
        return 0

    def backend_state_buffer_attributes(self, state: int, attributes: int) -> int:
        found = self._core.states[state]
        size = 0 if found.tensor is None or found.tensor._view is None else len(found.tensor._view)
        memory.set_uint64(attributes, self._core.lend_attributes(found, size))
        return 0

    def backend_state_update(self, state: int) -> int:
        found = self._core.states.remove(state)
        self._core.drop_attributes(found)
        if found.tensor is None:
            raise ApiCallError(INVALID_ARG, f"state '{found.name}' has no buffer")
        found.recipient.states = [*(found.recipient.states or ()), found.tensor]
        return 0


def _empty(output: NativeOutput) -> Tensor:
    """What is sent for an output that has no buffer."""
    return Tensor._received(output.name, output.code, output.shape, memoryview(b""))
