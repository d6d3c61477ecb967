"""Opens an ONNX file with what the configuration says about its execution, and runs it on arrays.

Parameters, their values and the texts about them are those of the reference's backend (onnxruntime_backend
src/onnxruntime.cc and README.md).
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from saved_models.conversion import InputError, strings
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings, error, threads_for_instance

_FILENAME = "model.onnx"
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_INVALID_ARGUMENT = 2
_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"

_DATA_TYPES = {
    **{np.dtype(kind).name: name for name, kind in pb_utils.TRITON_STRING_TO_NUMPY.items()},
    "float": "TYPE_FP32",
    "double": "TYPE_FP64",
    "string": "TYPE_STRING",
}

# Threads wait for the next operator of a run by spinning: sleeping after each costs a model of many small operators
# half of its time. After a run they stop: threads that spin between requests take the processors from the server and
# from other instances.
_SESSION_ENTRIES: Mapping[str, Optional[str]] = {
    "session.force_spinning_stop": "1",
    "session.intra_op.allow_spinning": None,
    "session.intra_op.spin_duration_us": None,
    "session.inter_op.allow_spinning": "0",
    "session.use_device_allocator_for_initializers": None,
}  # parameters that are entries of the session's configuration: their values if none is given
_CUDA_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "gpu_mem_limit": {},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "do_copy_in_default_stream": {},
}  # parameters that are options of CUDA's provider: its words for the reference's numbers
_TENSORRT_PARAMETERS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}  # parameters of the accelerator `tensorrt` that the reference names otherwise; the others have the provider's names
_TENSORRT_PRECISIONS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable", "FP32": ""}


def open_session(settings: ModelSettings) -> Any:
    """The session of a model's file."""
    path = settings.find_file(_FILENAME)
    options = _session_options(settings)
    providers = _providers(settings)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as problem:
        if isinstance(problem, MemoryError):
            raise
        version = onnxruntime.__version__
        raise settings.error(f"ONNX Runtime {version} cannot open '{path}': {parse_error(problem)[1]}") from None


def parse_error(problem: Exception) -> Tuple[int, str]:
    """Number and text in an exception, such as `[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid ...`.

    Other exceptions, of the binding itself, have number 1, which ONNX Runtime calls a failure.
    """
    match = _ERROR.match(str(problem))
    return (int(match[1]), match[2]) if match else (1, str(problem))


def _session_options(settings: ModelSettings) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    levels = onnxruntime.GraphOptimizationLevel
    graph: Mapping[str, Any] = (settings.config.get("optimization") or {}).get("graph") or {}
    options.graph_optimization_level = {
        -1: levels.ORT_ENABLE_BASIC,
        1: levels.ORT_ENABLE_EXTENDED,
        2: levels.ORT_DISABLE_ALL,
    }.get(int(graph.get("level", 0)), levels.ORT_ENABLE_ALL)
    mode = settings.integer("execution_mode", 0)
    if mode not in (0, 1):
        raise error(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = (
        onnxruntime.ExecutionMode.ORT_PARALLEL if mode else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    )
    backend = pb_utils.get_backend_config()
    options.intra_op_num_threads = _threads(settings, backend, "intra_op_thread_count", threads_for_instance())
    options.inter_op_num_threads = _threads(settings, backend, "inter_op_thread_count", 0)
    options.enable_cpu_mem_arena = settings.flag("enable_mem_arena", default=True)
    options.enable_mem_pattern = settings.flag("enable_mem_pattern", default=True)
    for key, default in _SESSION_ENTRIES.items():
        value = settings.parameters.get(key, default)
        if value is not None:
            options.add_session_config_entry(key, value)
    return options


def _threads(settings: ModelSettings, backend: Mapping[str, str], key: str, default: int) -> int:
    """The model's own number, else that of the backend's settings, else the default; 0 lets ONNX Runtime choose."""
    own = settings.integer(key, 0)
    if own > 0:
        return own
    text = backend.get(key, "0")
    if not text.lstrip("-").isdecimal():
        raise error(f"cannot use --backend-config=onnxruntime,{key}={text}: it is not an integer")
    return int(text) if int(text) > 0 else default


def _providers(settings: ModelSettings) -> List[Any]:
    """The execution providers, in the order in which ONNX Runtime asks them."""
    available = onnxruntime.get_available_providers()
    accelerators: Mapping[str, Any] = (settings.config.get("optimization") or {}).get("execution_accelerators") or {}
    providers: List[Any] = []
    cuda: Dict[str, str] = {}
    if settings.kind == "GPU":
        if _CUDA not in available:
            raise settings.error(
                f"its instance is on GPU {settings.device}, and ONNX Runtime {onnxruntime.__version__} of this "
                f"environment has only {', '.join(available)}; install onnxruntime-gpu in its place (`naiad add` the "
                "package to an environment of the model's own), or use KIND_CPU in instance_group"
            )
        for entry in accelerators.get("gpu_execution_accelerator") or ():
            parameters: Mapping[str, str] = entry.get("parameters") or {}
            if entry["name"] == "tensorrt":
                _add(providers, "TensorrtExecutionProvider", _tensorrt_options(parameters, settings), entry, settings)
            elif entry["name"] == "cuda":
                cuda.update(parameters)
            else:
                raise error(f"unknown Execution Accelerator '{entry['name']}' is requested")
        own = {key: settings.parameters[key] for key in _CUDA_PARAMETERS if key in settings.parameters}
        own = {key: _CUDA_PARAMETERS[key].get(value, value) for key, value in own.items()}
        cuda = {**own, **cuda, "device_id": str(settings.device)}
        providers.append((_CUDA, cuda))
    for entry in accelerators.get("cpu_execution_accelerator") or ():
        if entry["name"] != "openvino":
            raise error(f"unknown Execution Accelerator '{entry['name']}' is requested")
        _add(providers, "OpenVINOExecutionProvider", {"device_type": "CPU"}, entry, settings)
    return [*providers, _CPU]


def _add(
    providers: List[Any], provider: str, options: Dict[str, str], entry: Mapping[str, Any], settings: ModelSettings
) -> None:
    if provider in onnxruntime.get_available_providers():
        providers.append((provider, options))
        return
    pb_utils.Logger.log_warn(
        f"the execution accelerator '{entry['name']}' of model '{settings.name}' is not used: ONNX Runtime "
        f"{onnxruntime.__version__} of this environment was built without {provider}"
    )


def _tensorrt_options(parameters: Mapping[str, str], settings: ModelSettings) -> Dict[str, str]:
    options = {"device_id": str(settings.device)}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise error(f"unsupported precision mode '{value}' is requested")
            if _TENSORRT_PRECISIONS[value]:
                options[_TENSORRT_PRECISIONS[value]] = "1"
        else:
            options[_TENSORRT_PARAMETERS.get(key, key)] = value
    return options


def interface_of(session: Any, settings: ModelSettings) -> ModelInterface:
    """The tensors that the file declares; ModelLoadError for a sequence or a map."""
    return ModelInterface(
        inputs=tuple(_tensor(info, settings) for info in session.get_inputs()),
        outputs=tuple(_tensor(info, settings) for info in session.get_outputs()),
        overridable=tuple(_tensor(info, settings) for info in session.get_overridable_initializers()),
    )


def _tensor(info: Any, settings: ModelSettings) -> ModelTensor:
    kind, _, element = info.type.partition("(")
    if kind != "tensor":
        raise settings.error(
            f"Unsupported ONNX Type '{info.type}' for I/O '{info.name}', expected 'tensor'; classifiers of "
            "scikit-learn are converted with the option zipmap=False"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in info.shape)
    return ModelTensor(info.name, _DATA_TYPES.get(element.rstrip(")"), ""), shape, described=info.type)


class SessionRunner:
    """A session, with the conversions between the protocol's tensors and those of ONNX Runtime."""

    def __init__(self, session: Any, settings: ModelSettings, interface: ModelInterface) -> None:
        self._run = session.run
        self._options: Any = None
        if settings.parameters.get(_SHRINKAGE):
            self._options = onnxruntime.RunOptions()
            self._options.add_run_config_entry(_SHRINKAGE, settings.parameters[_SHRINKAGE])
        inputs = (*interface.inputs, *interface.overridable)
        self._strings = frozenset(tensor.name for tensor in inputs if tensor.data_type == "TYPE_STRING")
        self._scalars = frozenset(tensor.name for tensor in inputs if not tensor.shape)
        scalars = {tensor.name for tensor in interface.outputs if not tensor.shape}
        # Scalars are configured with dimensions of 1, which the reference gives them.
        self._scalar_outputs: Mapping[str, Sequence[int]] = {
            tensor.name: tensor.dims for tensor in settings.outputs if tensor.name in scalars
        }

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names; InputError if ONNX Runtime refuses inputs, TritonModelException if it fails."""
        for name in self._strings & arrays.keys():
            # The binding would write bytes as literals of Python.
            arrays[name] = strings(name, arrays[name])
        for name in self._scalars & arrays.keys():
            arrays[name] = arrays[name].reshape(())
        try:
            found = dict(zip(wanted, self._run(wanted, arrays, self._options)))
        except Exception as problem:  # noqa: BLE001 - its exceptions have no common class of their own
            number, text = parse_error(problem)
            kind = InputError if number == _INVALID_ARGUMENT else pb_utils.TritonModelException
            raise kind(f"onnx runtime error {number}: {text}") from None
        for name, dims in self._scalar_outputs.items():
            if name in found:
                found[name] = np.asarray(found[name]).reshape(dims)
        return found
