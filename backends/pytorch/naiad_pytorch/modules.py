"""Models that are a class in `model.py`, with weights beside it or without: the reference's Python runtime.

The rules are those of pytorch_backend src/model.py, but for one: a module is compiled only where a parameter says so,
because that takes a compiler and, at the first request, minutes.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Mapping, Optional, Tuple, Type

import torch
import triton_python_backend_utils as pb_utils
from saved_models.interface import ModelTensor
from saved_models.settings import ModelSettings, batch_inputs

from naiad_pytorch.model import Key, require_tensors
from naiad_pytorch.options import Options

_MODULE = "naiad_pytorch_model"


class ModuleModel:
    """A module of Python, called with its inputs in the order of the configuration."""

    inputs: Tuple[Optional[ModelTensor], ...] = ()
    input_names: Tuple[str, ...] = ()
    output_names: Tuple[str, ...] = ()

    def __init__(self, path: Path, settings: ModelSettings, options: Options) -> None:
        chosen = _class_in(path, settings)
        self.described = f"{chosen.__name__}.forward{inspect.signature(chosen.forward)}"
        with torch.inference_mode(options.is_inference):
            module = _made(chosen, path, settings)
            parameters = module.parameters()  # the model itself may have put them somewhere
            self.device = options.device or next((each.device for each in parameters), torch.device("cpu"))
            weights = path.with_suffix(".pt")
            if weights.exists():
                _load_weights(module, weights, settings, self.device)
            else:
                pb_utils.Logger.log_info(f"Model parameter file not found for '{settings.name}'")
            if options.device is not None:
                module.to(options.device)
            module.eval()
        self._module: Any = module
        if options.compile_arguments is not None:
            self._module = torch.compile(module, **options.compile_arguments)

    def bind(self, settings: ModelSettings) -> Dict[str, Key]:
        """As `Model.bind`: nothing is known of a module but what its `forward` takes."""
        require_tensors(settings, self.described)
        self._order = [*(tensor.name for tensor in settings.inputs), *batch_inputs(settings.config)]
        return {tensor.name: number for number, tensor in enumerate(settings.outputs)}

    def call(self, values: Mapping[str, Any]) -> Any:
        return self._module(*[values.get(name) for name in self._order])


def _class_in(path: Path, settings: ModelSettings) -> Type[torch.nn.Module]:
    module = _import(path, settings)
    found = [
        each
        for _, each in sorted(vars(module).items())
        if inspect.isclass(each) and issubclass(each, torch.nn.Module) and each is not torch.nn.Module
    ]
    # A module that was imported to be part of the model is not the model.
    own = [each for each in found if each.__module__ == module.__name__] or found
    if not own:
        raise settings.error(
            f"Cannot find a subclass of torch.nn.Module in '{path}'; define the model there as a class of its own"
        )
    if len(own) > 1:
        others = ", ".join(each.__name__ for each in own[1:])
        pb_utils.Logger.log_warn(
            f"model '{settings.name}' is the class {own[0].__name__}, the first one by name in '{path}', which also "
            f"has {others}; move those to another file if one of them is meant"
        )
    return own[0]


def _import(path: Path, settings: ModelSettings) -> ModuleType:
    directory = str(path.parent)
    if directory not in sys.path:
        sys.path.append(directory)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:  # noqa: BLE001 - code of users raises anything
        raise settings.error(f"'{path}' cannot be imported: {_frames(problem, path)}") from None
    return module


def _made(chosen: Type[torch.nn.Module], path: Path, settings: ModelSettings) -> torch.nn.Module:
    try:
        return chosen()
    except Exception as problem:  # noqa: BLE001 - code of users raises anything
        raise settings.error(
            f"{chosen.__name__}() of '{path}' failed, which is called without arguments: {_frames(problem, path)}"
        ) from None


def _frames(problem: Exception, path: Path) -> str:
    """The error with the lines of the model's own file that led to it."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == str(path)]
    lines = "".join(traceback.format_list(frames))
    return "".join(traceback.format_exception_only(type(problem), problem)).strip() + (f"\n{lines}" if lines else "")


def _load_weights(module: torch.nn.Module, path: Path, settings: ModelSettings, device: torch.device) -> None:
    try:
        state = torch.load(str(path), map_location=device, weights_only=True)
    except Exception as problem:  # noqa: BLE001 - PyTorch raises anything
        sentence = str(problem).strip().split("\n", 1)[0]
        raise settings.error(
            f"PyTorch {torch.__version__} cannot read the weights '{path}': {sentence}; write them by "
            f"torch.save(model.state_dict(), '{path.name}')"
        ) from None
    try:
        module.load_state_dict(state)
    except Exception as problem:  # noqa: BLE001 - other objects than a dictionary fail in many ways
        raise settings.error(
            f"the weights '{path}' do not fit {type(module).__name__}: {' '.join(str(problem).split())}"
        ) from None
