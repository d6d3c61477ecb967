"""Where the code of a model under test is, and its configuration, as a server would have them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad_stub.exceptions import TritonModelException
from naiad_stub.model_loading import method_of

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.auto_complete import merge_auto_completed
from naiad.config.model.model_config import ModelConfig, freeze, freeze_version_policy, instance_names
from naiad.config.model.normalise import normalise, normalise_instance_groups
from naiad.config.model.render import to_json
from naiad.config.model.text import parse_mapping, parse_text
from naiad.config.model.validate import validate
from naiad.core.errors import RepositoryError
from naiad.models.repository.layout import ModelFiles, available_versions, explain_no_directory, versions_to_load
from naiad.models.repository.read import prepare_config, read_config
from naiad.models.resolution.backend import find_backend
from naiad.models.resolution.files import Files

ConfigSource = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedModel:
    """Where a model's code is; *model_file* is None where a test gives the class itself."""

    message: pb.ModelConfig
    model_dir: Path
    version: int
    model_file: Path | None = None
    shared: bool = False

    @property
    def version_dir(self) -> Path:
        """The folder that `pb_utils.get_model_dir()` names."""
        return self.model_dir / str(self.version)


def source_of_directory(
    directory: Path, config: ConfigSource, version: int | None, backend_directories: Sequence[Path]
) -> TestedModel:
    """Read the configuration of a model's directory and find its code."""
    directory = directory.absolute()
    if not directory.is_dir():
        raise RepositoryError(f"cannot load a model from '{directory}': {explain_no_directory(directory)}")
    files = ModelFiles(name=directory.name, repository=directory.parent, directory=directory)
    if config is None:
        message = read_config(files, strict=False)
    else:
        message = prepare_config(_parse(config), files, strict=False)
    if message.HasField("ensemble_scheduling"):
        raise RepositoryError(
            f"cannot test model '{message.name}' in this process: an ensemble has no code; test its models, and run "
            f"the whole with `naiad run {directory}` or `naiad.Server`"
        )
    available = available_versions(files)
    if version is None:
        version = versions_to_load(freeze_version_policy(message.version_policy), available, files.name)[-1]
    elif version not in available:
        raise RepositoryError(f"model '{files.name}' has no version {version}; it has {', '.join(map(str, available))}")
    backend = find_backend(
        freeze(message),
        model_dir=directory,
        version_dir=directory / str(version),
        directories=tuple(path.absolute() for path in backend_directories),
        files=Files(),
    )
    if backend.library is not None:
        raise RepositoryError(
            f"cannot test model '{message.name}' in this process: its backend is the native library "
            f"'{backend.library.path}'; run it with `naiad run {directory}`"
        )
    return TestedModel(
        message=message,
        model_dir=directory,
        version=version,
        model_file=backend.model_file,
        shared=backend.directory is not None,
    )


def source_of_class(model_class: type, config: ConfigSource, name: str, version: int | None) -> TestedModel:
    """The configuration of a class without a directory: what the test says, else nothing but a name."""
    message = pb.ModelConfig() if config is None else _parse(config)
    message.name = message.name or name
    message.backend = message.backend or "python"
    message.default_model_filename = message.default_model_filename or "model.py"
    normalise(message)
    validate(message, with_io=False)
    normalise_instance_groups(message)
    try:
        place = Path(inspect.getfile(model_class)).absolute().parent
    except (OSError, TypeError):  # defined in a notebook
        place = Path.cwd()
    return TestedModel(message=message, model_dir=place, version=version or 1)


def complete(message: pb.ModelConfig, model_class: Any, model_config_class: Callable[[str], Any]) -> pb.ModelConfig:
    """The configuration after the model's `auto_complete_config`; ConfigError if what that says contradicts it.

    TritonModelException if that returns something else than a ModelConfig.
    """
    hook = method_of(model_class, "auto_complete_config")
    if hook is None:
        return message
    answer = hook(model_config_class(json.dumps(to_json(message))))
    if not isinstance(answer, model_config_class):  # type: ignore[arg-type]  # the class is looked up in a module without types
        raise TritonModelException(
            f"auto_complete_config function in model '{message.name}' must return a valid pb.ModelConfig object."
        )
    return merge_auto_completed(message, answer.as_dict())


def arguments(config: ModelConfig, source: TestedModel) -> dict[str, str]:
    """What `initialize` gets."""
    instance = instance_names(config)[0]
    return {
        "model_config": json.dumps(to_json(config.message)),
        "model_instance_kind": instance.kind.value,
        "model_instance_name": instance.name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": str(source.model_dir),
        "model_version": str(source.version),
        "model_name": config.name,
    }


def _parse(config: str | Mapping[str, Any]) -> pb.ModelConfig:
    where = "the configuration given by the test"
    return parse_text(config, where) if isinstance(config, str) else parse_mapping(config, where)
