"""Parameters of a load request: a configuration, and files, in place of a model's own.

Texts: CORE src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

import posixpath
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.text import parse_json
from naiad.errors import InvalidRequestError
from naiad.repository.layout import ModelFiles
from naiad.repository.read import CONFIG_FILENAME, prepare_config
from naiad.repository.temporary import temporary_folder

__all__ = ["LoadOverride", "ModelDirectory", "check_model_name", "parse_override"]

_FILE = "file:"
_NAME_LIMIT = 255  # of a name in the file systems of Linux


class ModelDirectory:
    """A temporary directory with the files of a model, deleted with this object.

    Attributes:
        files: Where the model lies.
    """

    def __init__(self, name: str, contents: Mapping[str, bytes]) -> None:
        root = temporary_folder("naiad-model-")
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self.files = ModelFiles(name=name, repository=root, directory=root / name)
        self.files.directory.mkdir()
        for path, content in contents.items():
            target = self.files.directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOverride:
    """What a load request gives in place of what lies in the repository.

    Attributes:
        name: The model.
        config: Its configuration.
        contents: Contents of its files by their paths in its directory; empty to use those in the repository.
    """

    name: str
    config: pb.ModelConfig
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def make_directory(self) -> ModelDirectory:
        """Write the files; blocks.

        Raises:
            InvalidRequestError: If a file is in the way of another.
        """
        config = text_format.MessageToString(self.config).encode()
        try:
            return ModelDirectory(self.name, {CONFIG_FILENAME: config, **self.contents})
        except OSError as error:
            raise InvalidRequestError(f"cannot write the files given for '{self.name}': {error}") from error

    def prepared_config(self, files: ModelFiles, *, strict: bool) -> pb.ModelConfig:
        """The configuration filled in, normalised and checked against *files*; blocks.

        Raises:
            ConfigError: If it contradicts itself or the files.
        """
        message = pb.ModelConfig()
        message.CopyFrom(self.config)
        return prepare_config(message, files, strict=strict)


def check_model_name(name: str) -> None:
    """Refuse names that cannot be a directory of a repository.

    Raises:
        InvalidRequestError: If it is one.
    """
    if not name.strip() or "/" in name or name in {".", ".."}:
        raise InvalidRequestError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
            if name.strip()
            else "model name must not be empty"
        )


def parse_override(name: str, parameters: Mapping[str, str | bytes]) -> LoadOverride | None:
    """The override that the parameters of a load request say; None if there are none.

    Raises:
        InvalidRequestError: For parameters that do not exist, and files without a configuration or outside the model.
        ConfigError: If the configuration cannot be read.
    """
    contents: dict[str, bytes] = {}
    config: str | None = None
    for key, value in parameters.items():
        if key == "config" and isinstance(value, str):
            config = value
        elif key.startswith(_FILE) and isinstance(value, bytes):
            contents[_path_inside(key)] = value
        else:
            kind = "STRING" if isinstance(value, str) else "BYTES"
            raise InvalidRequestError(f"Unrecognized load parameter '{key}' with type '{kind}'")
    if config is None:
        if contents:
            raise InvalidRequestError("Load parameter 'config' must be specified for model file override")
        return None
    return LoadOverride(name=name, config=parse_json(config, "Invalid config override"), contents=contents)


def _path_inside(key: str) -> str:
    path = posixpath.normpath(key[len(_FILE) :])
    if path in {".", ".."} or path.startswith(("/", "../")) or "\0" in path:
        raise InvalidRequestError(
            f"Invalid file parameter '{key}' with normalized path '{path}' must stay within model directory."
        )
    longest = max(path.split("/"), key=lambda name: len(name.encode()))
    if len(longest.encode()) > _NAME_LIMIT:
        raise InvalidRequestError(
            f"Invalid file path '{path}': a name in it may have {_NAME_LIMIT} bytes, and '{longest[:20]}...' has "
            f"{len(longest.encode())}"
        )
    return path
