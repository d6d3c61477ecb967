"""What the server reads of a model's `parameters`: its own settings of that model, parsed where it is frozen.

All other parameters are the model's, or are read where they decide (`models.resolution`). An empty value is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.given_parameters import GivenParameters, T
from naiad.config.model.scaling import MAX, MIN, SCALE_IDLE, SCALE_WAIT, ScalingPolicy, parse_scaling
from naiad.core.errors import Code, OptionError, ParameterError
from naiad.core.quantities import parse_size

MEMORY_LIMIT = "memory_limit"
PREWARM = "PREWARM"
_CPU_ONLY = "FORCE_CPU_ONLY_INPUT_TENSORS"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_DEMANDS = {**_FLAGS, "pinned": False}
_LEAST_MEMORY = 16 << 20  # An interpreter with numpy has more. A smaller number is most likely one without its unit.
_DEFAULT_MODULES = ("numpy",)  # Those of a model that does not name its own. The stub imports numpy in any case.
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAMES, _READ = "names", "read"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit, as it was written and in bytes; 0 for no limit."""

    size: int
    text: str

    def __bool__(self) -> bool:
        return self.size > 0


NO_MEMORY_LIMIT = MemoryLimit(0, "")


def _memory_limit(given: GivenParameters) -> MemoryLimit:
    text = given.text(MEMORY_LIMIT)
    if not text:
        return NO_MEMORY_LIMIT
    try:
        size = parse_size(text)
    except OptionError as error:
        raise ParameterError(
            f"parameter {MEMORY_LIMIT} of model '{given.message.name}': {error.message}", parameter=MEMORY_LIMIT
        ) from None
    if 0 < size < _LEAST_MEMORY:
        raise given.parameter_error(MEMORY_LIMIT, f"is '{text}', too little for any guest; give a size such as 2GiB")
    return MemoryLimit(size, text)


def _prewarmed_modules(given: GivenParameters) -> tuple[str, ...] | None:
    """The modules of `true`, `false`, or names with commas; empty for none, None if the server's option decides."""
    text = given.text(PREWARM)
    if not text:
        return None
    if text.lower() in {"true", "false"}:
        return _DEFAULT_MODULES if text.lower() == "true" else ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _MODULE.fullmatch(name):
            raise given.parameter_error(
                PREWARM,
                f"is '{text}', in which '{name}' is not a module's name: give \"true\", \"false\", or "
                'modules of its environment separated by commas, such as "numpy,torch"',
            )
    return tuple(dict.fromkeys((*_DEFAULT_MODULES, *names)))


def modules_to_prewarm(given: tuple[str, ...] | None, *, by_default: bool) -> tuple[str, ...]:
    """The modules to import once for all instances; *by_default* (`--prewarm`) for models without the parameter."""
    if given is not None:
        return given
    return _DEFAULT_MODULES if by_default else ()


def _takes_device_inputs(given: GivenParameters) -> bool:
    """Whether the model takes inputs in GPU memory. The text of the error is the reference's (PB src/python_be.cc)."""
    message = given.message
    value = message.parameters[_CPU_ONLY].string_value if _CPU_ONLY in message.parameters else "yes"
    if value not in {"yes", "no"} and message.backend in {"", "python"}:  # the backends that read the parameter
        raise ParameterError(
            f"Incorrect value for {_CPU_ONLY}: {value}'; give 'yes' (inputs are on the CPU) or 'no' in lower case",
            parameter=_CPU_ONLY,
            code=Code.UNSUPPORTED,
        )
    return value == "no"


def _read_by(read: Callable[[GivenParameters], object], *names: str, default: object = None) -> Any:
    """A field that is read from the parameters with these names."""
    return field(default=default, metadata={_READ: read, _NAMES: names})


def _choice(name: str, values: dict[str, bool] = _FLAGS, wanted: str = "true or false") -> Any:
    return _read_by(lambda given: given.choice(name, values, wanted), name)


def _seconds(name: str, zero: str) -> Any:
    return _read_by(lambda given: given.seconds(name, zero), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The server's own parameters of a model; None where the server's options decide."""

    # Whether its first request loads it, and whether it may be unloaded afterwards.
    is_on_demand: bool | None = _choice(
        "demand", _DEMANDS, "true (its first request loads it) or pinned (it is loaded at the start and stays)"
    )
    idle_seconds: float | None = _seconds("idle_seconds", "never")  # a model on demand without requests is unloaded
    # If requests go without progress for so long, its guest is restarted.
    hang_seconds: float | None = _seconds("HANG_SECONDS", "no limit")
    memory_limit: MemoryLimit = _read_by(_memory_limit, MEMORY_LIMIT, default=NO_MEMORY_LIMIT)
    is_native_shared: bool | None = _choice("native_shared_model")  # whether all instances share one process
    # The modules that are imported once for all instances; empty for none.
    prewarmed_modules: tuple[str, ...] | None = _read_by(_prewarmed_modules, PREWARM)
    # None if the number of instances is fixed.
    scaling: ScalingPolicy | None = _read_by(parse_scaling, MIN, MAX, SCALE_WAIT, SCALE_IDLE)
    takes_device_inputs: bool = _read_by(_takes_device_inputs, _CPU_ONLY, default=False)
    is_in_one_process: bool | None = _choice("ONE_PROCESS")  # whether one process of the server has all its instances


NO_PARAMETERS_GIVEN = ModelParameters()


def parse_parameters(message: pb.ModelConfig) -> ModelParameters:
    """The server's own parameters in a configuration. An ensemble has none: no guest runs it."""
    if message.HasField("ensemble_scheduling"):
        return NO_PARAMETERS_GIVEN
    given = GivenParameters(message)
    return ModelParameters(**{each.name: each.metadata[_READ](given) for each in fields(ModelParameters)})


def or_default(given: T | None, default: T) -> T:
    """What the model's parameter gives, else the server's option."""
    return default if given is None else given


def without_own_parameters(message: pb.ModelConfig) -> pb.ModelConfig:
    """A copy of a configuration without the parameters that `parse_parameters` may reject."""
    copy = deepcopy(message)
    for name in (name for each in fields(ModelParameters) for name in each.metadata[_NAMES]):
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
