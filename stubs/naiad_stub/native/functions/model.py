"""The backend, its model and its instance: names, places, configuration, state, statistics."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

from naiad_stub import wire
from naiad_stub.native import memory
from naiad_stub.native.core import Core, NativeMessage, Recipient
from naiad_stub.native.errors import CANCELLED, INTERNAL, INVALID_ARG, UNSUPPORTED, ApiCallError
from naiad_stub.native.handles import HandleTable

AddReport = Callable[[int, int, int, int, int, int], None]
"""Called with the fields of `wire.REPORT`."""
OnMemoryUsage = Callable[[List[int]], None]
"""Called with the field of `messages.MemoryUsage`."""
_FILESYSTEM = 0
_U64 = (1 << 64) - 1


class NativeResponseStatistics:
    """A TRITONBACKEND_ModelInstanceResponseStatistics."""

    __slots__ = ("end", "error", "factory", "instance", "output_start", "start")

    def __init__(self) -> None:
        self.instance = self.start = self.output_start = self.end = self.error = 0
        self.factory: Optional[Recipient] = None

    def record(self, error_code: Optional[int]) -> Tuple[int, int, int]:
        """Kind of the report; nanoseconds until the outputs were computed, and until they were written.

        Args:
            error_code: The code of the response's error; None if it has none.

        Raises:
            ApiCallError: If the times are not in order.
        """
        if error_code == CANCELLED or not self.output_start:
            _check_order(self.start, self.end, "Response start cannot happen after response end")
            computed = self.end - self.start
            if error_code is None:
                return wire.REPORT_EMPTY_RESPONSE, computed, computed
            kind = wire.REPORT_CANCELLED_RESPONSE if error_code == CANCELLED else wire.REPORT_FAILED_RESPONSE
            return kind, computed, computed
        _check_order(self.start, self.output_start, "Response start cannot happen after compute output start")
        _check_order(self.output_start, self.end, "Compute output start cannot happen after response end")
        kind = wire.REPORT_RESPONSE if error_code is None else wire.REPORT_FAILED_RESPONSE
        return kind, self.output_start - self.start, self.end - self.start


class ModelFunctions:
    """Functions on backends, models and instances."""

    def __init__(self, core: Core, add_report: AddReport, on_memory_usage: OnMemoryUsage) -> None:
        self._core = core
        self._add = add_report
        self._on_memory_usage = on_memory_usage
        self._usages: Dict[int, Dict[Tuple[int, int], int]] = {}  # bytes by kind of memory, of the model and instances
        self._response_statistics: HandleTable[NativeResponseStatistics] = HandleTable(
            "TRITONBACKEND_ModelInstanceResponseStatistics"
        )

    # -- backend --------------------------------------------------------------------------------------------------

    def backend_backend_name(self, backend: int, name: int) -> int:
        memory.set_uint64(name, self._core.backends[backend].name.address)
        return 0

    def backend_backend_config(self, backend: int, config: int) -> int:
        memory.set_uint64(config, self._core.backends[backend].config)
        return 0

    def backend_backend_execution_policy(self, backend: int, policy: int) -> int:
        memory.set_uint32(policy, self._core.backends[backend].policy)
        return 0

    def backend_backend_set_execution_policy(self, backend: int, policy: int) -> int:
        self._core.backends[backend].policy = policy
        return 0

    def backend_backend_artifacts(self, backend: int, kind: int, location: int) -> int:
        memory.set_uint32(kind, _FILESYSTEM)
        memory.set_uint64(location, self._core.backends[backend].directory.address)
        return 0

    def backend_backend_memory_manager(self, backend: int, manager: int) -> int:
        self._core.backends[backend]
        memory.set_uint64(manager, self._core.memory_manager)
        return 0

    def backend_backend_state(self, backend: int, state: int) -> int:
        memory.set_uint64(state, self._core.backends[backend].state)
        return 0

    def backend_backend_set_state(self, backend: int, state: int) -> int:
        self._core.backends[backend].state = state
        return 0

    def backend_backend_attribute_add_preferred_instance_group(
        self, attributes: int, kind: int, count: int, device_ids: int, id_count: int
    ) -> int:
        self._core.backend_attributes[attributes]
        return 0

    def backend_backend_attribute_set_parallel_model_instance_loading(self, attributes: int, enabled: bool) -> int:
        self._core.backend_attributes[attributes]
        return 0

    # -- model ----------------------------------------------------------------------------------------------------

    def backend_model_name(self, model: int, name: int) -> int:
        memory.set_uint64(name, self._core.models[model].name.address)
        return 0

    def backend_model_version(self, model: int, version: int) -> int:
        memory.set_uint64(version, self._core.models[model].version)
        return 0

    def backend_model_repository(self, model: int, kind: int, location: int) -> int:
        memory.set_uint32(kind, _FILESYSTEM)
        memory.set_uint64(location, self._core.models[model].directory.address)
        return 0

    def backend_model_config(self, model: int, version: int, config: int) -> int:
        check_config_version(version)
        message = NativeMessage(self._core.models[model].config, is_owned=True)
        memory.set_uint64(config, self._core.messages.add(message))
        return 0

    def backend_model_auto_complete_config(self, model: int, completes: int) -> int:
        memory.set_bool(completes, self._core.models[model].auto_completes)
        return 0

    def backend_model_set_config(self, model: int, version: int, config: int) -> int:
        check_config_version(version)
        loaded = self._core.models[model]
        if not loaded.is_initializing:
            raise ApiCallError(
                UNSUPPORTED, "TRITONBACKEND_ModelSetConfig can be called only from TRITONBACKEND_ModelInitialize"
            )
        if loaded.is_completed:
            return 0
        if not loaded.may_complete:
            raise ApiCallError(
                UNSUPPORTED,
                "TRITONBACKEND_ModelSetConfig is not supported: the library does not import it, so the configuration "
                "was fixed before this process was started",
            )
        text = self._core.messages[config].text
        loaded.config = merge_config(loaded.config, memory.read_bytes(text.address, text.size))
        return 0

    def backend_model_server(self, model: int, server: int) -> int:
        self._core.models[model]
        memory.set_uint64(server, self._core.server)
        return 0

    def backend_model_backend(self, model: int, backend: int) -> int:
        self._core.models[model]
        memory.set_uint64(backend, self._core.backend)
        return 0

    def backend_model_state(self, model: int, state: int) -> int:
        memory.set_uint64(state, self._core.models[model].state)
        return 0

    def backend_model_set_state(self, model: int, state: int) -> int:
        self._core.models[model].state = state
        return 0

    def backend_model_report_memory_usage(self, model: int, usage: int, count: int) -> int:
        self._core.models[model]
        self._report_usage(model, usage, count)
        return 0

    # -- instance -------------------------------------------------------------------------------------------------

    def backend_model_instance_name(self, instance: int, name: int) -> int:
        memory.set_uint64(name, self._core.instances[instance].name.address)
        return 0

    def backend_model_instance_kind(self, instance: int, kind: int) -> int:
        memory.set_uint32(kind, self._core.instances[instance].kind)
        return 0

    def backend_model_instance_device_id(self, instance: int, device: int) -> int:
        memory.set_uint32(device, self._core.instances[instance].device)
        return 0

    def backend_model_instance_host_policy(self, instance: int, policy: int) -> int:
        memory.set_uint64(policy, self._core.instances[instance].host_policy)
        return 0

    def backend_model_instance_is_passive(self, instance: int, passive: int) -> int:
        memory.set_bool(passive, self._core.instances[instance].is_passive)
        return 0

    def backend_model_instance_profile_count(self, instance: int, count: int) -> int:
        memory.set_uint32(count, len(self._core.instances[instance].profiles))
        return 0

    def backend_model_instance_profile_name(self, instance: int, index: int, name: int) -> int:
        profiles = self._core.instances[instance].profiles
        if index >= len(profiles):
            raise ApiCallError(INVALID_ARG, f"out of bounds index, instance has {len(profiles)} profiles")
        memory.set_uint64(name, profiles[index].address)
        return 0

    def backend_model_instance_secondary_device_count(self, instance: int, count: int) -> int:
        memory.set_uint32(count, len(self._core.instances[instance].secondary_devices))
        return 0

    def backend_model_instance_secondary_device_properties(
        self, instance: int, index: int, kind: int, device: int
    ) -> int:
        devices = self._core.instances[instance].secondary_devices
        if index >= len(devices):
            raise ApiCallError(INVALID_ARG, f"out of bounds index, instance has {len(devices)} secondary devices")
        memory.set_uint64(kind, devices[index][0].address)
        memory.set_int64(device, devices[index][1])
        return 0

    def backend_model_instance_model(self, instance: int, model: int) -> int:
        self._core.instances[instance]
        memory.set_uint64(model, self._core.model)
        return 0

    def backend_model_instance_state(self, instance: int, state: int) -> int:
        memory.set_uint64(state, self._core.instances[instance].state)
        return 0

    def backend_model_instance_set_state(self, instance: int, state: int) -> int:
        self._core.instances[instance].state = state
        return 0

    def backend_model_instance_report_memory_usage(self, instance: int, usage: int, count: int) -> int:
        self._core.instances[instance]
        self._report_usage(instance, usage, count)
        return 0

    def _report_usage(self, owner: int, usage: int, count: int) -> None:
        """Replace what *owner*, a model or an instance, reported before; the last of one kind of memory counts."""
        found = [self._core.buffer_attributes[handle] for handle in memory.read_pointers(usage, count)]
        for each in found:
            if not 0 <= each.memory_type < len(memory.MEMORY_NAMES):
                raise ApiCallError(INVALID_ARG, f"unknown memory type {each.memory_type}")
        self._usages[owner] = {(each.memory_type, each.memory_type_id): each.byte_size for each in found}
        total: Dict[Tuple[int, int], int] = {}
        for reported in list(self._usages.values()):
            for kind, size in reported.items():
                total[kind] = total.get(kind, 0) + size
        fields = [number & _U64 for kind, size in sorted(total.items()) for number in (*kind, size)]
        self._on_memory_usage(fields)

    # -- statistics -----------------------------------------------------------------------------------------------

    def backend_model_instance_report_statistics(
        self,
        instance: int,
        request: int,
        success: bool,
        exec_start: int,
        compute_start: int,
        compute_end: int,
        exec_end: int,
    ) -> int:
        self._core.instances[instance]
        key = self._core.requests[request].recipient.record.key
        kind = wire.REPORT_SUCCESS if success else wire.REPORT_FAILURE
        self._add(kind, key, exec_start, compute_start, compute_end, exec_end)
        return 0

    def backend_model_instance_report_batch_statistics(
        self, instance: int, size: int, exec_start: int, compute_start: int, compute_end: int, exec_end: int
    ) -> int:
        self._core.instances[instance]
        self._add(wire.REPORT_BATCH, size, exec_start, compute_start, compute_end, exec_end)
        return 0

    def backend_model_instance_response_statistics_new(self, statistics: int) -> int:
        memory.set_uint64(statistics, self._response_statistics.add(NativeResponseStatistics()))
        return 0

    def backend_model_instance_response_statistics_delete(self, statistics: int) -> int:
        self._response_statistics.remove(statistics)
        return 0

    def backend_model_instance_response_statistics_set_model_instance(self, statistics: int, instance: int) -> int:
        self._core.instances[instance]
        self._response_statistics[statistics].instance = instance
        return 0

    def backend_model_instance_response_statistics_set_response_factory(self, statistics: int, factory: int) -> int:
        self._response_statistics[statistics].factory = self._core.factories[factory]
        return 0

    def backend_model_instance_response_statistics_set_response_start(self, statistics: int, start: int) -> int:
        self._response_statistics[statistics].start = start
        return 0

    def backend_model_instance_response_statistics_set_compute_output_start(self, statistics: int, start: int) -> int:
        self._response_statistics[statistics].output_start = start
        return 0

    def backend_model_instance_response_statistics_set_response_end(self, statistics: int, end: int) -> int:
        self._response_statistics[statistics].end = end
        return 0

    def backend_model_instance_response_statistics_set_error(self, statistics: int, error: int) -> int:
        self._response_statistics[statistics].error = error
        return 0

    def backend_model_instance_report_response_statistics(self, statistics: int) -> int:
        found = self._response_statistics[statistics]
        if not found.instance or found.factory is None:
            raise ApiCallError(INVALID_ARG, "response statistics need their model instance and response factory")
        assert found.factory.positions is not None, "it is that of a factory"
        position = next(found.factory.positions)  # also of a report that fails, as in the reference
        error = self._core.errors[found.error].code if found.error else None
        kind, computed, written = found.record(error)
        self._add(kind, position, 0, 0, computed, written)
        return 0


def _check_order(earlier: int, later: int, problem: str) -> None:
    if earlier > later:
        raise ApiCallError(INVALID_ARG, problem)


def check_config_version(version: int) -> None:
    """Raise `ApiCallError` unless *version* is that of the configurations that the server makes."""
    if version != 1:
        raise ApiCallError(
            INVALID_ARG, f"model configuration version {version} not supported, supported versions are: 1"
        )


_INPUT_DEFAULTS: Dict[str, Any] = {
    "format": "FORMAT_NONE",
    "is_shape_tensor": False,
    "allow_ragged_batch": False,
    "optional": False,
    "is_non_linear_format_io": False,
}
_OUTPUT_DEFAULTS: Dict[str, Any] = {"label_filename": "", "is_shape_tensor": False, "is_non_linear_format_io": False}
_COMPLETED = ("max_batch_size", "input", "output")
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def merge_config(present: bytes, changed: bytes) -> bytes:
    """The configuration *present* with what ModelSetConfig may change: the rest of *changed* is ignored.

    These are the maximum batch size, inputs and outputs, and the scheduler if none is set.
    """
    try:
        config, wanted = json.loads(present), json.loads(changed)
    except ValueError as error:
        raise ApiCallError(INVALID_ARG, f"the model configuration is not valid JSON: {error}") from None
    if not isinstance(wanted, dict):
        raise ApiCallError(INTERNAL, "the model configuration is not a JSON object")
    merged: Dict[str, Any] = dict(config)
    for key in _COMPLETED:
        if key in wanted:
            merged[key] = wanted[key]
    for key, defaults in (("input", _INPUT_DEFAULTS), ("output", _OUTPUT_DEFAULTS)):
        merged[key] = [{**defaults, **tensor} for tensor in merged.get(key, ())]
    if not any(key in config for key in _SCHEDULERS):
        for key in _SCHEDULERS:
            if key in wanted:
                merged[key] = wanted[key]
    transaction = wanted.get("model_transaction_policy")
    if transaction is not None and not config.get("model_transaction_policy"):
        merged["model_transaction_policy"] = transaction
    return json.dumps(merged).encode()
