"""A file or directory that a framework saved, as the model of a repository: the backend, the configuration, the name.

`naiad init --from FILE` copies such files into a repository, and `naiad serve FILE` serves one from a temporary one.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naiad.core.errors import RepositoryError
from naiad.core.foreign_json import read_json

_HEAD_BYTES = 4096
# Names of files and folders that say nothing about the model; that of a folder above is its name.
_STANDARD_NAMES = frozenset({"model", "saved_model", "mlflow_model", "xgboost", "checkpoint", "artifacts", "output"})


class _Form(NamedTuple):
    """A form in which models are saved."""

    backend: str
    is_form: Callable[[Path], bool]
    target: str  # name of the file in the directory of the version; empty for that directory
    described: str
    config: str = ""
    note: str = ""
    has_lock: bool = True


def _ends(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.suffix.lower() in suffixes


def _is_xgboost(path: Path) -> bool:
    return _ends(".json")(path) and b'"learner"' in _head(path)


def _is_lightgbm(path: Path) -> bool:
    return _ends(".txt")(path) and _head(path).splitlines()[:1] == [b"tree"]


def _holds(name: str) -> Callable[[Path], bool]:
    return lambda path: (path / name).is_file()


def _is_transformers(path: Path) -> bool:
    try:
        content = read_json((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "model_type" in content


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


_COMMENT = "# Inputs and outputs come from the file, as far as it has them.\n"
_PICKLE = (
    "this file is a pickle, which runs code when it is read: the backend reads it if config.pbtxt has the parameter "
    'allow_code: "true", or the server --backend-config=sklearn,allow-code=true'
)
_TORCH_SCRIPT = "a TorchScript file does not say what its inputs are: write them into config.pbtxt"
# A new backend for files adds a line; where several fit, the first counts.
_FORMS = (
    _Form("mlflow", _holds("MLmodel"), "", "a directory with MLmodel (MLflow)", has_lock=False),
    _Form("transformers", _is_transformers, "", "a directory with config.json (transformers)"),
    _Form("onnxruntime", _holds("model.onnx"), "model.onnx", "a directory with model.onnx"),
    _Form("onnxruntime", _ends(".onnx"), "model.onnx", "*.onnx"),
    _Form("pytorch", _ends(".pt"), "model.pt", "*.pt (TorchScript)", 'platform: "pytorch_libtorch"\n', _TORCH_SCRIPT),
    _Form("pytorch", _ends(".pt2"), "model.pt2", "*.pt2 (torch.export)", 'platform: "torch_aoti"\n'),
    _Form("fil", _is_xgboost, "xgboost.json", "*.json of XGBoost"),
    _Form("fil", _ends(".ubj"), "xgboost.ubj", "*.ubj (XGBoost)"),
    _Form("fil", _is_lightgbm, "model.txt", "*.txt of LightGBM", _parameter("model_type", "lightgbm")),
    _Form("fil", _ends(".tl"), "checkpoint.tl", "*.tl (Treelite)"),
    _Form("sklearn", _ends(".skops"), "model.skops", "*.skops"),
    _Form("sklearn", _ends(".joblib"), "model.joblib", "*.joblib", note=_PICKLE),
    _Form("sklearn", _ends(".pkl", ".pickle"), "model.pkl", "*.pkl", note=_PICKLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file or directory of a framework."""

    path: Path
    name: str
    backend: str
    config: str
    files: Mapping[str, Path]
    note: str  # what its user should know; empty for nothing
    has_lock: bool  # whether the packages of its environment are locked, so that nothing has to be resolved


def may_be_saved_file(argument: str) -> bool:
    """Whether an argument of a command is meant as such a file: a directory in a known form, a file, or a path."""
    path = Path(argument)
    try:
        if path.is_dir():
            return any(form.is_form(path) for form in _FORMS)
        return path.is_file() or bool(path.suffix) or "/" in argument
    except OSError:  # such as a name that is too long
        return False


def read_saved_file(path: Path) -> SavedFile:
    """What serves a file or directory; RepositoryError if it does not exist, or no backend is known to."""
    path = path.absolute()
    if not path.exists():
        raise RepositoryError(f"cannot serve '{path}': it does not exist; correct the path")
    form = next((form for form in _FORMS if form.is_form(path)), None)
    if form is None:
        known = ", ".join(form.described for form in _FORMS)
        raise RepositoryError(f"cannot serve '{path}': {_what_it_is(path)}; known are {known}")
    target = f"1/{form.target}" if form.target else "1"
    return SavedFile(
        path=path,
        name=_name_of(path),
        backend=form.backend,
        config=f'{_COMMENT}backend: "{form.backend}"\n{form.config}',
        files={target: path, **_weights_beside(path)},
        note=form.note,
        has_lock=form.has_lock,
    )


@contextmanager
def temporary_repository(files: Sequence[SavedFile]) -> Iterator[Path]:
    """A repository with links to files of different names, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="naiad-serve-") as folder:
        for file in files:
            model = Path(folder, file.name)
            if model.exists():
                others = [str(other.path) for other in files if other.name == file.name]
                raise RepositoryError(
                    f"cannot serve '{others[0]}' and '{others[1]}': both are named '{file.name}'; write them into a "
                    "repository with `naiad init model NAME --from FILE`"
                )
            for name, source in file.files.items():
                target = model / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
            (model / "config.pbtxt").write_text(file.config, encoding="utf-8")
        yield Path(folder)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise RepositoryError(f"cannot read '{path}': {error.strerror or error}") from error


def _what_it_is(path: Path) -> str:
    if path.is_dir():
        if (path / "config.pbtxt").is_file():
            return f"it is a model of a repository; did you mean --model-repository={path.parent}?"
        if any((child / "config.pbtxt").is_file() for child in path.iterdir() if child.is_dir()):
            return f"it is a model repository; did you mean --model-repository={path}?"
        if (path / "adapter_config.json").is_file():
            return (
                "it is an adapter, without the model that it changes: join them by merge_and_unload of peft, and save "
                "the result by save_pretrained"
            )
        return "it is a directory without a file of a framework that naiad knows"
    if path.suffix == ".py":
        return f"it is code; `naiad init model NAME --from {path.stem}:FUNCTION` writes the model of a function in it"
    if path.suffix.lower() in {".json", ".txt"}:
        return f"a {path.suffix} file is a model only if XGBoost or LightGBM wrote it, and this one does not begin so"
    return f"no backend is known for files that end in '{path.suffix}'" if path.suffix else "its name has no ending"


def _name_of(path: Path) -> str:
    """The name of the file or directory, or of one above if it says nothing, with the characters of names alone."""
    for part in (path.stem if path.is_file() else path.name, *(parent.name for parent in path.parents)):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", part).lstrip("._-")
        if name and not name.isdecimal() and name.lower() not in _STANDARD_NAMES:
            return name
    return "model"


def _weights_beside(path: Path) -> Mapping[str, Path]:
    """Files beside an ONNX file with its weights, which it names: `x.onnx.data`, `x.onnx_data`, `x.data`."""
    if path.suffix.lower() != ".onnx" or not path.is_file():
        return {}
    names = {f"{path.name}.data", f"{path.name}_data", f"{path.stem}.data", f"{path.stem}.weights", f"{path.stem}.bin"}
    return {f"1/{one.name}": one for one in sorted(path.parent.iterdir()) if one.name in names}
