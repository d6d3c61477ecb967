"""Read a model's configuration: find the file, parse it, fill in what it leaves out, check it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.autofill import PYTHON_FILENAME, fill_backend
from naiad.config.model.gpu_placement import GpuPlacement, place_on_cpu
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.model.normalise import normalise, normalise_instance_groups
from naiad.config.model.parameters import place_of_parameter
from naiad.config.model.text import find_placeholder, parse_text
from naiad.config.model.validate import validate, validate_instance_groups, validate_name
from naiad.config.server.options import ModelOptions
from naiad.core.errors import Code, ConfigError, ParameterError, RepositoryError
from naiad.core.file_content import HEAD_BYTES, explain_content
from naiad.core.gpus import find_gpus
from naiad.models.repository.layout import ModelFiles, is_inside, subdirectories, version_number

CONFIG_FILENAME = "config.pbtxt"


def read_config(
    files: ModelFiles, *, strict: bool, config_name: str = "", gpus: GpuPlacement | None = None
) -> pb.ModelConfig:
    """Read the configuration of a model, filled in, normalised and checked, before auto-completion by the model.

    Args:
        strict: The model completes nothing: the file must exist and declare all inputs and outputs.
        config_name: Prefer `configs/<config_name>.pbtxt` where it exists.
        gpus: Where instance groups for GPUs are placed; by default the GPUs of this machine, and an error without one.
    """
    path = config_path(files, config_name)
    if path.exists():
        message = _parse_file(path)
        _reject_placeholders(message, path)
    elif strict:
        raise ConfigError(
            f"model configuration is not provided for model '{files.name}': failed to open text file for read {path}: "
            "No such file or directory",
            code=Code.NOT_FOUND,
        )
    else:
        message = pb.ModelConfig()
    return prepare_config(message, files, strict=strict, gpus=gpus)


def prepare_config(
    message: pb.ModelConfig, files: ModelFiles, *, strict: bool, gpus: GpuPlacement | None = None
) -> pb.ModelConfig:
    """Fill in, normalise and check a parsed configuration, for example of a load request; return it."""
    if files.is_renamed:
        message.name = files.name
    try:
        fill_backend(message, files.name, _first_version_listing(files.directory))
    except ConfigError as error:
        raise ConfigError(error.message + _misplacement_hint(files.directory), code=error.code) from None
    normalise(message)
    _reject_agents(message)
    validate(message, with_io=strict)
    validate_name(message, files.name)
    gpus = GpuPlacement(_gpu_count) if gpus is None else gpus
    place_on_cpu(message, gpus)
    normalise_instance_groups(message, gpus.count)
    validate_instance_groups(message, gpus.count)
    return message


def freeze_file(message: pb.ModelConfig, path: Path) -> ModelConfig:
    """The frozen values of a configuration that was read from a file."""
    try:
        return freeze(message)
    except ParameterError as error:
        raise ConfigError(f"{place_of_parameter(path, error.parameter)}: {error.message}", code=error.code) from None


def read_frozen_config(files: ModelFiles, options: ModelOptions) -> ModelConfig:
    """The frozen values of a model's configuration, for decisions that need no GPU; see `read_config`."""
    name, gpus = options.config_name, gpu_placement(falls_back=True)
    message = read_config(files, strict=not options.auto_complete, config_name=name, gpus=gpus)
    return freeze_file(message, config_path(files, name))


def gpu_placement(*, falls_back: bool) -> GpuPlacement:
    """The rules for instance groups for GPUs on this machine."""
    return GpuPlacement(_gpu_count, falls_back)


def _gpu_count() -> int:
    return len(find_gpus())


def _reject_agents(message: pb.ModelConfig) -> None:
    # Not ignored: an agent may verify or decrypt the model's files.
    names = ", ".join(repr(agent.name) for agent in message.model_repository_agents.agents)
    if names:
        raise ConfigError(
            f"model '{message.name}' asks for the repository agent {names}: these are native libraries, which naiad "
            "does not load; take model_repository_agents out to have the files served as they are",
            code=Code.UNSUPPORTED,
        )


def config_path(files: ModelFiles, config_name: str = "") -> Path:
    """The path of the configuration file, which need not exist."""
    if config_name:
        custom = files.directory / "configs" / f"{config_name}.pbtxt"
        if custom.exists():
            return custom
    return files.directory / CONFIG_FILENAME


def explain_missing_tensors(files: ModelFiles, config: ModelConfig, config_name: str = "") -> str:
    """A sentence that explains why a model has neither inputs nor outputs; empty for a model with tensors."""
    if config.inputs or config.outputs:
        return ""
    path = config_path(files, config_name)
    why = f"{path} names none"
    if not path.exists():
        near = sorted(entry.name for entry in files.directory.glob("*config*") if entry.is_file())
        why = f"there is no {path}" + (f" (but {', '.join(near)})" if near else "")
    return (
        f"it has neither inputs nor outputs, so that requests with any are refused: {why}, and its code completes none"
    )


def explain_repeated_tensors(config: ModelConfig) -> str:
    """A sentence that names inputs or outputs which a model has twice; empty for a model without any.

    The reference loads such a model, too. The last one of a name counts, so that requests with the others are refused.
    """
    for kind, tensors in (("inputs", config.message.input), ("outputs", config.message.output)):
        names = Counter(tensor.name for tensor in tensors)
        repeated = [f"'{name}'" for name, count in names.items() if count > 1]
        if repeated:
            return f"it has several {kind} named {', '.join(repeated)}; only the last one is used"
    return ""


def _parse_file(path: Path) -> pb.ModelConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        raise ConfigError(message, code=Code.INTERNAL) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}") from error
    if unfetched := explain_content(text[:HEAD_BYTES].encode()):
        raise ConfigError(f"cannot read {path}: it is {unfetched}")
    return parse_text(text, path)


def _reject_placeholders(message: pb.ModelConfig, path: Path) -> None:
    """Reject placeholders in the names of a model and of what runs it: left in, they cause errors elsewhere."""
    for field in ("name", "platform", "backend", "default_model_filename"):
        if found := find_placeholder(getattr(message, field)):
            raise ConfigError(
                f"cannot use {path}: its {field} is the placeholder '{found}'; fill in the template and save it under "
                "this name"
            )


def _misplacement_hint(directory: Path) -> str:
    """A hint for when the model repository was named one level too high or too low, or the code is elsewhere."""
    above = directory.parent
    if version_number(directory.name) is not None and (above / CONFIG_FILENAME).exists():
        return f" '{above}' looks like a model: the folder above it, '{above.parent}', may be the model repository."
    below = (path.parent for depth in ("*", "*/*") for path in directory.glob(f"{depth}/{CONFIG_FILENAME}"))
    model = next(below, None)
    if model is None:
        code = directory / PYTHON_FILENAME
        advice = f"move '{code}' there" if code.is_file() else "a model in Python has its code there"
        return f" '{directory}/1/{PYTHON_FILENAME}' does not exist: {advice}."
    return f" There is a model in '{model}', so '{model.parent}' may be the model repository."


def _first_version_listing(directory: Path) -> Mapping[str, bool] | None:
    """The entries of the first version directory, with whether each is a directory; None without a directory.

    The reference, too, inspects only one directory, in the order of names. It takes any directory for a version here,
    so that `.git` hides the real ones; here, directories that are versions come first.
    """
    subdirs = sorted(subdirectories(directory), key=lambda entry: (version_number(entry.name) is None, entry.name))
    if not subdirs:
        return None
    return {entry.name: entry.is_dir() for entry in subdirs[0].iterdir()}


def read_labels(config: ModelConfig, directory: Path) -> Mapping[str, tuple[str, ...]]:
    """The labels of a model's outputs that have a file, by name; RepositoryError if one cannot be read."""
    return {
        output.name: _read(directory / output.label_filename, directory, f"'{output.name}' in model '{config.name}'")
        for output in config.outputs
        if output.label_filename
    }


def _read(path: Path, directory: Path, output: str) -> tuple[str, ...]:
    if not is_inside(path, directory):
        raise RepositoryError(
            f"label file path '{path}' for output {output} is outside model directory", code=Code.UNSUPPORTED
        )
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        raise RepositoryError(message, code=Code.INTERNAL) from error
    except UnicodeDecodeError as error:
        raise RepositoryError(f"label file {path} for output {output} is not UTF-8 text", code=Code.INTERNAL) from error
