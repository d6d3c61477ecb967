"""A model under test: loaded, initialised and run in this process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from naiad_stub import dialect, loader, logger, runtime
from naiad_stub.exceptions import TritonModelException
from naiad_stub.model_loading import method_of
from naiad_stub.runtime import ModelControl

from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.model.render import to_json
from naiad.config.model.validate import validate
from naiad.core.errors import Code, ModelError, NaiadError
from naiad.engine.scheduling.sequences.controls import Controls
from naiad.engine.serving.compile_plan import compile_plan
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import RequestPlan
from naiad_embedded.testing.configuration import (
    ConfigSource,
    TestedModel,
    arguments,
    complete,
    source_of_class,
    source_of_directory,
)
from naiad_embedded.testing.fakes import Fake, FakeCalls
from naiad_embedded.testing.guest import AnyName, BatchSenders, Guest, RequestRun, received_request
from naiad_embedded.testing.metrics import RecordedMetrics
from naiad_embedded.testing.modules import ModelModules
from naiad_embedded.testing.states import SequenceStates, received_input
from naiad_embedded.testing.values import Call, LogRecord, Parameter, Request, Response, tensor_of

_UTILS = "triton_python_backend_utils"


def load(
    model: str | os.PathLike[str] | type,
    *,
    config: ConfigSource = None,
    name: str = "model",
    version: int | None = None,
    models: Mapping[str, Fake] | None = None,
    backend_directories: Sequence[str | os.PathLike[str]] = (),
    arguments: Mapping[str, str] | None = None,
    timeout: float = 10.0,
    check_outputs: bool = False,
) -> ModelUnderTest:
    """Load and initialise a model in this process, to be used as a context manager or closed.

    Args:
        model: A model's directory, or a class.
        config: Its configuration, as text of a `config.pbtxt` or as a dict, instead of the directory's file.
        name: Name of a class's model, where the configuration has none.
        version: The version; the highest that the version policy names unless given.
        models: What answers the model's calls to others, by the others' names: functions that get a `Call` and return
            a dict of arrays (a list or generator of dicts for a decoupled model), or other models under test.
        backend_directories: Where the code of shared backends is.
        arguments: What `initialize` is to get instead of what a server would give, such as `model_instance_kind`.
        timeout: Seconds within which response senders must have been used.
        check_outputs: Whether a response with an output that the configuration does not declare, or of another
            datatype, is an error. A server drops the former and delivers the latter.

    Raises:
        ModelError: If the model's code fails, in the words of the server and caused by its exception.
        NaiadError: If the model does not exist, or its configuration is wrong.
    """
    if isinstance(model, type):
        source = source_of_class(model, config, name, version)
    else:
        directories = [Path(directory) for directory in backend_directories]
        source = source_of_directory(Path(model), config, version, directories)
    loaded = ModelUnderTest(source, FakeCalls(models or {}), timeout, check_outputs=check_outputs)
    loaded._open(model if isinstance(model, type) else None, arguments or {})  # noqa: SLF001 - the other half
    return loaded


class ModelUnderTest:
    """A loaded model; made by `load`.

    Attributes:
        name: Its name.
        instance: The `TritonPythonModel` itself.
        module: The module that its class is in, for `mock.patch.object(model.module, ...)`.
        config: The effective configuration, as `args["model_config"]` has it.
        logs: What the model logged, and what the server would have logged of its errors.
        control: What the model loaded and unloaded, in `control.actions`.
        metrics: The model's metrics, as `metrics.value_of("requests_total", language="en")`.
    """

    def __init__(self, source: TestedModel, calls: FakeCalls, timeout: float, *, check_outputs: bool = False) -> None:
        self.name = source.message.name
        self.instance: Any = None
        self.module: ModuleType | None = None
        self.config: dict[str, Any] = {}
        self.logs: list[LogRecord] = []
        self.control = RecordedControl(calls.models)
        self.metrics = RecordedMetrics(self.name)
        self._source = source
        self._calls = calls
        self._timeout = timeout
        self._checks_outputs = check_outputs
        self._modules = ModelModules(str(source.version_dir), *_folders(source))
        self._config: ModelConfig = freeze(source.message)
        self._plan: RequestPlan | None = None
        self._states: SequenceStates | None = None
        self._controls: Controls | None = None
        self._guest: Guest | None = None
        self._is_open = False
        self._runtime = runtime.Runtime(
            model_dir=str(source.version_dir),
            log=self._log,
            calls=calls,
            senders=BatchSenders(),
            control=self.control,
            metrics=self.metrics,
        )

    def __enter__(self) -> ModelUnderTest:  # noqa: PYI034 - typing has Self since Python 3.11 only
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ModelUnderTest '{self.name}' {'open' if self._is_open else 'closed'}>"

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return self._config.decoupled

    @property
    def calls(self) -> list[Call]:
        """The model's calls to other models so far."""
        return self._calls.calls

    @property
    def models(self) -> dict[str, Fake]:
        """What answers the model's calls; may be changed."""
        return self._calls.models

    # -- requests -------------------------------------------------------------------------------------------------

    def infer(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        request_id: str = "",
        correlation_id: int | str = 0,
        flags: int = 0,
        parameters: Mapping[str, Parameter] | None = None,
        requested_outputs: Sequence[str] = (),
        timeout: int = 0,
        is_cancelled: bool | Callable[[], bool] = False,
    ) -> Response:
        """Send one request and return its only response. The arguments are those of `Request`.

        Raises:
            ModelError: If the response is an error, caused by the model's exception if it raised one.
            InvalidRequestError: If the request does not fit the model's configuration.
            ValueError: If there is not exactly one response; decoupled models want `stream`.
        """
        responses = self.stream(
            inputs,
            request_id=request_id,
            correlation_id=correlation_id,
            flags=flags,
            parameters=parameters,
            requested_outputs=requested_outputs,
            timeout=timeout,
            is_cancelled=is_cancelled,
        )
        if len(responses) != 1:
            raise ValueError(f"'{self.name}' answered with {len(responses)} responses; use stream() to get them")
        if responses[0].error is not None:
            raise responses[0].error
        return responses[0]

    def stream(self, inputs: Mapping[str, Any] | None = None, **request: Any) -> list[Response]:
        """Send one request and return all its responses, errors among them. The arguments are those of `infer`.

        Raises:
            ModelError: If the model does not end the request in time.
            InvalidRequestError: If the request does not fit the model's configuration.
        """
        request["parameters"] = request.get("parameters") or {}
        return self.execute([Request(inputs=inputs or {}, **request)])[0]

    def execute(self, batch: Sequence[Request]) -> list[list[Response]]:
        """Give `execute` some requests at once, and return the responses of each.

        Raises:
            ModelError: If the model does not end a request in time.
            InvalidRequestError: If a request does not fit the model's configuration.
        """
        if self._guest is None:
            raise ValueError(f"'{self.name}' is closed")
        runs = [self._run_of(request) for request in batch]
        with self._at_work():
            self._guest.run(runs)
        for run in runs:
            run.wait(self._timeout)
        return [run.responses for run in runs]

    def is_ready(self) -> bool:
        """What the model's own `is_ready` says; True if it has none.

        Raises:
            TypeError: If it returns anything else than a bool.
        """
        check = method_of(self.instance, "is_ready")
        if check is None:
            return True
        with self._at_work():
            ready = check()
            if hasattr(ready, "__await__") and self._guest is not None:
                ready = self._guest.wait_for(ready)
        if not isinstance(ready, bool):
            raise TypeError("is_ready() must return a boolean value")
        return ready

    def respond(self, call: Call) -> list[Response]:
        """The responses to a call of another model under test, which has this one as a fake."""
        request = Request(
            inputs=call.tensors,
            request_id=call.request_id,
            correlation_id=call.correlation_id,
            flags=call.flags,
            parameters=call.parameters,
            requested_outputs=call.requested_outputs,
            timeout=call.timeout,
        )
        return self.execute([request])[0]

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finalize the model. What its `finalize` raises is logged only, as by the server."""
        if not self._is_open:
            return
        self._is_open = self._calls.is_open = False
        if self._guest is not None:
            self._guest.close()
            self._guest = None
        finalize = method_of(self.instance, "finalize")
        try:
            if finalize is not None:
                with self._at_work():
                    finalize()
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            self._log_own(0, f"finalize of '{self.name}' failed: {loader.format_exception(error)[1]}")
        finally:
            self._modules.close()
            runtime.uninstall(self._runtime)

    def _open(self, model_class: type | None, given: Mapping[str, str]) -> None:
        runtime.install(self._runtime)
        self._is_open = True
        try:
            with self._modules.closed_on_failure(), self._at_work(), _in_the_servers_words():
                self._initialize(model_class, given)
        except BaseException:
            self._is_open = False
            runtime.uninstall(self._runtime)
            raise

    def _initialize(self, model_class: type | None, given: Mapping[str, str]) -> None:
        source = self._source
        if model_class is None:
            assert source.model_file is not None
            model_class = self._modules.load(source.model_file, source.model_dir, shared=source.shared)
            self.module = self._modules.module
        else:
            self.module = sys.modules.get(model_class.__module__)
            model_class = dialect.adapt(model_class)
        utils = __import__(_UTILS)
        message = complete(source.message, model_class, utils.ModelConfig)
        validate(message, with_io=source.model_file is not None)
        self._config = config = freeze(message)
        self._states = SequenceStates(config, source.model_dir)
        if config.message.HasField("sequence_batching"):
            self._controls = Controls(config)
        if config.inputs or (config.outputs and source.model_file is not None):
            self._plan = compile_plan(config, source.version)
        self.config = to_json(config.message)
        instance = model_class()
        passed = {**arguments(config, source), **given}
        initialize = method_of(instance, "initialize")
        if initialize is not None:
            initialize(passed)
        self.instance = instance
        self._calls.is_open = True
        self._guest = Guest(
            method_of(instance, "execute"),
            instance_name=passed["model_instance_name"],
            model_file=str(source.model_file or model_class.__name__),
            decoupled=config.decoupled,
            log=self._log_own,
            outputs=self._declared_outputs() if self._checks_outputs else None,
        )

    def _declared_outputs(self) -> dict[str, Datatype] | None:
        """The datatypes of the outputs that the model may send; None if none is configured."""
        states = self._config.message.sequence_batching.state
        declared = {tensor.name: tensor.datatype for tensor in self._config.outputs}
        return {**{each.output_name: Datatype(each.data_type) for each in states}, **declared} if declared else None

    # -- log ------------------------------------------------------------------------------------------------------

    def _log(self, level: int, file: str, line: int, message: str) -> None:
        self.logs.append(LogRecord(logger.LogLevel(level).name, message, file, line))

    def _log_own(self, level: int, message: str) -> None:
        self._log(level, "model.py", 0, message)

    # -- requests as the model sees them --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with runtime.activate(self._runtime), self._modules.entered():
            yield

    def _run_of(self, request: Request) -> RequestRun:
        types = {tensor.name: tensor.datatype.numpy for tensor in self._config.inputs}
        tensors = [tensor_of(name, value, types.get(name)) for name, value in request.inputs.items()]
        if self._plan is not None:
            described = [
                InputTensor(tensor.name(), Datatype(code), tuple(shape), data)
                for tensor in tensors
                for code, shape, data, _ in [tensor._payload()]  # noqa: SLF001 - how the guest reads it, too
            ]
            checked = self._plan.check(
                InferRequest(
                    self.name,
                    self._source.version,
                    described,
                    request_id=request.request_id,
                    requested_outputs=request.requested_outputs,
                )
            )
            tensors = [
                tensor._received(tensor.name(), item.datatype, item.shape, item.data)  # type: ignore[arg-type] # noqa: SLF001 - made for this
                for tensor, item in zip(tensors, checked.request.inputs, strict=True)
            ]
        requested: Any = list(request.requested_outputs) or [tensor.name for tensor in self._config.outputs]
        requested = requested or AnyName()
        parameters = json.dumps(dict(request.parameters)) if request.parameters else ""
        if self._controls is not None:
            if request.correlation_id:  # else `state_of` rejects a request that needs one
                self._controls.check(request.correlation_id, self.name)
            tensors += [
                received_input(each) for each in self._controls.tensors_for(request.flags, request.correlation_id)
            ]
        kept = None if self._states is None else self._states.state_of(request)
        make = received_request(request, tensors, requested, parameters, kept)
        if self._states is not None and isinstance(requested, list):
            requested = [*requested, *self._states.outputs]  # which a model may send without having been asked
        return RequestRun(request, make, requested, kept)


@contextlib.contextmanager
def _in_the_servers_words() -> Iterator[None]:
    """Raise the exceptions of a model that is being loaded with the server's error text."""
    try:
        yield
    except NaiadError:
        raise
    except Exception as error:
        text, traceback_text = loader.format_exception(error)
        raise ModelError(text, code=Code.INTERNAL, traceback_text=traceback_text) from error


def _folders(source: TestedModel) -> tuple[Path, ...]:
    if source.model_file is None:
        return ()
    return (source.model_dir, source.model_file.parent) if source.shared else (source.model_dir,)


@dataclass(frozen=True, slots=True)
class ControlAction:
    """One `pb_utils.load_model` or `unload_model`."""

    action: str
    model_name: str
    config: str = ""
    files: dict[str, Any] | None = None
    unload_dependents: bool = False


@dataclass
class RecordedControl(ModelControl):
    """What one model did to others, and which of them are ready."""

    models: Collection[str]
    actions: list[ControlAction] = field(default_factory=list)
    unloaded: set[str] = field(default_factory=set)

    def load_model(self, model_name: str, config: str, files: dict[str, Any] | None) -> None:
        if model_name not in self.models:
            raise TritonModelException(
                f"Failed to load model: failed to load '{model_name}', failed to poll from model repository (the test "
                f"has fakes for: {', '.join(self.models) or 'none'})"
            )
        self.actions.append(ControlAction("load", model_name, config, files))
        self.unloaded.discard(model_name)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: FBT001 - the API's signature
        """Record an unload; unknown names succeed, as in a server."""
        self.actions.append(ControlAction("unload", model_name, unload_dependents=unload_dependents))
        self.unloaded.add(model_name)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:  # noqa: ARG002 - fakes have no versions
        """Whether the model has a fake that was not unloaded."""
        if model_name not in self.models:
            raise TritonModelException(
                f"Failed to check model readiness: Request for unknown model: '{model_name}' is not found (the test "
                f"has fakes for: {', '.join(self.models) or 'none'})"
            )
        return model_name not in self.unloaded
