"""The API of older tutorials, `import triton_python_backend.api`, for the models that use it.

Such models return lists of tensors, and index `request.inputs` as an attribute. Both are made to work when a model that
does so is loaded. For all other models `request.inputs()` stays a plain method and `execute` is called unchanged.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, List, Optional, Sequence

from naiad_stub.request import InferenceRequest
from naiad_stub.tensor import Tensor

PACKAGE = "triton_python_backend"
API = PACKAGE + ".api"
_IMPLEMENTATION = "naiad_stub.dialect_api"
_USE_AS_LIST = re.compile(rb"\.inputs\b(?!\s*\()")
"""An attribute `inputs` that is used and not called."""


class Inputs(List[Tensor]):
    """The inputs of a request: a list that returns itself when it is called."""

    __slots__ = ()

    def __call__(self) -> Inputs:
        """The list itself, as the result of `request.inputs()`."""
        return self


class _Finder:
    """Finds the dialect's two modules; the last finder, so that a model may bring a package of that name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: ARG002 - the signature of importlib's finders and loaders
        """The modules' specifications, None for all others."""
        if fullname not in (PACKAGE, API):
            return None
        loader: Any = self  # not importlib.abc's, which is expensive to import
        return ModuleSpec(fullname, loader, origin="naiad", is_package=fullname == PACKAGE)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:  # noqa: ARG002 - the signature of importlib's finders and loaders
        """Let the import system make the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        if module.__name__ == API:
            implementation = import_module(_IMPLEMENTATION)
            vars(module).update({name: getattr(implementation, name) for name in implementation.__all__})
            module.__doc__ = implementation.__doc__
            make_inputs_a_list()


_FINDER = _Finder()


def enable_for(model_file: str) -> None:
    """Make the dialect importable, and `request.inputs` a list if *model_file* indexes it."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    with open(model_file, "rb") as file:
        if _USE_AS_LIST.search(file.read()):
            make_inputs_a_list()


def make_inputs_a_list() -> None:
    """Make `request.inputs` a list that can be called, for every request of this process."""
    if not isinstance(InferenceRequest.inputs, property):
        setattr(InferenceRequest, "inputs", property(_inputs))  # noqa: B010 - a method for the type checker


def _inputs(request: InferenceRequest) -> Inputs:
    """The input tensors; those that are optional and were not sent are absent."""
    return Inputs(request._inputs)


def adapt(model_class: type) -> type:
    """The class with an `execute` whose lists of tensors become responses, if its modules have imported the dialect."""
    implementation = sys.modules.get(_IMPLEMENTATION)
    return model_class if implementation is None else implementation.adapt(model_class)


def responses_of(returned: Any, requests: Sequence[InferenceRequest]) -> Any:
    """What `execute` returned, with lists of tensors converted to responses."""
    from naiad_stub.response import InferenceResponse

    if not isinstance(returned, list):
        return returned
    is_one_flat = len(requests) == 1 and returned and all(isinstance(item, Tensor) for item in returned)
    responses = []
    for item in [returned] if is_one_flat else returned:
        if isinstance(item, (list, tuple)):
            responses.append(InferenceResponse(list(item)))
        elif isinstance(item, Tensor):
            responses.append(InferenceResponse([item]))
        else:
            responses.append(item)
    return responses
