"""Class labels of outputs: a text file in the model's directory, one label a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import Code, RepositoryError
from naiad.models.repository.layout import is_inside


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
