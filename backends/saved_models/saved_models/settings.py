"""The configuration of a model as a backend for saved models reads it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import triton_python_backend_utils as pb_utils

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})


@dataclass(frozen=True)
class TensorSettings:
    """An input or output of the configuration."""

    name: str
    data_type: str  # such as `TYPE_FP32`
    dims: Tuple[int, ...]  # sizes that the library sees, those of `reshape` if it is given; without the rows of a batch
    is_reshaped: bool = False
    is_optional: bool = False  # whether requests may leave it out
    is_ragged: bool = False  # whether requests of a batch may differ in its sizes


@dataclass(frozen=True)
class ModelSettings:
    """The configuration of one model. Its methods raise ModelLoadError for wrong values."""

    name: str
    directory: str  # the version's
    max_batch_size: int  # most rows of a batch; 0 for a model without batches
    inputs: Tuple[TensorSettings, ...]  # with those of states of sequences
    outputs: Tuple[TensorSettings, ...]  # likewise
    states: Tuple[str, ...]  # outputs that are states of sequences: the server keeps them, and no client asks for them
    parameters: Mapping[str, str]
    config: Mapping[str, Any]  # the whole configuration
    kind: str = "CPU"  # where the instance runs: GPU, CPU or MODEL
    device: int = 0  # number of the GPU

    def integer(self, key: str, default: int) -> int:
        text = self.parameters.get(key)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise self.wrong_parameter(key, "an integer") from None

    def flag(self, key: str, *, default: bool) -> bool:
        text = self.parameters.get(key)
        if text is None:
            return default
        word = text.strip().lower()
        if word not in _TRUE and word not in _FALSE:
            raise self.wrong_parameter(key, "true or false")
        return word in _TRUE

    def json_object(self, key: str, example: str) -> Optional[Dict[str, Any]]:
        """The object in a parameter with JSON; None without the parameter."""
        try:
            found = json.loads(self.parameters.get(key, "null"))
        except ValueError:
            found = ()
        if not isinstance(found, dict) and key in self.parameters:
            raise self.wrong_parameter(key, f"a JSON object such as {example}")
        return found if isinstance(found, dict) else None

    def allows(self, parameter: str, setting: str, *, default: bool = False) -> bool:
        """Whether the model's parameter allows something, else the backend's setting, else the default."""
        word = pb_utils.get_backend_config().get(setting, "").lower()
        return self.flag(parameter, default=word in {"true", "1"} or (default and word not in {"false", "0"}))

    def wrong_parameter(self, key: str, wanted: str) -> Exception:
        return self.error(f"the parameter {key} is '{self.parameters[key]}', not {wanted}; correct it in config.pbtxt")

    def error(self, cause: str) -> Exception:
        """An error of the load, in the form of the reference's."""
        return error(f"unable to load model '{self.name}', {cause}")

    def find_file(self, default: str) -> Path:
        """The file: `default_model_filename`, else *default*, in the version's directory or in one of that name."""
        path = Path(self.directory, self.config.get("default_model_filename") or default)
        if path.is_dir():
            path /= default
        if not path.exists():
            raise error(f"unable to find '{path}' for model instance '{self.name}'")
        return path


def error(message: str) -> Exception:
    """The error with this text alone."""
    made: Exception = pb_utils.ModelLoadError(message)
    return made


def read(args: Mapping[str, str]) -> ModelSettings:
    """The settings in the arguments of `initialize`."""
    return read_config(
        json.loads(args["model_config"]),
        kind=args["model_instance_kind"],
        device=int(args["model_instance_device_id"]),
    )


def read_config(config: Mapping[str, Any], *, kind: str = "CPU", device: int = 0) -> ModelSettings:
    """The settings in a configuration, which may be incomplete."""
    inputs = [_tensor(entry) for entry in config.get("input", ())]
    outputs = [_tensor(entry) for entry in config.get("output", ())]
    states = (config.get("sequence_batching") or {}).get("state", ())
    for state in states:
        dims = tuple(map(int, state.get("dims", ())))
        inputs.append(TensorSettings(state["input_name"], state["data_type"], dims))
        outputs.append(TensorSettings(state["output_name"], state["data_type"], dims))
    return ModelSettings(
        name=config["name"],
        directory=pb_utils.get_model_dir(),
        max_batch_size=int(config.get("max_batch_size", 0)),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        states=tuple(state["output_name"] for state in states),
        parameters={key: value.get("string_value", "") for key, value in (config.get("parameters") or {}).items()},
        config=config,
        kind=kind,
        device=device,
    )


def placed(settings: ModelSettings, *, has_gpu: bool) -> ModelSettings:
    """The settings of the model's first instance, where no instance says yet what it is: while it is completed."""
    group: Mapping[str, Any] = next(iter(settings.config.get("instance_group") or ()), {})
    kind = str(group.get("kind", "KIND_CPU")).replace("KIND_", "")
    if kind == "AUTO":
        kind = "GPU" if has_gpu else "CPU"
    return replace(settings, kind=kind, device=int(next(iter(group.get("gpus") or ()), 0)))


def _tensor(entry: Mapping[str, Any]) -> TensorSettings:
    reshape: Optional[Mapping[str, Any]] = entry.get("reshape")
    dims: List[Any] = entry.get("dims", []) if reshape is None else reshape.get("shape", [])
    return TensorSettings(
        name=entry["name"],
        data_type=entry.get("data_type", "TYPE_INVALID"),
        dims=tuple(map(int, dims)),
        is_reshaped=reshape is not None,
        is_optional=bool(entry.get("optional")),
        is_ragged=bool(entry.get("allow_ragged_batch")),
    )


def control_inputs(config: Mapping[str, Any]) -> Dict[str, str]:
    """The type of each input that the sequence batcher adds, by its name; empty where the control itself gives it."""
    found: Dict[str, str] = {}
    for entry in (config.get("sequence_batching") or {}).get("control_input", ()):
        for control in entry.get("control", ()):
            data_type = control.get("data_type", "TYPE_INVALID")
            for key, name in (("int32", "TYPE_INT32"), ("fp32", "TYPE_FP32"), ("bool", "TYPE_BOOL")):
                if control.get(f"{key}_false_true"):
                    data_type = name
            found[entry["name"]] = data_type
    return found


def batch_inputs(config: Mapping[str, Any]) -> List[str]:
    """The names of the inputs that describe a batch; no request has them."""
    return [name for entry in config.get("batch_input") or () for name in entry["target_name"]]


def threads_for_instance() -> int:
    """Processors that one of the model's instances may use; 0 if the server says nothing about it.

    The server sets this variable to the processors divided by the instances of the model, for libraries that read it.
    """
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() else 0
