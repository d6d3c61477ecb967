"""The lifecycle of a native model in one guest: load, initialise, execute, finalize.

The order of the calls is the reference's: Initialize, GetBackendAttribute, ModelInitialize, ModelInstanceInitialize,
then Execute any number of times, then ModelInstanceFinalize, ModelFinalize, Finalize. An entry point that the backend
does not export is skipped. Where one fails, those after it are not called, and those before it are undone.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, List, Mapping, Sequence, Tuple, Union

from naiad_stub import debugging, runtime
from naiad_stub.blocks import OutputBlocks
from naiad_stub.calls import HostCalls
from naiad_stub.exceptions import TritonModelException
from naiad_stub.exchange import ResponseWriter
from naiad_stub.load_spec import LoadSpec, NativeCode
from naiad_stub.messages import LogLevels, MemoryUsage, pack
from naiad_stub.native.core import Core, LoadedInstance, LoadedModel, NativeBackend, NativeMessage
from naiad_stub.native.execution import NativeExecution
from naiad_stub.native.functions import implementations
from naiad_stub.native.functions.calls import CallFunctions
from naiad_stub.native.functions.metrics import MetricFunctions, UnseenMetrics
from naiad_stub.native.functions.model import ModelFunctions
from naiad_stub.native.functions.requests import RequestFunctions
from naiad_stub.native.functions.responses import ResponseFunctions
from naiad_stub.native.functions.traces import TraceFunctions
from naiad_stub.native.functions.values import KIND_NAMES, ValueFunctions
from naiad_stub.native.lanes import Lanes, executing
from naiad_stub.native.library import BackendLibrary
from naiad_stub.queries import ServerQueries
from naiad_stub.sender import HostSenders

_INFO_LEVEL = 0
GROUPS = (
    ValueFunctions,
    ModelFunctions,
    RequestFunctions,
    ResponseFunctions,
    MetricFunctions,
    TraceFunctions,
    CallFunctions,
)
"""The classes that implement the functions of the API."""
_READY = "TRITONBACKEND_ModelInstanceReady"


class NativeModel:
    """A native backend with one model and its instances.

    Attributes:
        core: Its objects.
        before_finalize: Called first at the end: ends the threads that execute batches.
    """

    def __init__(self, spec: LoadSpec, code: NativeCode, core: Core, groups: Sequence[Any]) -> None:
        """Load the library of *code*. Of it, only the constructors of its globals have run then.

        Args:
            spec: What LOAD said.
            code: The backend, from *spec*.
            core: The objects.
            groups: Functions of the API.

        Raises:
            ApiCallError: If it cannot be loaded.
        """
        self._spec, self._code = spec, code
        self.core = core
        _set_variables(code.environ)
        found = implementations(groups)
        self.library = BackendLibrary(code.file, found, core.guard, core.reject)
        self.before_finalize: Callable[[], None] = _nothing
        self._instances: List[int] = []
        self._initialized: List[Tuple[str, int]] = []  # the finalizing entry points to call, with their argument

    def initialize_model(self) -> LoadedModel:
        """Initialise backend and model.

        Raises:
            ApiCallError: If the backend reports an error.
        """
        core, code = self.core, self._code
        config = core.messages.add(NativeMessage(code.backend_config.encode(), is_owned=False))
        directory = os.path.dirname(code.file)
        core.backend = core.backends.add(NativeBackend(code.backend, directory, config))
        self._initialize("TRITONBACKEND_Initialize", "TRITONBACKEND_Finalize", core.backend)
        attributes = core.backend_attributes.add(None)
        error = self.library.call("TRITONBACKEND_GetBackendAttribute", _pointer(core.backend), _pointer(attributes))
        core.backend_attributes.remove(attributes)
        if error:
            core.take_error(error)  # as the header says: the attributes are ignored then
        model = LoadedModel(self._spec, code)
        core.model = core.models.add(model)
        model.is_initializing = True
        self._initialize("TRITONBACKEND_ModelInitialize", "TRITONBACKEND_ModelFinalize", core.model)
        model.is_initializing = False
        return model

    def initialize_instance(self, name: str) -> int:
        """Initialise an instance; returns its handle.

        Raises:
            ApiCallError: If the backend reports an error.
        """
        core, spec = self.core, self._spec
        kind, device = spec.instance_kind, spec.device_id
        group = _instance_group(spec, name)
        # Backends require a policy, which has the name of the device unless the configuration names another.
        policy_name = group.get("host_policy") or (f"gpu_{device}" if kind == "GPU" else kind.lower())
        policy = core.messages.add(NativeMessage(json.dumps({policy_name: {}}).encode(), is_owned=False))
        instance = core.instances.add(
            LoadedInstance(
                name,
                KIND_NAMES.index(kind) if kind in KIND_NAMES else 0,
                device,
                policy,
                is_passive=bool(group.get("passive")),
                profiles=[str(name) for name in group.get("profile", ())],
                secondary_devices=[
                    (str(device.get("kind", "")), int(device.get("device_id", 0)))
                    for device in group.get("secondary_devices", ())
                ],
            )
        )
        self._initialize("TRITONBACKEND_ModelInstanceInitialize", "TRITONBACKEND_ModelInstanceFinalize", instance)
        self._instances.append(instance)
        return instance

    @property
    def is_ready(self) -> Any:
        """The method that asks the backend whether the instance is ready.

        Raises:
            AttributeError: If the backend has no such function.
        """
        if _READY not in self.library.entry_points:
            raise AttributeError(_READY)
        return self._is_ready

    @property
    def execute(self) -> Any:
        """The entry point that executes a batch; every backend has it."""
        return self.library.entry_points["TRITONBACKEND_ModelInstanceExecute"]

    def finalize(self) -> None:
        """Finalize instances, model and backend, as far as they were initialised; errors are logged."""
        self.before_finalize()
        core = self.core
        while self._initialized:
            name, handle = self._initialized.pop()
            error = self.library.call(name, _pointer(handle))
            if error:
                core.log(_INFO_LEVEL, self._code.file, 0, f"{name} failed: {core.take_error(error).message}")

    def _is_ready(self) -> bool:
        for instance in self._instances:
            error = self.library.call(_READY, _pointer(instance))
            if error:
                raise TritonModelException(self.core.take_error(error).message)
        return True

    def _initialize(self, name: str, finalizer: str, handle: int) -> None:
        error = self.library.call(name, _pointer(handle))
        if error:
            failure = self.core.take_error(error)
            self.finalize()
            raise failure
        self._initialized.append((finalizer, handle))


def _nothing() -> None:
    pass


def _pointer(handle: int) -> Any:
    import ctypes

    return ctypes.c_size_t(handle)


def _instance_group(spec: LoadSpec, name: str) -> Mapping[str, Any]:
    """The instance group of the configuration that the instance with that name belongs to."""
    groups = json.loads(spec.model_config).get("instance_group", ())
    for group in groups:
        if name.rpartition("_")[0] == group.get("name"):
            found: Mapping[str, Any] = group
            return found
    return {}


def complete_native_config(spec: LoadSpec, code: NativeCode) -> str:
    """The configuration as JSON, after the backend's ModelInitialize.

    Raises:
        ApiCallError: If the backend reports an error.
    """
    core = _core(code)
    model_functions = ModelFunctions(core, lambda *_: None, lambda _: None)  # nothing serves yet
    groups: List[Any] = [model_functions, RequestFunctions(core, None), TraceFunctions(core)]
    values = ValueFunctions(core)
    groups += [values, MetricFunctions(core, values, UnseenMetrics())]
    groups += [CallFunctions(core, values, runtime.current().control, None, None)]
    model = NativeModel(spec, code, core, groups)
    config = model.initialize_model().config
    model.finalize()
    return config.decode()


def load_native(
    spec: LoadSpec,
    code: NativeCode,
    writer: ResponseWriter,
    senders: HostSenders,
    blocks: OutputBlocks,
    calls: HostCalls,
    queries: ServerQueries,
) -> Tuple[NativeModel, Union[NativeExecution, Lanes]]:
    """A native model with its instances, initialised, and what runs batches on them.

    Raises:
        ApiCallError: If the library cannot be loaded, or the backend reports an error.
    """
    if os.environ.get("NAIAD_STUB_DEBUG"):
        debugging.wait_for_gdb(code.file)
    core = _core(code)
    names = code.lanes or (spec.instance_name,)
    executions = [NativeExecution(queries.channel, writer, senders, core) for _ in names]

    def add_report(*fields: int) -> None:
        (executing(executions) or executions[0]).reports.add(*fields)

    add_reports = executions[0].reports.add if len(executions) == 1 else add_report

    def on_memory_usage(usage: List[int]) -> None:
        queries.channel.post(pack(MemoryUsage(usage)))

    def on_log_levels(message: LogLevels) -> None:
        core.log_levels = message.levels

    queries.channel.add_handler(LogLevels, on_log_levels)
    requests = RequestFunctions(core, senders)
    responses = ResponseFunctions(core, blocks, spec.model_name, frozenset(spec.outputs), frozenset(spec.states))
    values = ValueFunctions(core)
    parts = runtime.current()
    groups: List[Any] = [values, ModelFunctions(core, add_reports, on_memory_usage), requests]
    groups += [responses, TraceFunctions(core)]
    groups += [MetricFunctions(core, values, parts.metrics)]
    groups += [CallFunctions(core, values, parts.control, queries, calls)]
    model = NativeModel(spec, code, core, groups)
    model.initialize_model()
    for name, execution in zip(names, executions):
        execution.open(model.execute, model.initialize_instance(name), requests)
    if len(executions) == 1:
        return model, executions[0]
    lanes = Lanes(executions)
    model.before_finalize = lanes.finish
    return model, lanes


def _set_variables(wanted: Mapping[str, str]) -> None:
    """Have the backend, and programs that it starts, see the variables of the server."""
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    os.environ.update(wanted)


def _core(code: NativeCode) -> Core:
    return Core(runtime.current().log, log_levels=code.log_levels)
