"""Where files that flags name are in a container: folders of models below `/srv`, secrets below `/run/secrets`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["PATH_FLAGS", "PlacedFile", "normalized", "place_files"]

_FOLDERS = frozenset({"model-repository", "model-store", "backend-directory", "env-directory", "env-wheels"})
_FILES = frozenset({"env-trust", "openai-chat-template"})
_SECRETS = frozenset(
    {f"{where}-{what}" for where in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")}
    | {"openai-api-keys-file", "ui-password"}
)
PATH_FLAGS = _FOLDERS | _FILES | _SECRETS | {"log-file"}
"""Flags whose values are paths of the server's machine."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file or folder of this machine, and its place in the container.

    Attributes:
        target: Path in the container.
        is_secret: Whether it is a key, a certificate or a password, which an image must not contain.
    """

    source: Path
    target: PurePosixPath
    is_secret: bool = False

    def source_from(self, folder: Path) -> str:
        """Its path relative to another folder, as Docker wants it: with a dot or a slash at its beginning."""
        path = os.path.relpath(self.source, folder.absolute())
        return path if path.startswith("..") else f"./{path}"


def place_files(flags: Sequence[str]) -> tuple[list[str], list[PlacedFile]]:
    """The flags as the server in the container gets them, and the files that they name there."""
    taken: dict[PurePosixPath, Path] = {}
    placed: list[PlacedFile] = []
    changed = []
    for flag in flags:
        name, _, text = flag.removeprefix("--").partition("=")
        if name not in PATH_FLAGS - {"log-file"} or "://" in text:
            changed.append(flag)
            continue
        source = normalized(Path(text))
        target = _free(PurePosixPath("/run/secrets" if name in _SECRETS else "/srv"), source, taken)
        if target not in taken:
            taken[target] = source
            placed.append(PlacedFile(source, target, name in _SECRETS))
        changed.append(f"--{name}={target}")
    return changed, placed


def _free(folder: PurePosixPath, source: Path, taken: dict[PurePosixPath, Path]) -> PurePosixPath:
    """A place for a file: its own name, with a number if another file has it."""
    name, number = source.name, 1
    while taken.get(target := folder / (name if number == 1 else f"{name}-{number}"), source) != source:
        number += 1
    return target


def normalized(path: Path) -> Path:
    """The absolute path, without `..`; links stay what they are."""
    return Path(os.path.normpath(path.absolute()))
