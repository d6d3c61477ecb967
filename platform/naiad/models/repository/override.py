"""Parameters of a load request: a configuration, and optionally files, that replace the model's own.

Texts: CORE src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

import posixpath
import shutil
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.gpu_placement import GpuPlacement
from naiad.config.model.parameters import parse_parameters
from naiad.config.model.text import decode_json, parse_mapping
from naiad.core.errors import InvalidRequestError
from naiad.models.repository.layout import ModelFiles, make_temporary_directory
from naiad.models.repository.read import CONFIG_FILENAME, prepare_config
from naiad.protocol.inference import Buffer

_FILE = "file:"
_SOURCE = "Invalid config override"
_NAME_LIMIT = 255  # NAME_MAX of Linux file systems, in bytes
# Characters of a configuration in a request. Real ones have some thousands; to parse this many takes half a second.
_CONFIG_LIMIT = 1 << 20
# Elements of a list or map of a configuration in a request: each input, output or parameter is handled some times.
_LENGTH_LIMIT = 4096
# Folders above a file. Creating and deleting them takes a stack frame each, and a path has at most 4096 bytes.
_DEPTH_LIMIT = 64


class TemporaryModelDirectory:
    """A temporary directory with the files of a model, deleted with this object."""

    def __init__(self, name: str, contents: Mapping[str, Buffer]) -> None:
        root = make_temporary_directory("naiad-model-")
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self.files = ModelFiles(name=name, repository=root, directory=root / name)
        self.files.directory.mkdir()
        for path, content in contents.items():
            target = self.files.directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOverride:
    """What a load request replaces of a model in the repository."""

    name: str
    config: pb.ModelConfig
    contents: Mapping[str, Buffer] = field(default_factory=dict, repr=False)

    def make_directory(self) -> TemporaryModelDirectory:
        config = text_format.MessageToString(self.config).encode()
        try:
            return TemporaryModelDirectory(self.name, {CONFIG_FILENAME: config, **self.contents})
        except OSError as error:
            why = error.strerror or "the system refuses it"  # without the path, which means nothing to a client
            raise InvalidRequestError(f"cannot write the files given for '{self.name}': {why}") from error

    def prepared_config(self, files: ModelFiles, *, strict: bool, gpus: GpuPlacement | None = None) -> pb.ModelConfig:
        message = pb.ModelConfig()
        message.CopyFrom(self.config)
        message = prepare_config(message, files, strict=strict, gpus=gpus)
        parse_parameters(message)
        return message


def check_model_name(name: str) -> None:
    """Check that a name can be that of a directory in a repository."""
    # Texts: CORE src/model_repository_manager/, `ValidateModelName`; "." and NUL are refused by us alone.
    trimmed = name.strip()
    if not trimmed:
        raise InvalidRequestError("Model name cannot be empty. Please enter a valid name to deploy.")
    if trimmed in {".", ".."} or "/" in name or "\0" in name:
        shown = name.replace("\0", "\\0")
        raise InvalidRequestError(
            f"invalid model name '{shown}', model name must not contain path traversal characters"
        )


def parse_override(name: str, parameters: Mapping[str, str | Buffer]) -> LoadOverride | None:
    """Parse the parameters of a load request, None without any; InvalidRequestError for unknown or unsafe ones."""
    contents: dict[str, Buffer] = {}
    config: str | None = None
    for key, value in parameters.items():
        if key == "config" and isinstance(value, str):
            config = value
        elif key.startswith(_FILE) and not isinstance(value, str):
            contents[_path_inside(key)] = value
        else:
            kind = "STRING" if isinstance(value, str) else "BYTES"
            raise InvalidRequestError(f"Unrecognized load parameter '{key}' with type '{kind}'")
    _check_folders(contents)
    if config is None:
        if contents:
            raise InvalidRequestError("Load parameter 'config' must be specified for model file override")
        return None
    if len(config) > _CONFIG_LIMIT:
        raise InvalidRequestError(
            f"cannot use load parameter 'config': it has {len(config)} characters, the limit is {_CONFIG_LIMIT}; "
            "send a shorter configuration, and data as files"
        )
    fields = decode_json(config, _SOURCE)
    if isinstance(fields, dict):
        _check_lengths(fields)
    return LoadOverride(name=name, config=parse_mapping(fields, _SOURCE), contents=contents)


def _check_lengths(fields: Mapping[str, Any]) -> None:
    """Reject a configuration with a list or map that no real model has; before anything else looks at it."""
    rest: list[tuple[str, Any]] = [("the configuration", fields)]
    while rest:
        name, value = rest.pop()
        if not isinstance(value, (dict, list)):
            continue
        if len(value) > _LENGTH_LIMIT:
            raise InvalidRequestError(
                f"cannot use load parameter 'config': {name} has {len(value)} elements, and a list or map of a "
                f"configuration in a request may have {_LENGTH_LIMIT}; put such a model into a repository"
            )
        rest += (
            [(f"'{key}'", each) for key, each in value.items()]
            if isinstance(value, dict)
            else [(name, each) for each in value]
        )


def _check_folders(paths: Iterable[str]) -> None:
    files = {CONFIG_FILENAME, *paths}
    for path in files:
        for folder in PurePosixPath(path).parents:
            if str(folder) in files:
                raise InvalidRequestError(
                    f"cannot use file parameter '{_FILE}{path}': '{folder}' is a file of the model, so it cannot be a "
                    "folder; change one of the paths"
                )


def _path_inside(key: str) -> str:
    # Clients of the reference send `file:1/x`, `file:/1/x` and `file://1/x`: it appends each to the model's directory.
    path = posixpath.normpath(key[len(_FILE) :].lstrip("/"))
    if path in {".", ".."} or key.endswith("/") or path.startswith("../") or "\0" in path:
        raise InvalidRequestError(
            f"Invalid file parameter '{key}' with normalized path '{path}' must stay within model directory."
        )
    if path.count("/") > _DEPTH_LIMIT:
        raise InvalidRequestError(
            f"Invalid file path '{path[:40]}...': it has {path.count('/')} folders; at most {_DEPTH_LIMIT} are allowed"
        )
    longest = max(path.split("/"), key=lambda name: len(name.encode()))
    if len(longest.encode()) > _NAME_LIMIT:
        raise InvalidRequestError(
            f"Invalid file path '{path}': a name in it may have {_NAME_LIMIT} bytes, and '{longest[:20]}...' has "
            f"{len(longest.encode())}"
        )
    return path
