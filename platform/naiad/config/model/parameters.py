"""What the server reads of a model's `parameters`: its own settings of that model, parsed where it is frozen.

All other parameters are the model's, or are read where they decide (`models.resolution`). An empty value is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.memory_limit import MEMORY_LIMIT, NO_MEMORY_LIMIT, MemoryLimit, parse_memory_limit
from naiad.config.model.prewarm import PREWARM, parse_prewarmed_modules
from naiad.config.model.scaling import MAX, MIN, SCALE_IDLE, SCALE_WAIT, ScalingPolicy, parse_scaling
from naiad.core.errors import Code, ParameterError

DEMAND = "demand"
IDLE_SECONDS = "idle_seconds"
HANG_SECONDS = "HANG_SECONDS"
NATIVE_SHARED_MODEL = "native_shared_model"
CPU_ONLY = "FORCE_CPU_ONLY_INPUT_TENSORS"
ONE_PROCESS = "ONE_PROCESS"
_OWN = (
    DEMAND,
    IDLE_SECONDS,
    HANG_SECONDS,
    MEMORY_LIMIT,
    NATIVE_SHARED_MODEL,
    PREWARM,
    MIN,
    MAX,
    SCALE_WAIT,
    SCALE_IDLE,
    CPU_ONLY,
    ONE_PROCESS,
)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_DEMANDS = {**_FLAGS, "pinned": False}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The server's own parameters of a model; None where the server's options decide."""

    # `demand`: whether its first request loads it, and whether it may be unloaded afterwards.
    is_on_demand: bool | None = None
    # `idle_seconds`: a model on demand is unloaded after so long without requests; 0 for never.
    idle_seconds: float | None = None
    # `HANG_SECONDS`: if requests go without progress for so long, its guest is restarted; 0 for never.
    hang_seconds: float | None = None
    memory_limit: MemoryLimit = NO_MEMORY_LIMIT
    # `native_shared_model`: whether the instances of a native model share one process.
    is_native_shared: bool | None = None
    # `PREWARM`: the modules that are imported once for all instances; empty for none.
    prewarmed_modules: tuple[str, ...] | None = None
    # `min_instances`, `max_instances` and what belongs to them; None if the number of instances is fixed.
    scaling: ScalingPolicy | None = None
    takes_device_inputs: bool = False  # `FORCE_CPU_ONLY_INPUT_TENSORS` is "no": it takes inputs in GPU memory
    is_in_one_process: bool = False  # `ONE_PROCESS`: whether one process of the server has all its instances


NO_PARAMETERS_GIVEN = ModelParameters()


def or_default(given: T | None, default: T) -> T:
    """What the model's parameter gives, else the server's option."""
    return default if given is None else given


def parse_parameters(message: pb.ModelConfig) -> ModelParameters:
    """The server's own parameters in a configuration. An ensemble has none: no guest runs it."""
    if message.HasField("ensemble_scheduling"):
        return NO_PARAMETERS_GIVEN
    model = message.name
    given = {name: parameter.string_value for name, parameter in message.parameters.items()}
    return ModelParameters(
        is_on_demand=_choice(
            model,
            DEMAND,
            given,
            _DEMANDS,
            "true (its first request loads it) or pinned (it is loaded at the start and stays)",
        ),
        idle_seconds=_seconds(model, IDLE_SECONDS, given, zero="never"),
        hang_seconds=_seconds(model, HANG_SECONDS, given, zero="no limit"),
        memory_limit=parse_memory_limit(model, given.get(MEMORY_LIMIT, "")),
        is_native_shared=_choice(model, NATIVE_SHARED_MODEL, given, _FLAGS, "true or false"),
        prewarmed_modules=parse_prewarmed_modules(model, given.get(PREWARM, "")),
        scaling=parse_scaling(message, given),
        takes_device_inputs=_takes_device_inputs(message, given),
        is_in_one_process=bool(_choice(model, ONE_PROCESS, given, _FLAGS, "true or false")),
    )


def _takes_device_inputs(message: pb.ModelConfig, given: Mapping[str, str]) -> bool:
    """Whether the model takes inputs in GPU memory. The text of the error is the reference's (PB src/python_be.cc)."""
    value = given.get(CPU_ONLY, "yes")
    if value not in {"yes", "no"} and message.backend in {"", "python"}:  # the backends that read the parameter
        raise ParameterError(
            f"Incorrect value for {CPU_ONLY}: {value}'; give 'yes' (inputs are on the CPU) or 'no' in lower case",
            parameter=CPU_ONLY,
            code=Code.UNSUPPORTED,
        )
    return value == "no"


def without_own_parameters(message: pb.ModelConfig) -> pb.ModelConfig:
    """A copy of a configuration without the parameters that `parse_parameters` may reject."""
    copy = pb.ModelConfig()
    copy.CopyFrom(message)
    for name in _OWN:
        if name in copy.parameters:
            del copy.parameters[name]
    return copy


def place_of_parameter(path: Path, name: str) -> str:
    """The place of a parameter in a configuration file: `config.pbtxt:12`; the path alone if the line is not found."""
    key = re.compile(rf"""^[^#]*\bkey\s*:\s*(["']){re.escape(name)}\1""")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return str(path)
    # Of a parameter that is given twice, the last value counts.
    return next((f"{path}:{number}" for number in range(len(lines), 0, -1) if key.search(lines[number - 1])), str(path))


def _choice(model: str, name: str, given: Mapping[str, str], values: Mapping[str, bool], choices: str) -> bool | None:
    text = given.get(name, "")
    if not text.strip():
        return None
    value = values.get(text.strip().lower())
    if value is None:
        raise ParameterError(f"parameter {name} of model '{model}' is '{text}': give {choices}", parameter=name)
    return value


def _seconds(model: str, name: str, given: Mapping[str, str], *, zero: str) -> float | None:
    text = given.get(name, "")
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ParameterError(
            f"parameter {name} of model '{model}' is '{text}': give a number of seconds, or 0 for {zero}",
            parameter=name,
        )
    return seconds
