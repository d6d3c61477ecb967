"""Finds the code that runs a model: its own `model.py`, that of a shared backend, or a native backend's library.

The rules are the reference's (CORE src/backend_model.cc): a native library in the version's, the model's or the
backend's directory takes precedence over `<backend directory>/<backend>/model.py`. One exception: backend `python` is
naiad itself, and another implementation of it runs only where the configuration's `runtime` names its library.
"""

from __future__ import annotations

import difflib
import os.path
from dataclasses import dataclass, replace
from pathlib import Path

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import Code, ResolutionError
from naiad.models.resolution.decision import MODEL_FILENAME, Decision, SearchedPath, describe_searched
from naiad.models.resolution.files import Files
from naiad.models.resolution.native_library import NativeLibrary, examine_library

PYTHON = "python"  # the backend of models with their own `model.py`

# Native backends that ship with the reference.
NATIVE_BACKENDS = frozenset(
    {"dali", "fil", "onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt", "tensorrtllm"},
)

_PYTHON_LIBRARY = "libtriton_python.so"
_TORCH_PLATFORM = "pytorch"
_STRATEGY_PARAMETER, _STRATEGY_LIBRARY = "TRITON_BATCH_STRATEGY_PATH", "batchstrategy.so"
_NAMED = "named by the configuration's runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The code of a model."""

    directory: Path | None
    model_file: Path
    runtime: str
    steps: tuple[Decision, ...]
    notices: tuple[str, ...] = ()
    library: NativeLibrary | None = None  # the library of a native backend; None for code in Python


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchPath:
    """The directories in which the code of one model is searched for."""

    model: str
    backend: str
    version_dir: Path
    model_dir: Path
    backend_dirs: tuple[Path, ...]

    @property
    def libraries(self) -> tuple[Path, ...]:
        return (self.version_dir, self.model_dir, *self.backend_dirs)


def find_backend(
    config: ModelConfig, *, model_dir: Path, version_dir: Path, directories: tuple[Path, ...], files: Files
) -> Backend:
    """Find the code that runs a model."""
    if not config.backend:
        raise ResolutionError(f"must specify 'backend' for '{config.name}'")
    # Configurations also arrive over the network: the name must not leave the backend directories.
    if "/" in config.backend or config.backend in {".", ".."}:
        raise ResolutionError(
            f"backend '{config.backend}' of model '{config.name}' must be the name of a directory in a backend "
            "directory, not a path"
        )
    search = _SearchPath(
        model=config.name,
        backend=config.backend,
        version_dir=version_dir,
        model_dir=model_dir,
        backend_dirs=tuple(directory / config.backend for directory in directories),
    )
    backend = _choose(config, search, files)
    strategy = _batching_strategy(config, search, files)
    if not strategy:
        return backend
    unused = (
        f"the batching strategy '{strategy}' is not used: batches are formed by the configuration alone "
        "(dynamic_batching)"
    )
    return replace(backend, notices=(*backend.notices, unused))


def _batching_strategy(config: ModelConfig, search: _SearchPath, files: Files) -> str:
    """The library that would form the model's batches in the reference; empty without one."""
    named = config.parameters.get(_STRATEGY_PARAMETER, "")
    return named or str(_find_file(_STRATEGY_LIBRARY, search.libraries, files)[0] or "")


def _choose(config: ModelConfig, search: _SearchPath, files: Files) -> Backend:
    if config.runtime == MODEL_FILENAME:
        return _named_python_based(search, files)
    if config.backend == PYTHON and config.runtime in {"", _PYTHON_LIBRARY}:
        library, named = _find_file(_PYTHON_LIBRARY, search.libraries if config.runtime else (), files)
        return _own_code(config, search, files) if library is None else _native(library, search, named, files, _NAMED)
    if config.runtime:
        return _named_library(config.runtime, search, files)
    return _search(search, files)


def _own_code(config: ModelConfig, search: _SearchPath, files: Files) -> Backend:
    """Backend `python`: the code is in the version's directory."""
    filename = config.default_model_filename or MODEL_FILENAME
    if not filename.endswith(".py"):
        raise ResolutionError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    # As for backends above. A link is followed: it is in the repository, which a load request does not change.
    path = search.version_dir / filename
    if not os.path.normpath(path).startswith(os.path.normpath(search.version_dir) + os.sep):
        raise ResolutionError(
            f"cannot use default_model_filename '{filename}' of model '{config.name}': it leaves "
            f"'{search.version_dir}'; name a file in the version's directory"
        )
    look = SearchedPath(path, files.exists(path))
    if not look.found:
        raise ResolutionError(
            f"Failed to preinitialize Python stub: Python model file not found in '{path}'", code=Code.INTERNAL
        )
    libraries = tuple(
        SearchedPath(place / _PYTHON_LIBRARY, True)
        for place in (search.version_dir, search.model_dir)
        if files.exists(place / _PYTHON_LIBRARY)
    )
    return Backend(
        directory=None,
        model_file=path,
        runtime=config.runtime,
        steps=(
            Decision("backend", PYTHON, "naiad is this backend itself: no library is looked for", libraries),
            Decision("model file", str(path), _why_filename(config), (look,)),
        ),
        notices=(
            *(
                f"'{look.path}' belongs to another implementation of the Python backend and is not used"
                for look in libraries
            ),
            *_platform_notices(config, path),
        ),
    )


def _platform_notices(config: ModelConfig, path: Path) -> tuple[str, ...]:
    # Experimental in Triton: for this platform, its Python backend runs a torch.nn.Module that the file defines.
    if config.platform != _TORCH_PLATFORM:
        return ()
    rule = f"'{path}' must define a TritonPythonModel, which may make the torch.nn.Module in `initialize`"
    return (f"platform '{_TORCH_PLATFORM}' of model '{config.name}' has no effect: {rule} and call it in `execute`",)


def _why_filename(config: ModelConfig) -> str:
    # `autofill` also writes the default name.
    if config.default_model_filename not in {"", MODEL_FILENAME}:
        return "named by default_model_filename, in the version's directory"
    return "a model of backend 'python' brings its own code in its version's directory"


def _search(search: _SearchPath, files: Files) -> Backend:
    """Without `runtime`: any native library takes precedence over the code of a shared backend."""
    library = f"libtriton_{search.backend}.so"
    native, libraries = _find_file(library, search.libraries, files)
    if native is not None:
        return _native(native, search, libraries, files, f"the first {library} that was found")
    found, codes = _find_file(MODEL_FILENAME, search.backend_dirs, files)
    if found is None:
        raise ResolutionError(
            f"unable to find backend library for backend '{search.backend}', try specifying runtime on the model "
            f"configuration. ({describe_searched(libraries + codes)}){_hint(search, files)}"
        )
    return _shared(found, search, libraries + codes, f"there is no {library}, and this is the first {MODEL_FILENAME}")


def _hint(search: _SearchPath, files: Files) -> str:
    backend = search.backend
    if backend in NATIVE_BACKENDS:
        return (
            f"; '{backend}' is a native backend: put its libtriton_{backend}.so into one of these directories, or "
            "import the library in a model.py of backend 'python'"
        )
    for place in search.backend_dirs:
        if files.is_dir(place):
            return f"; the folder '{place}' has neither libtriton_{backend}.so nor {MODEL_FILENAME}"
    installed = (name for directory in search.backend_dirs for name in files.names(directory.parent))
    near = difflib.get_close_matches(
        backend, dict.fromkeys([PYTHON, *installed, *sorted(NATIVE_BACKENDS)]), n=1, cutoff=0.7
    )
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; name the folder that has a folder '{backend}' with --backend-directory"


def _named_python_based(search: _SearchPath, files: Files) -> Backend:
    """`runtime: "model.py"`: only the backend's directories are searched."""
    found, looks = _find_file(MODEL_FILENAME, search.backend_dirs, files)
    if found is None:
        searched = " ".join(f"'{look.path}'" for look in looks)
        raise ResolutionError(
            f"unable to find Python backend based backend library '{MODEL_FILENAME}' for model '{search.model}', "
            f"searched: {searched}"
        )
    return _shared(found, search, looks, f"the configuration's runtime is {MODEL_FILENAME}")


def _named_library(runtime: str, search: _SearchPath, files: Files) -> Backend:
    """Any other `runtime` names a native library."""
    for place in search.libraries:
        # Compared as text, because the file need not exist.
        if not os.path.normpath(place / runtime).startswith(os.path.normpath(place) + os.sep):
            raise ResolutionError(
                f"backend library name '{runtime}' escapes backend directory '{place}', for model '{search.model}', "
                "check model config runtime field."
            )
    found, looks = _find_file(runtime, search.libraries, files)
    if found is None:
        searched = " ".join(f"'{place}'" for place in search.libraries)
        raise ResolutionError(
            f"unable to find backend library '{runtime}' for model '{search.model}', searched: {searched}"
        )
    return _native(found, search, looks, files, _NAMED)


def _find_file(
    filename: str, directories: tuple[Path, ...], files: Files
) -> tuple[Path | None, tuple[SearchedPath, ...]]:
    """The first file of this name in the directories, and the paths that were looked at."""
    looks: list[SearchedPath] = []
    for path in (directory / filename for directory in directories):
        looks.append(SearchedPath(path, files.exists(path)))
        if looks[-1].found:
            return path, tuple(looks)
    return None, tuple(looks)


def _native(path: Path, search: _SearchPath, looks: tuple[SearchedPath, ...], files: Files, why: str) -> Backend:
    library = examine_library(path, files)
    beside = tuple(
        f"'{place / MODEL_FILENAME}' is not used: the native library '{path}' takes precedence; runtime: "
        f'"{MODEL_FILENAME}" in the configuration chooses the code in Python'
        for place in search.backend_dirs
        if files.exists(place / MODEL_FILENAME)
    )
    return Backend(
        directory=None,
        model_file=path,
        runtime="",
        steps=(
            Decision("backend", f"{search.backend} (native)", why, looks),
            Decision("library", str(path), library.describe()),
        ),
        notices=beside,
        library=library,
    )


def _shared(found: Path, search: _SearchPath, looks: tuple[SearchedPath, ...], why: str) -> Backend:
    return Backend(
        directory=found.parent,
        model_file=found,
        runtime=MODEL_FILENAME,
        steps=(
            Decision("backend", f"{search.backend} (shared)", why, looks),
            Decision("model file", str(found), "the code of a shared backend is in the backend's directory alone"),
        ),
    )
