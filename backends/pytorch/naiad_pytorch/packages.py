"""Models in packages of torch.export: compiled ahead of time, or as the exported program itself.

The names of tensors are the reference's (pytorch_backend README.md): `INPUT__0` and `OUTPUT__0` by position, or
`ARGS[0]`, `KWARGS[key]` and `RESULT[key][0]` by the structure of what the model was exported with.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from saved_models.interface import ModelInterface, ModelTensor, check
from saved_models.settings import ModelSettings, batch_inputs

from naiad_pytorch.compiled_inputs import describe_inputs
from naiad_pytorch.contents import Content, content_of
from naiad_pytorch.model import Key, Model
from naiad_pytorch.options import Options
from naiad_pytorch.tensors import DATA_TYPES

_CHECKS = "AOTI_RUNTIME_CHECK_INPUTS"
_NAME_IN_PACKAGE = "model"
_DYNAMIC = -1


def open_package(path: Path, settings: ModelSettings, options: Options) -> Model:
    """The model in a package; ModelLoadError if PyTorch cannot read it, or it is for another kind of device."""
    content = content_of(path)
    try:
        if content is Content.EXPORTED:
            return _open_exported(path, options)
        if content is Content.COMPILED:
            return _open_compiled(path, settings, options)
    except (RuntimeError, ValueError, OSError, KeyError, AssertionError) as problem:
        sentence = str(problem).strip().split("\n", 1)[0]
        raise settings.error(
            f"PyTorch {torch.__version__} cannot read the package '{path}': {sentence}; a package is for the version "
            "of PyTorch and the kind of processor that it was made with: make it again with these, or choose an "
            "environment with that version"
        ) from None
    raise settings.error(
        f"'{path}' is {content.value}, and no package; write it by torch._inductor.aoti_compile_and_package or "
        "torch.export.save"
    )


Run = Callable[[List[torch.Tensor]], Sequence[Any]]  # outputs from inputs, in the order of the call specification


class PackageModel:
    """A model with the call specification of a package."""

    def __init__(
        self, specification: Sequence[str], described: Sequence[Optional[ModelTensor]], device: torch.device, run: Run
    ) -> None:
        """*described* has type and shape of each input that the package tells; it is empty if none are told."""
        given, returned = (json.loads(text)[1] for text in specification)
        positional, keywords = given["children_spec"]
        self._inputs = [f"ARGS{path}" for path in _paths(positional)] + [f"KWARGS{path}" for path in _paths(keywords)]
        self._outputs = [f"RESULT{path}" for path in _paths(returned)]
        self.input_names = tuple(f"INPUT__{number}" for number in range(len(self._inputs)))
        self.output_names = tuple(f"OUTPUT__{number}" for number in range(len(self._outputs)))
        self.described = f"the inputs {', '.join(self._inputs)} and the outputs {', '.join(self._outputs)}"
        self.device = device
        self.inputs: Tuple[Optional[ModelTensor], ...] = (None,) * len(self._inputs)
        if len(described) == len(self._inputs):
            self.inputs = tuple(
                None if each is None else replace(each, name=name) for each, name in zip(described, self.input_names)
            )
        self._run = run
        self._order: List[str] = []

    def bind(self, settings: ModelSettings) -> Dict[str, Key]:
        """As `Model.bind`: by position or by structure, and with the types and shapes that the package tells."""
        names = [*(tensor.name for tensor in settings.inputs), *batch_inputs(settings.config)]
        count = len(names)
        if count != len(self._inputs):
            raise settings.error(
                f'Model instance "{settings.name}" has mismatching input count between model config and model '
                f"definition: model config input count = {count}, model definition input count = {len(self._inputs)}. "
                f"The package has {self.described}"
            )
        positions = {name: self._position(name, self._inputs, "INPUT__", "input", settings) for name in names}
        if len(set(positions.values())) != count:
            raise settings.error(f"two inputs name the same one of the package, which has {self.described}")
        self._order = sorted(positions, key=lambda name: positions[name])
        self._check_inputs(settings)
        return {
            tensor.name: self._position(tensor.name, self._outputs, "OUTPUT__", "output", settings)
            for tensor in settings.outputs
        }

    def _position(self, name: str, names: Sequence[str], prefix: str, kind: str, settings: ModelSettings) -> int:
        number = name[len(prefix) :]
        if name.startswith(prefix) and number.isascii() and number.isdigit() and int(number) < len(names):
            return int(number)
        if name in names:
            return names.index(name)
        allowed = ", ".join(f"{each} ({prefix}{index})" for index, each in enumerate(names))
        raise settings.error(f"unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}")

    def _check_inputs(self, settings: ModelSettings) -> None:
        """Compare types and shapes: compiled code does not look, and would read memory that is not the input's."""
        known = [tensor for tensor in self.inputs if tensor is not None]
        if len(known) != len(self._order):
            return
        named = []
        for name, tensor in zip(self._order, known):
            shape = tensor.shape
            if settings.max_batch_size == 1 and shape[:1] == (1,):
                shape = (_DYNAMIC, *shape[1:])
            named.append(replace(tensor, name=name, shape=shape))
        check(replace(settings, outputs=(), states=()), ModelInterface(tuple(named), ()))

    def call(self, values: Mapping[str, Any]) -> Any:
        return tuple(self._run([values[name] for name in self._order]))


def _open_compiled(path: Path, settings: ModelSettings, options: Options) -> PackageModel:
    described = describe_inputs(path)
    if described is None:
        # Read once, by the library that is loaded next. Its checks also refuse batches of one row, so they are a last
        # resort.
        os.environ[_CHECKS] = "1"
    index = -1 if options.device is None or options.device.type == "cpu" else options.device.index
    # `torch._inductor.aoti_load_package` returns a wrapper of this, and imports the compiler first.
    load: Any = torch._C._aoti.AOTIModelPackageLoader  # noqa: SLF001 - the public one takes seconds
    loader = load(str(path), _NAME_IN_PACKAGE, False, 1, index)
    device = _device_of(str(loader.get_metadata().get("AOTI_DEVICE_KEY", "cpu")), settings, options)
    return PackageModel(
        loader.get_call_spec(), described or (), device, lambda flat: loader.run([value.contiguous() for value in flat])
    )


def _device_of(compiled_for: str, settings: ModelSettings, options: Options) -> torch.device:
    if options.device is None:
        return torch.device(compiled_for)
    if options.device.type != compiled_for:
        kind = {"cuda": "KIND_GPU", "cpu": "KIND_CPU"}.get(compiled_for, "KIND_MODEL")
        raise settings.error(
            f"it was compiled for {compiled_for}, and its instance is on {options.device}; use {kind} in "
            "instance_group, or compile it for that device"
        )
    return options.device


def _open_exported(path: Path, options: Options) -> PackageModel:
    from torch.utils import _pytree

    program: Any = torch.export.load(str(path))
    device = torch.device("cpu") if options.device is None else options.device
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    tree: Any = _pytree
    structure = program.call_spec.in_spec
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    module = program.module()

    def run(flat: List[torch.Tensor]) -> Sequence[Any]:
        positional, keywords = tree.tree_unflatten(flat, structure)
        leaves: Sequence[Any] = tree.tree_leaves(module(*positional, **keywords))
        return leaves

    return PackageModel(
        [tree.treespec_dumps(each) for each in (structure, program.call_spec.out_spec)],
        [_described(name, values.get(name)) for name in program.graph_signature.user_inputs],
        device,
        run,
    )


def _described(name: str, value: Any) -> Optional[ModelTensor]:
    if not isinstance(value, torch.Tensor):
        return None
    shape = tuple(size if isinstance(size, int) else _DYNAMIC for size in value.shape)
    return ModelTensor(name, DATA_TYPES.get(value.dtype, ""), shape, described=str(value.dtype))


def _paths(node: Any) -> List[str]:
    """The way to each tensor below a node of a call specification; empty for a tensor itself."""
    if not node.get("type"):
        return [""]
    children = node.get("children_spec") or []
    context = node.get("context")
    if isinstance(context, str):
        context = json.loads(context)
    is_named = isinstance(context, list) and len(context) == len(children)
    keys = context if is_named else range(len(children))
    return [f"[{key}]{rest}" for key, child in zip(keys, children) for rest in _paths(child)]
