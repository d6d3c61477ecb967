"""The modules of models under test. One process opens several models, and each `1/model.py` is module `1.model`.

A server gives each model a process. Here the modules of one model at a time are in `sys.modules`, and its folders at
the end of `sys.path`; entering another model swaps them.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from naiad_stub import api, loader


class ModelModules:
    """The modules of one model."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _entered: ClassVar[ModelModules | None] = None

    def __init__(self, version_dir: str, *folders: Path) -> None:
        """Modules from *folders*, of the model whose version is in *version_dir*.

        Modules that are already imported are not the model's, wherever their files are: tests may be beside a model.
        """
        self._version_dir = version_dir
        self._folders = tuple(str(folder) for folder in folders)
        self._modules: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        self._others = dict(sys.modules)
        self._displaced: dict[str, ModuleType] = {}

    def load(self, model_file: Path, model_dir: Path, *, shared: bool) -> type:
        """Import the model's file, as a guest does, and return its class."""
        importlib.invalidate_caches()
        with self.entered(), self._alone(model_file, shared=shared):
            before = len(sys.path)
            model_class = loader.load_model_class(
                str(model_file), self._version_dir, str(model_dir), utils_dir(), shared
            )
            self._paths = sys.path[before:]
        return model_class

    @contextmanager
    def _alone(self, model_file: Path, *, shared: bool) -> Iterator[None]:
        """Make the file of a shared backend importable by its name, even if another module has that name."""
        if not shared:
            yield
            return
        folder, name = str(model_file.parent), model_file.stem
        if name in sys.modules:
            self._displaced[name] = sys.modules.pop(name)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this model's modules in `sys.modules`; afterwards those of the model that was entered before."""
        before = ModelModules._entered
        self.enter()
        try:
            with _without_bytecode():
                yield
        finally:
            if before is not None:
                before.enter()

    def close(self) -> None:
        """Take the modules out of `sys.modules`."""
        with self._lock:
            if ModelModules._entered is self:
                self.leave()
                ModelModules._entered = None
            self._modules.clear()

    def enter(self) -> None:
        """Replace another model's modules by this model's."""
        with self._lock:
            entered = ModelModules._entered
            if entered is not self:
                if entered is not None:
                    entered.leave()
                sys.path += self._paths
                sys.modules.update(self._modules)
                ModelModules._entered = self

    def leave(self) -> None:
        """Remove this model's modules from `sys.modules`, and keep them."""
        self._modules = {name: module for name, module in sys.modules.items() if self._is_mine(name, module)}
        for name in self._modules:
            del sys.modules[name]
        sys.modules.update(self._displaced)
        for path in self._paths:
            if path in sys.path:
                sys.path.reverse()  # ours are the last ones of their names
                sys.path.remove(path)
                sys.path.reverse()

    def _is_mine(self, name: str, module: ModuleType) -> bool:
        if self._others.get(name) is module:
            return False
        try:
            places = [module.__file__] if getattr(module, "__file__", None) else list(module.__path__)
        except (AttributeError, KeyError):  # neither, or a namespace without its parent
            return False
        return any(
            str(place).startswith(f"{folder}/") or place == folder for place in places for folder in self._folders
        )


def utils_dir() -> str:
    """The folder of the utils that this process has, or would import."""
    return str(Path(api.__file__).resolve().parents[1])


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Write no `__pycache__` into model repositories, like a server."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
