"""Helpers for `model.py` files, usually imported as `pb_utils`.

In a guest the stub adds the classes of the API to this module (`Tensor`, `InferenceResponse`, ...). What is written
here needs numpy alone, so that a model's helpers and tests can import it anywhere.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""Numpy types by the names config.pbtxt uses. BF16 is absent: numpy has no such type."""

_missing_input: Dict[str, Any] = {}
"""`name` that a request had no input of, with the `names` it had: of the last such lookup in this batch."""

_NUMBERED: Tuple[Any, ...] = (None, np.bool_, *list(TRITON_STRING_TO_NUMPY.values())[1:])


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a datatype such as `TYPE_FP32`; KeyError if it is unknown."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's number; None if it is unknown."""
    return _NUMBERED[data_type] if 0 < data_type < len(_NUMBERED) else None


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """The number of the datatype of a numpy type; None without one."""
    if data_type == np.bytes_:
        return _NUMBERED.index(np.object_)
    # By comparison and not by hash: a dtype equals its type but need not hash alike.
    return next((number for number, known in enumerate(_NUMBERED) if number and data_type == known), None)


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> Union[bytes, Tuple[()], None]:
    """The elements of a tensor of objects or bytes in C order, each as `<u32 length><bytes>`.

    Elements other than bytes are turned into text and encoded as UTF-8. Prefer object arrays: numpy drops trailing
    zero bytes from fixed-size ones.

    Returns:
        The bytes; `()` for an empty tensor; None for a tensor of another type.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in ("O", "S"):
        return None
    parts: List[bytes] = []
    for item in input_tensor.ravel().tolist():
        data = item if isinstance(item, bytes) else str(item).encode("utf-8")
        parts += (struct.pack("<I", len(data)), data)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: Any) -> np.ndarray[Any, Any]:
    """The elements of a serialised bytes tensor as a one-dimensional array of `bytes` objects."""
    data = bytes(encoded_tensor)
    strings: List[bytes] = []
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if offset + length > len(data):
            raise ValueError(
                f"element {len(strings)} of a bytes tensor has {length} bytes, but only {len(data) - offset} are left"
            )
        strings.append(data[offset : offset + length])
        offset += length
    array: np.ndarray[Any, Any] = np.empty(len(strings), np.object_)
    array[:] = strings
    return array


def get_input_tensor_by_name(inference_request: Any, name: str) -> Any:
    """The request's input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    _missing_input.update(name=name, names=[tensor.name() for tensor in inference_request.inputs()])
    return None


def get_output_tensor_by_name(inference_response: Any, name: str) -> Any:
    """The response's output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The input of that name in a model configuration, or None."""
    return _named(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """The output of that name in a model configuration, or None."""
    return _named(model_config.get("output", ()), name)


def _named(tensors: Any, name: str) -> Optional[Dict[str, Any]]:
    """The first of *tensors* that has the name, or None."""
    found: Optional[Dict[str, Any]] = next((tensor for tensor in tensors if tensor["name"] == name), None)
    return found


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Whether a model configuration says that the model answers a request any number of times."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


class ModelConfig:
    """A model configuration for `auto_complete_config` to complete.

    What the configuration already says is not overruled: the methods raise ValueError on a contradiction.
    """

    def __init__(self, model_config: str) -> None:
        # Imported late: only `auto_complete_config` uses this class, in a separate process.
        import json

        self._model_config: Dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> Dict[str, Any]:
        """The configuration itself; read it, and use the methods to change it."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch the model takes, which must not be less than a configured one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Use the dynamic batcher, unless another scheduler is configured."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:  # noqa: A002 - the API's name
        """Add an input with `name`, `data_type`, `dims` and, if wanted, `optional`; or complete a configured one."""
        self._check_properties("input", input, ("name", "data_type", "dims", "optional"))
        self._add("input", input)

    def add_output(self, output: Dict[str, Any]) -> None:
        """Add an output with `name`, `data_type` and `dims`; or complete a configured one."""
        self._check_properties("output", output, ("name", "data_type", "dims"))
        self._add("output", output)

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set `{"decoupled": bool}`, which must not contradict a configured value."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                "property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = wanted

    @property
    def _name(self) -> str:
        """The model's name."""
        name: str = self._model_config["name"]
        return name

    def _check_properties(self, kind: str, tensor: Dict[str, Any], allowed: Tuple[str, ...]) -> None:
        """Refuse unknown properties and missing ones; all but `optional` are required."""
        where = f"in auto-complete-config function for model '{self._name}'"
        what = f"{kind} '{tensor['name']}'" if "name" in tensor else kind
        if any(key not in allowed for key in tensor):
            listed = ", ".join(f"'{key}'" for key in allowed[:-1]) + f" and '{allowed[-1]}'"
            raise ValueError(f"{what} {where} contains property other than {listed}.")
        for key in ("name", "data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{what} {where} is missing '{key}' property.")

    def _add(self, kind: str, tensor: Dict[str, Any]) -> None:
        """Append *tensor*, or fill it into the configured one of its name."""
        configured = _named(self._model_config[kind], tensor["name"])
        if configured is None:
            self._model_config[kind].append(tensor)
            return
        if configured["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            # The reference says input or output here, whichever it is.
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {configured['data_type']} for "
                f"{kind} '{tensor['name']}', model provides {tensor['data_type']}"
            )
        if configured["dims"]:
            self._check_same("dims", configured, tensor)
        if "optional" in configured and "optional" in tensor:
            self._check_same("optional", configured, tensor)
        configured.update(tensor)

    def _check_same(self, key: str, configured: Dict[str, Any], tensor: Dict[str, Any]) -> None:
        """Refuse a value that contradicts the configured one."""
        if configured[key] != tensor[key]:
            raise ValueError(
                f"model '{self._name}', tensor '{tensor['name']}': the model expects {key} {tensor[key]} but the model "
                f"configuration specifies {key} {configured[key]}"
            )


def _complete_outside_a_guest() -> None:
    """Set the API's names onto this module where a test, a notebook or an editor imports it: naiad is installed there.

    A guest does that itself after it has imported its utils, which may be others than these.
    """
    try:
        from naiad_stub import api
    except ImportError:  # this file alone, as people copy it beside their model
        return
    api.install_outside(__name__)


def _yield_to_the_module_of_a_triton() -> None:
    """Put the module that a Triton's stub brings along in the place of this one.

    That stub appends the folder of its module to `sys.path`, so this file is found first where naiad is installed in
    its Python. The stub needs its own module, and nothing may replace its extension module.
    """
    try:
        from naiad_stub.later_module import import_later_module
    except ImportError:  # this file alone: a Triton's stub sets the classes of the API onto it
        return
    import_later_module(__name__, __file__)


if "c_python_backend_utils" in sys.builtin_module_names:  # only a Triton's own stub has it built in
    _yield_to_the_module_of_a_triton()
else:
    _complete_outside_a_guest()
