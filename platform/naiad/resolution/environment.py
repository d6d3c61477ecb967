"""Where a model's environment comes from, and which Python it requires.

First who names the environment (`choose_environment`), then what the name refers to (`locate_environment`): a path, a
name in an environment directory, a URI, each with an optional digest.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import ENVIRONMENT_SCHEME, EnvironmentSource, is_uri, split_digest
from naiad.config.model.model_config import ModelConfig
from naiad.errors import Code, ConfigError, ResolutionError
from naiad.resolution.decision import MODEL_FILENAME, Decision, SearchedPath, describe_searched
from naiad.resolution.files import Files
from naiad.resolution.manifest import BACKEND_MANIFEST, BackendManifest, parse_python_version

__all__ = [
    "MODEL_DIRECTORY_KEYWORD",
    "VERSION_DIRECTORY_KEYWORD",
    "EnvironmentChoice",
    "EnvironmentSearch",
    "PythonChoice",
    "choose_environment",
    "choose_python",
    "locate_environment",
]

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
PYTHON_PARAMETER = "PYTHON_VERSION"
DEFAULT_ENVIRONMENT = f"pb_exec_env_{MODEL_FILENAME}.tar.gz"
"""Name of the archive in a shared backend's directory that is the default environment of its models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChoice:
    """The environment of a model.

    Attributes:
        source: Path or remote source; None for the host's interpreter, or one that is found by its version.
        origin: The parameter or file that names it.
        step: The decision.
    """

    source: Path | EnvironmentSource | None
    origin: str
    step: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonChoice:
    """The Python version that a model requires.

    Attributes:
        required: The versions; None for any.
        origin: The parameter or file that requires them.
        step: The decision.
    """

    required: SpecifierSet | None
    origin: str
    step: Decision


def choose_environment(
    config: ModelConfig,
    *,
    search: EnvironmentSearch,
    backend_dir: Path | None,
    manifest: BackendManifest | None,
    files: Files,
) -> EnvironmentChoice:
    """Choose the environment: parameter of the version, of the model, the backend's manifest, the backend's archive.

    Raises:
        ResolutionError: If the named environment does not exist.
    """
    for parameter in (f"{ENVIRONMENT_PARAMETER}.{search.version}", ENVIRONMENT_PARAMETER):
        text = config.parameters.get(parameter, "")
        if text:
            return _named(text, f"parameter {parameter} of model '{config.name}'", search, files)
    if manifest is not None and manifest.environment:
        beside = EnvironmentSearch(base=manifest.path.parent, directories=search.directories)
        return _named(manifest.environment, str(manifest.path), beside, files)
    if backend_dir is None:
        return _none("the model names none", ())
    look = SearchedPath(backend_dir / DEFAULT_ENVIRONMENT, files.exists(backend_dir / DEFAULT_ENVIRONMENT))
    if not look.found:
        return _none("neither the model nor its backend names one", (look,))
    origin = f"default of backend '{config.backend}'"
    why = f"{origin}: an archive of that name in its directory"
    return EnvironmentChoice(
        source=look.path, origin=origin, step=Decision("environment", str(look.path), why, (look,))
    )


def choose_python(config: ModelConfig, manifest: BackendManifest | None) -> PythonChoice:
    """Choose the required Python version: the model's parameter, else its backend's manifest.

    Raises:
        ResolutionError: If the parameter is not a version.
    """
    text = config.parameters.get(PYTHON_PARAMETER, "")
    if text:
        origin = f"parameter {PYTHON_PARAMETER} of model '{config.name}'"
        required = parse_python_version(text, origin)
        return PythonChoice(required=required, origin=origin, step=Decision("python", f"Python {required}", origin))
    if manifest is not None and manifest.requires_python is not None:
        origin = str(manifest.path)
        step = Decision("python", f"Python {manifest.requires_python}", f"requires-python of {origin}")
        return PythonChoice(required=manifest.requires_python, origin=origin, step=step)
    why = f"neither parameter {PYTHON_PARAMETER} nor a {BACKEND_MANIFEST} asks for a version"
    return PythonChoice(required=None, origin="", step=Decision("python", "any", why))


def _none(why: str, searched: tuple[SearchedPath, ...]) -> EnvironmentChoice:
    return EnvironmentChoice(source=None, origin="", step=Decision("environment", "none", why, searched))


def _named(text: str, origin: str, search: EnvironmentSearch, files: Files) -> EnvironmentChoice:
    source, searched = locate_environment(text, origin, search, files)
    return EnvironmentChoice(source=source, origin=origin, step=Decision("environment", str(source), origin, searched))


# Names of environments.

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
class EnvironmentSearch:
    """What names of environments are relative to.

    Attributes:
        base: Directory of relative paths.
        model_dir: The model's directory; None where the keywords of models are not allowed.
        version: The version, for its directory.
        model_uri: URI from which the model's directory was copied; empty for a directory of this machine.
        directories: Directories of `env://` names, in order.
    """

    base: Path
    model_dir: Path | None = None
    version: int = 0
    model_uri: str = ""
    directories: tuple[Path, ...] = ()


def locate_environment(
    text: str, origin: str, search: EnvironmentSearch, files: Files
) -> tuple[Path | EnvironmentSource, tuple[SearchedPath, ...]]:
    """The path or remote source that *text* names, and the paths searched for it. Remote sources are not contacted.

    Raises:
        ResolutionError: If the text is invalid, or a local environment does not exist.
    """
    try:
        name, digest = split_digest(text)
    except ConfigError as error:
        raise ResolutionError(f"{origin}: {error.message}") from None
    if name.startswith(ENVIRONMENT_SCHEME):
        path, searched = _find_named(name.removeprefix(ENVIRONMENT_SCHEME), text, origin, search, files)
    elif is_uri(name) and not name.lower().startswith("file://"):
        return EnvironmentSource(uri=name, digest=digest), ()
    else:
        path = _path(name, text, origin, search)
        look = SearchedPath(path, files.exists(path))
        searched = (look,)
        if not look.found:
            uri = "" if name.startswith("/") or is_uri(name) else _uri_beside(path, search)
            if uri:
                return EnvironmentSource(uri=uri, digest=digest, is_mutable=True), searched
            raise ResolutionError(
                f"{origin} names the execution environment '{text}', but '{path}' does not exist; {_RULES}",
                code=Code.NOT_FOUND,
            )
    return (EnvironmentSource(path=path, digest=digest) if digest else path), searched


def _find_named(
    name: str, text: str, origin: str, search: EnvironmentSearch, files: Files
) -> tuple[Path, tuple[SearchedPath, ...]]:
    if not _NAME.fullmatch(name):
        raise ResolutionError(
            f"{origin}: '{text}': '{name}' is no name of an environment: letters, digits and ._+- in parts between "
            f"slashes, none of which begins with a dot; {_RULES}"
        )
    if not search.directories:
        raise ResolutionError(
            f"{origin} names the execution environment '{text}', and there is no directory to look in; name the one "
            f"that holds '{name}' with --env-directory",
            code=Code.NOT_FOUND,
        )
    searched: list[SearchedPath] = []
    for directory in search.directories:
        for ending in _ENDINGS:
            look = SearchedPath(directory / f"{name}{ending}", files.exists(directory / f"{name}{ending}"))
            searched.append(look)
            if look.found:
                return look.path, tuple(searched)
    raise ResolutionError(
        f"{origin} names the execution environment '{text}', which no environment directory holds; "
        f"{describe_searched(tuple(searched))}; put it there, or name another directory with --env-directory",
        code=Code.NOT_FOUND,
    )


def _path(name: str, text: str, origin: str, search: EnvironmentSearch) -> Path:
    """The path of a name without a scheme, or with `file://`."""
    if is_uri(name):
        parts = urlsplit(name)
        if parts.netloc not in {"", "localhost"}:
            raise ResolutionError(
                f"{origin}: '{text}' is on the host '{parts.netloc}', and file:// names what is on this one; write "
                f"file://{parts.path} if that is meant; {_RULES}"
            )
        return Path(unquote(parts.path))
    for keyword, directory in _keywords(search):
        before, found, rest = name.partition(keyword)
        if not found:
            continue
        if before or (rest and not rest.startswith("/")):
            raise ResolutionError(f"{origin}: '{text}': {keyword} must stand alone or before a '/'; {_RULES}")
        return directory / rest.lstrip("/")
    return search.base / name


def _keywords(search: EnvironmentSearch) -> tuple[tuple[str, Path], ...]:
    if search.model_dir is None:
        return ()
    return (
        (MODEL_DIRECTORY_KEYWORD, search.model_dir),
        (VERSION_DIRECTORY_KEYWORD, search.model_dir / str(search.version)),
    )


def _uri_beside(path: Path, search: EnvironmentSearch) -> str:
    """The URI of a path that leaves a copied model's directory, relative to the URI it was copied from; else empty.

    The path is normalised as text, without the file system, as the reference does.
    """
    if not search.model_uri or search.model_dir is None:
        return ""
    relative = os.path.relpath(os.path.normpath(path), search.model_dir)
    if not relative.startswith("../"):
        return ""
    # The last `://`: `s3://https://host:port/bucket/path` has two.
    scheme, _, rest = search.model_uri.rpartition("://")
    joined = posixpath.normpath(posixpath.join(rest, relative))
    # A path must not leave its bucket or host.
    return f"{scheme}://{joined}" if joined.partition("/")[0] == rest.partition("/")[0] else ""
