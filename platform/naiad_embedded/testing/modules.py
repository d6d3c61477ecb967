"""The modules of models under test. One process opens several models, and each `1/model.py` is module `1.model`.

A server gives each model a process. Here the modules of one model at a time are in `sys.modules`, and its folders at
the end of `sys.path`; entering another model swaps them.

Tests may use models in several threads. Loading a model, and each import by a file of a model, has the modules of that
model for itself: one lock is held meanwhile. It is not held while a model executes, since that may wait for a model in
another thread. So an `import` inside `execute` is recognised by the file that it is in (`_import`).
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from naiad_stub import api, loader


class ModelModules:
    """The modules of one model."""

    _lock: ClassVar[threading.RLock] = threading.RLock()
    _entered: ClassVar[ModelModules | None] = None
    _open: ClassVar[list[ModelModules]] = []
    module: ModuleType | None = None  # that of the model's file; None before it is loaded

    def __init__(self, version_dir: str, *folders: Path) -> None:
        """Modules from *folders*, of the model whose version is in *version_dir*.

        Modules that are already imported are not the model's, wherever their files are: tests may be beside a model.
        """
        self._version_dir = version_dir
        self._folders = tuple(str(folder) for folder in folders)
        self._modules: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        with self._lock:
            api.prepare(utils_dir())  # these modules are not the model's
            self._others = dict(sys.modules)
        self._displaced: dict[str, ModuleType] = {}
        self._is_closed = False

    def load(self, model_file: Path, model_dir: Path, *, shared: bool) -> type:
        """Import the model's file, as a guest does, and return its class."""
        with self._lock, self.entered(), self._alone(model_file, shared=shared):
            # Under the lock: two threads that do this at once may delete the same entry of the cache of importers.
            importlib.invalidate_caches()
            self._follow_imports()
            before = list(sys.path)
            try:
                model_class = loader.load_model_class(
                    str(model_file), self._version_dir, str(model_dir), utils_dir(), shared
                )
            finally:  # a file that fails has extended the path, too
                self._paths = _remainder(sys.path, before)
            self.module = next(
                (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == str(model_file)),
                None,
            )
        return model_class

    def _follow_imports(self) -> None:
        """From now on, files of this model import its modules, whichever model another thread has entered."""
        if not ModelModules._open:
            builtins.__import__ = _import
        ModelModules._open.append(self)

    def owns(self, file: str) -> bool:
        return any(file.startswith(f"{folder}/") for folder in self._folders)

    @classmethod
    def owner_of(cls, file: str) -> ModelModules | None:
        """The open model that a file belongs to: the entered one, if several do."""
        owners = [each for each in cls._open if each.owns(file)]
        return cls._entered if cls._entered in owners else next(iter(owners), None)

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
    def closed_on_failure(self) -> Iterator[None]:
        """Close this model if it cannot be loaded, and undo what its code has changed in the process.

        In a server, the guest's exit undoes it. Libraries that it imported stay imported, with their hooks: extension
        modules cannot be imported twice.
        """
        with self._lock:
            path = _remainder(sys.path[::-1], self._paths_of_entered())[::-1]  # a model's paths are the last ones
        chains: tuple[list[Any], ...] = (sys.meta_path, sys.path_hooks)
        hooks = [hook for chain in chains for hook in chain]
        variables = dict(os.environ)
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            yield
        except BaseException:
            with self._lock:
                self.close()
                sys.path[:] = path + self._paths_of_entered()
                for chain in chains:
                    chain[:] = [each for each in chain if each in hooks or self._is_of_library(each)]
                self._undo_changes_of_modules()
                builtins.__import__ = _import if ModelModules._open else _plain_import
            for name in os.environ.keys() - variables.keys():
                del os.environ[name]
            os.environ.update(variables)
            os.fchdir(folder)
            raise
        finally:
            os.close(folder)

    def _undo_changes_of_modules(self) -> None:
        """Undo what the model put into `sys.modules` itself; parts of libraries, such as `six.moves`, stay."""
        for name, module in list(sys.modules.items()):
            library = sys.modules.get(name.partition(".")[0])
            if self._others.get(name) is module or any(getattr(each, "__spec__", None) for each in (module, library)):
                continue
            if name in self._others:
                sys.modules[name] = self._others[name]
            else:
                del sys.modules[name]

    @classmethod
    def _is_of_library(cls, hook: object) -> bool:
        """Whether a hook of the import system is defined in a module that belongs to no model."""
        module = sys.modules.get(getattr(hook, "__module__", ""))
        return module is not None and cls.owner_of(getattr(module, "__file__", None) or "") is None

    @staticmethod
    def _paths_of_entered() -> list[str]:
        return [] if ModelModules._entered is None else ModelModules._entered._paths  # noqa: SLF001 - of the same class

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this model's modules in `sys.modules`; afterwards those of the model that was entered before."""
        with self._lock:
            before = ModelModules._entered
            self.enter()
        try:
            with _without_bytecode():
                yield
        finally:
            if before is not None:
                before.enter()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if ModelModules._entered is self:
                self.leave()
                ModelModules._entered = None
            self._modules.clear()
            if self in ModelModules._open:
                ModelModules._open.remove(self)
                if not ModelModules._open:
                    builtins.__import__ = _plain_import

    def enter(self) -> None:
        with self._lock:
            entered = ModelModules._entered
            if entered is not self and not self._is_closed:  # closed by another thread, which had entered it
                if entered is not None:
                    entered.leave()
                sys.path += self._paths
                sys.modules.update(self._modules)
                ModelModules._entered = self

    def leave(self) -> None:
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


def _remainder(paths: Sequence[str], without: Sequence[str]) -> list[str]:
    """What *paths* has beyond *without*; of equal paths, the first ones are those of *without*."""
    known = Counter(without)
    remainder = []
    for path in paths:
        if known[path]:
            known[path] -= 1
        else:
            remainder.append(path)
    return remainder


_plain_import = builtins.__import__


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of `__import__`
    locals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of `__import__`
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """As `__import__`, with the modules of the model that the importing file belongs to."""
    file = (globals or {}).get("__file__")
    if not isinstance(file, str) or ModelModules.owner_of(file) is None:
        return _plain_import(name, globals, locals, fromlist or (), level)
    with ModelModules._lock:  # noqa: SLF001 - of the same module
        owner = ModelModules.owner_of(file)
        if owner is None:
            return _plain_import(name, globals, locals, fromlist or (), level)
        with owner.entered():
            return _plain_import(name, globals, locals, fromlist or (), level)


class _Bytecode:
    """Has no `__pycache__` written into model repositories, like a server, while any model is entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before = False

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        with self._lock:
            if not self._count:
                self._before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    sys.dont_write_bytecode = self._before


_without_bytecode = _Bytecode().forbidden
