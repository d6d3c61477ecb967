"""From what names an environment to where that is: a path, a name in an environment directory, a URI, a digest."""

from __future__ import annotations

import os.path
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from naiad.config.model.environment_source import ENVIRONMENT_SCHEME, EnvironmentSource, is_uri, split_digest
from naiad.errors import Code, ConfigError, ResolutionError
from naiad.resolution.decision import Look, describe
from naiad.resolution.files import Files

__all__ = ["MODEL_DIRECTORY_KEYWORD", "VERSION_DIRECTORY_KEYWORD", "Places", "locate"]

MODEL_DIRECTORY_KEYWORD = "$$TRITON_MODEL_DIRECTORY"
VERSION_DIRECTORY_KEYWORD = "$$NAIAD_VERSION_DIRECTORY"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")
_ENDINGS = ("", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip")
_RULES = (
    "a path may be absolute, relative to the model's directory (in a backend.toml, the backend's), or start with "
    f"{MODEL_DIRECTORY_KEYWORD} or {VERSION_DIRECTORY_KEYWORD}, and names an archive or a directory; env://NAME is "
    "one in an --env-directory, file:// is a path, and URIs such as s3://, gs:// and https:// name archives"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where names lead.

    Attributes:
        base: Directory that relative paths count from.
        model_dir: The model's directory, None where the model's keywords mean nothing.
        version: The version, for its directory.
        model_uri: Where the model's directory was copied from, empty if it lies here.
        directories: Environment directories, in order.
    """

    base: Path
    model_dir: Path | None = None
    version: int = 0
    model_uri: str = ""
    directories: tuple[Path, ...] = ()


def locate(text: str, origin: str, places: Places, files: Files) -> tuple[Path | EnvironmentSource, tuple[Look, ...]]:
    """Where an environment is, and where it was looked for; of what lies elsewhere nothing is looked at.

    Raises:
        ResolutionError: If it is not there, or the text is no name of an environment.
    """
    try:
        name, digest = split_digest(text)
    except ConfigError as error:
        raise ResolutionError(f"{origin}: {error.message}") from None
    if name.startswith(ENVIRONMENT_SCHEME):
        path, looks = _find_named(name.removeprefix(ENVIRONMENT_SCHEME), text, origin, places, files)
    elif is_uri(name) and not name.lower().startswith("file://"):
        return EnvironmentSource(uri=name, digest=digest), ()
    else:
        path = _path(name, text, origin, places)
        look = Look(path, files.exists(path))
        looks = (look,)
        if not look.found:
            uri = "" if name.startswith("/") or is_uri(name) else _uri_beside(path, places)
            if uri:
                return EnvironmentSource(uri=uri, digest=digest, follows=True), looks
            raise ResolutionError(
                f"{origin} names the execution environment '{text}', but '{path}' does not exist; {_RULES}",
                code=Code.NOT_FOUND,
            )
    return (EnvironmentSource(path=path, digest=digest) if digest else path), looks


def _find_named(name: str, text: str, origin: str, places: Places, files: Files) -> tuple[Path, tuple[Look, ...]]:
    if not _NAME.fullmatch(name):
        raise ResolutionError(
            f"{origin}: '{text}': '{name}' is no name of an environment: letters, digits and ._+- in parts between "
            f"slashes, none of which begins with a dot; {_RULES}"
        )
    if not places.directories:
        raise ResolutionError(
            f"{origin} names the execution environment '{text}', and there is no directory to look in; name the one "
            f"that holds '{name}' with --env-directory",
            code=Code.NOT_FOUND,
        )
    looks: list[Look] = []
    for directory in places.directories:
        for ending in _ENDINGS:
            look = Look(directory / f"{name}{ending}", files.exists(directory / f"{name}{ending}"))
            looks.append(look)
            if look.found:
                return look.path, tuple(looks)
    raise ResolutionError(
        f"{origin} names the execution environment '{text}', which no environment directory holds; "
        f"{describe(tuple(looks))}; put it there, or name another directory with --env-directory",
        code=Code.NOT_FOUND,
    )


def _path(name: str, text: str, origin: str, places: Places) -> Path:
    """The path that a text without scheme stands for, or one of `file://`."""
    if is_uri(name):
        parts = urlsplit(name)
        if parts.netloc not in {"", "localhost"}:
            raise ResolutionError(
                f"{origin}: '{text}' is on the host '{parts.netloc}', and file:// names what is on this one; write "
                f"file://{parts.path} if that is meant; {_RULES}"
            )
        return Path(unquote(parts.path))
    for keyword, directory in _keywords(places):
        before, found, rest = name.partition(keyword)
        if not found:
            continue
        if before or (rest and not rest.startswith("/")):
            raise ResolutionError(f"{origin}: '{text}': {keyword} must stand alone or before a '/'; {_RULES}")
        return directory / rest.lstrip("/")
    return places.base / name


def _keywords(places: Places) -> tuple[tuple[str, Path], ...]:
    if places.model_dir is None:
        return ()
    return (
        (MODEL_DIRECTORY_KEYWORD, places.model_dir),
        (VERSION_DIRECTORY_KEYWORD, places.model_dir / str(places.version)),
    )


def _uri_beside(path: Path, places: Places) -> str:
    """What a path that leads out of a copied model's directory is at the place that was copied from.

    By text, as the reference does it: what leads out of the directory there does so here.
    """
    if not places.model_uri or places.model_dir is None:
        return ""
    relative = os.path.relpath(os.path.normpath(path), places.model_dir)
    if not relative.startswith("../"):
        return ""
    # The last one: `s3://https://host:port/bucket/path` has two.
    scheme, _, rest = places.model_uri.rpartition("://")
    joined = posixpath.normpath(posixpath.join(rest, relative))
    # A bucket, or a host, is where every path ends.
    return f"{scheme}://{joined}" if joined.partition("/")[0] == rest.partition("/")[0] else ""
