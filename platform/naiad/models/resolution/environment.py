"""Where a model's environment comes from, and which Python it requires.

First who names the environment (`choose_environment`), then what the name refers to (`locate_environment`): a path, a
name in an environment directory, a URI, each with an optional digest.
"""

from __future__ import annotations

import difflib
import os.path
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_pins import PINS_FILE, parse_pins
from naiad.config.model.environment_source import ENVIRONMENT_SCHEME, EnvironmentSource, is_uri, split_digest
from naiad.config.model.model_config import ModelConfig
from naiad.config.server.backend_settings import ENVIRONMENT_SETTING, PYTHON_SETTING
from naiad.core.errors import Code, ConfigError, ResolutionError
from naiad.models.resolution.decision import MODEL_FILENAME, Decision, SearchedPath, describe_searched
from naiad.models.resolution.files import Files
from naiad.models.resolution.manifest import BACKEND_MANIFEST, BackendManifest, parse_python_version

if TYPE_CHECKING:
    from naiad.config.model.declared_environment import ScriptBlock

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
PYTHON_PARAMETER = "PYTHON_VERSION"
# Name of the archive in a shared backend's directory that is the default environment of its models.
DEFAULT_ENVIRONMENT = f"pb_exec_env_{MODEL_FILENAME}.tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChoice:
    """The environment of a model."""

    source: Path | EnvironmentSource | None
    origin: str
    reason: str
    searched: tuple[SearchedPath, ...] = ()
    skipped: str = ""  # a sentence about the default environment if the model does not use it; else empty
    notice: str = ""  # a sentence for the log about an environment that nobody has named; else empty

    @property
    def step(self) -> Decision:
        choice = "none" if self.source is None else str(self.source)
        return Decision("environment", choice, self.reason, self.searched)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonChoice:
    """The Python version that a model requires; None for any."""

    required: SpecifierSet | None
    origin: str
    reason: str
    shown: str = ""  # the version as a person writes it; empty for *required*

    @property
    def step(self) -> Decision:
        choice = "any" if self.required is None else f"Python {self.shown or self.required}"
        return Decision("python", choice, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The code of a model, with the block that declares its environment."""

    path: Path
    block: ScriptBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDefaults:
    """What the operator has set for all models that do not choose themselves; the text is empty for none."""

    environment: str = ""
    environment_origin: str = ""
    is_interpreter: bool = False
    base: Path = Path()
    python: SpecifierSet | None = None
    python_origin: str = ""


def python_defaults(settings: Mapping[str, str], manifest: BackendManifest | None) -> PythonDefaults:
    """The operator's defaults, else those of backend `python`; ResolutionError for invalid or double ones."""
    environment, environment_origin, base = "", "", Path.cwd()
    python, python_origin = None, ""
    if manifest is not None:
        environment, environment_origin, base = manifest.environment, str(manifest.path), manifest.path.parent
        python, python_origin = manifest.requires_python, str(manifest.path)
    if settings.get(ENVIRONMENT_SETTING):
        environment, base = settings[ENVIRONMENT_SETTING], Path.cwd()
        environment_origin = f"--backend-config=python,{ENVIRONMENT_SETTING}"
    text, is_interpreter = settings.get(PYTHON_SETTING, ""), False
    if names_environment(text):
        origin = f"--backend-config=python,{PYTHON_SETTING}"
        if settings.get(ENVIRONMENT_SETTING):
            raise ResolutionError(
                f"cannot choose the environment of models: {environment_origin} names '{environment}', and {origin} "
                f"names '{text}'; keep one of them, or give {PYTHON_SETTING} a version"
            )
        environment, environment_origin, base, is_interpreter = text, origin, Path.cwd(), True
        python, python_origin = None, ""
    elif text:
        python_origin = f"--backend-config=python,{PYTHON_SETTING}"
        python = parse_python_version(text, python_origin, takes_path=True)
    return PythonDefaults(
        environment=environment,
        environment_origin=environment_origin,
        is_interpreter=is_interpreter,
        base=base,
        python=python,
        python_origin=python_origin,
    )


def names_environment(text: str) -> bool:
    """Whether the text for a Python names an interpreter or an environment, and not versions."""
    return "/" in text or text.startswith("$")


def choose_environment(
    config: ModelConfig,
    *,
    search: EnvironmentSearch,
    backend_dir: Path | None,
    manifest: BackendManifest | None,
    files: Files,
    defaults: PythonDefaults,
    script: Script | None = None,
    backend_setting: str = "",
) -> EnvironmentChoice:
    """Choose the environment: of the version, of the model, of the operator for the backend, its manifest, its archive.

    Then a file of the version, if the manifest names such files, and the script block of the code. A block that has no
    effect is named in the reason. A path in the parameter for the Python names an environment as the model's other
    parameter does. *backend_setting* is what the operator names for all models of a shared backend.

    The operator's default comes last, and only for models that do not ask for a Python version: its Python would
    contradict most of them.
    """
    python = config.parameters.get(PYTHON_PARAMETER, "")
    if not names_environment(python):
        python = ""
    for parameter in (f"{ENVIRONMENT_PARAMETER}.{search.version}", ENVIRONMENT_PARAMETER):
        text = config.parameters.get(parameter, "")
        if text and python:
            raise ResolutionError(
                f"cannot choose the environment of model '{config.name}': its parameter {parameter} names '{text}', "
                f"and {PYTHON_PARAMETER} names '{python}'; keep one of them, or give {PYTHON_PARAMETER} a version"
            )
        if text:
            named = _named(text, f"parameter {parameter} of model '{config.name}'", search, files)
            return _over_script(named, script)
    if python:
        origin = f"parameter {PYTHON_PARAMETER} of model '{config.name}'"
        return _over_script(_named(python, origin, search, files, is_interpreter=True), script)
    if backend_setting and backend_dir is not None:
        beside = replace(search, base=backend_dir, model_dir=None, model_uri="")
        origin = f"--backend-config={config.backend},{ENVIRONMENT_SETTING}"
        return _over_script(_named(backend_setting, origin, beside, files), script)
    if manifest is not None and manifest.environment:
        beside = replace(search, base=manifest.path.parent, model_dir=None, model_uri="")
        return _over_script(_named(manifest.environment, str(manifest.path), beside, files), script)
    look = None
    if backend_dir is not None:
        look = SearchedPath(backend_dir / DEFAULT_ENVIRONMENT, files.exists(backend_dir / DEFAULT_ENVIRONMENT))
    if look is None or not look.found:
        if manifest is not None and manifest.environment_files:
            brought = _brought(config, manifest, search, files, defaults, look)
            if brought is not None:
                return _over_script(brought, script)
        if script is not None and script.block.dependencies:
            return _declared(script, files)
        return _default_environment(config, manifest, defaults, search, files, look)
    origin = f"default of backend '{config.backend}'"
    why = f"{origin}: an archive of that name in its directory"
    return _over_script(EnvironmentChoice(source=look.path, origin=origin, reason=why, searched=(look,)), script)


def _brought(
    config: ModelConfig,
    manifest: BackendManifest,
    search: EnvironmentSearch,
    files: Files,
    defaults: PythonDefaults,
    archive: SearchedPath | None,
) -> EnvironmentChoice | None:
    """The environment that a file of the version declares; None for the default, ResolutionError without either."""
    assert search.model_dir is not None, "the environment is a model's"
    folder = search.model_dir / str(search.version)
    looks = [] if archive is None else [archive]
    for name in manifest.environment_files:
        looks.append(SearchedPath(folder / name, files.exists(folder / name)))
        if looks[-1].found:
            path = looks[-1].path
            return EnvironmentChoice(
                source=path,
                origin=str(path),
                reason=f"the model brings it: {manifest.path} names such files",
                searched=tuple(looks),
                notice=f"model '{config.name}' runs in the environment that it brings: {path}",
            )
    if defaults.environment:
        return None
    raise ResolutionError(
        f"cannot choose the environment of model '{config.name}': {folder} has no {_or(manifest.environment_files)}, "
        f"by which models of backend '{config.backend}' declare their packages; write one of them, or name an "
        f"environment by the parameter {ENVIRONMENT_PARAMETER}",
        code=Code.NOT_FOUND,
    )


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def read_script(path: Path, files: Files) -> Script | None:
    """The script block of a model's code; None without one."""
    try:
        text = files.read(path).decode("utf-8-sig")
        if "# ///" not in text:
            return None
        # Imported here: most models have no block.
        from naiad.config.model.declared_environment import read_script_block

        block = read_script_block(text, str(path))
    except (OSError, UnicodeDecodeError):
        return None  # loading the code will report it
    except ConfigError as error:
        raise ResolutionError(error.message) from None
    return None if block is None else Script(path=path, block=block)


def _declared(script: Script, files: Files) -> EnvironmentChoice:
    from naiad.config.model.declared_environment import lock_candidates

    looks = tuple(SearchedPath(path, files.exists(path)) for path in lock_candidates(script.path))
    origin = f"the script block of {script.path}"
    why = f"{origin}, for nothing else names an environment; it requires {', '.join(script.block.dependencies)}"
    return EnvironmentChoice(source=script.path, origin=origin, reason=why, searched=looks)


def _over_script(choice: EnvironmentChoice, script: Script | None) -> EnvironmentChoice:
    """The choice, with a reason that says that the script block has no effect."""
    if script is None or not script.block.dependencies:
        return choice
    return replace(choice, reason=f"{choice.reason}; it wins over the script block of {script.path}")


def _default_environment(
    config: ModelConfig,
    manifest: BackendManifest | None,
    defaults: PythonDefaults,
    search: EnvironmentSearch,
    files: Files,
    look: SearchedPath | None,
) -> EnvironmentChoice:
    searched = () if look is None else (look,)
    why = "the model names none" if look is None else "neither the model nor its backend names one"
    if not defaults.environment:
        return EnvironmentChoice(source=None, origin="", reason=why, searched=searched)
    asks = ""
    if config.parameters.get(PYTHON_PARAMETER, ""):
        asks = f"parameter {PYTHON_PARAMETER} of model '{config.name}'"
    elif manifest is not None and manifest.requires_python:
        asks = str(manifest.path)
    if asks:
        return EnvironmentChoice(
            source=None,
            origin="",
            reason=f"{why}; the default '{defaults.environment}' is not for models that ask for a version",
            searched=searched,
            skipped=f"model '{config.name}' does not use the default environment '{defaults.environment}' of "
            f"{defaults.environment_origin}, because {asks} asks for a version of Python",
        )
    beside = replace(search, base=defaults.base, model_dir=None, model_uri="")
    return _named(
        defaults.environment, defaults.environment_origin, beside, files, is_interpreter=defaults.is_interpreter
    )


def choose_python(
    config: ModelConfig,
    manifest: BackendManifest | None,
    defaults: PythonDefaults,
    environment: EnvironmentChoice,
    script: Script | None = None,
) -> PythonChoice:
    """Choose the required Python version: the model's parameter, else its backend's manifest, its code, the default.

    `requires-python` of a script block counts unless something other than the block names the environment.

    The default is for models that run in no environment, or in the default one. A parameter with a path chooses an
    environment instead.
    """
    text = config.parameters.get(PYTHON_PARAMETER, "")
    if text and not names_environment(text):
        origin = f"parameter {PYTHON_PARAMETER} of model '{config.name}'"
        required = parse_python_version(text, origin, takes_path=True)
        return PythonChoice(required=required, origin=origin, reason=origin)
    if manifest is not None and manifest.requires_python is not None:
        origin = str(manifest.path)
        return PythonChoice(required=manifest.requires_python, origin=origin, reason=f"requires-python of {origin}")
    if script is not None and script.block.requires_python and environment.source in {None, script.path}:
        origin = f"the script block of {script.path}"
        return PythonChoice(required=script.block.requires_python, origin=origin, reason=f"requires-python of {origin}")
    if defaults.python is not None and environment.origin in {"", defaults.environment_origin}:
        origin = defaults.python_origin
        return PythonChoice(required=defaults.python, origin=origin, reason=f"{origin}, the default for all models")
    why = f"neither parameter {PYTHON_PARAMETER} nor a {BACKEND_MANIFEST} asks for a version"
    if text:
        why = f"that of the environment, which parameter {PYTHON_PARAMETER} of model '{config.name}' names"
    return PythonChoice(required=None, origin="", reason=why)


def misspelt_parameters(config: ModelConfig) -> tuple[str, ...]:
    """A sentence for each parameter of a model that is probably a misspelt name of one that is read here."""
    known = {name.lower(): name for name in (ENVIRONMENT_PARAMETER, PYTHON_PARAMETER)}
    found = []
    for name in config.parameters:
        stem = name.partition(".")[0]
        near = difflib.get_close_matches(stem.lower(), known, n=1, cutoff=0.85)
        if near and stem not in known.values():
            found.append(
                f"parameter '{name}' of model '{config.name}' does not name its environment or Python; did you mean "
                f"{known[near[0]]}?"
            )
    return tuple(found)


def _named(
    text: str, origin: str, search: EnvironmentSearch, files: Files, *, is_interpreter: bool = False
) -> EnvironmentChoice:
    source, searched = locate_environment(text, origin, search, files, is_interpreter=is_interpreter)
    return EnvironmentChoice(source=source, origin=origin, reason=origin, searched=searched)


# Names of environments.

MODEL_DIRECTORY_KEYWORD = "$$TRITON_MODEL_DIRECTORY"
VERSION_DIRECTORY_KEYWORD = "$$NAIAD_VERSION_DIRECTORY"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")
_ENDINGS = ("", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip")
_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?t?")
_SHOWN_NAMES = 6
_RULES = (
    "a path may be absolute, relative to the model's directory (in a backend.toml, the backend's), or start with "
    f"{MODEL_DIRECTORY_KEYWORD} or {VERSION_DIRECTORY_KEYWORD}, and names an archive, a directory or an interpreter; "
    "env://NAME is one in an --env-directory, file:// is a path, and URIs such as s3://, gs:// and https:// name "
    "archives"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSearch:
    """What names of environments are relative to."""

    base: Path
    model_dir: Path | None = None
    version: int = 0
    model_uri: str = ""  # URI from which the model's directory was copied; empty for a directory of this machine
    directories: tuple[Path, ...] = ()  # directories of `env://` names, in order
    repository: Path | None = None  # the repository, whose `environments.lock` may pin remote archives; None for none


def locate_environment(
    text: str, origin: str, search: EnvironmentSearch, files: Files, *, is_interpreter: bool = False
) -> tuple[Path | EnvironmentSource, tuple[SearchedPath, ...]]:
    """The path or remote source that *text* names, and the paths searched for it. Remote sources are not contacted.

    A file is an interpreter if its name is that of one; with *is_interpreter*, if its name is not that of an archive.
    """
    try:
        name, digest = split_digest(text)
    except ConfigError as error:
        raise ResolutionError(f"{origin}: {error.message}") from None
    if name.startswith(ENVIRONMENT_SCHEME):
        path, searched = _find_named(name.removeprefix(ENVIRONMENT_SCHEME), text, origin, search, files)
    elif is_uri(name) and not name.lower().startswith("file://"):
        return _remote(name, digest, search, files)
    else:
        path = _path(name, text, origin, search)
        look = SearchedPath(path, files.exists(path))
        searched = (look,)
        if not look.found:
            uri = "" if name.startswith("/") or is_uri(name) else _uri_beside(path, search)
            if uri:
                return EnvironmentSource(uri=uri, digest=digest, is_mutable=True), searched
            raise ResolutionError(
                f"{origin} names the execution environment '{text}', but '{path}' does not exist"
                f"{_similar(name, path, search, files) or _beside(path, files)}; {_RULES}",
                code=Code.NOT_FOUND,
            )
        if not digest and not files.is_dir(path) and _is_interpreter(path, otherwise=is_interpreter):
            return EnvironmentSource(path=path, is_interpreter=True), searched
    return (EnvironmentSource(path=path, digest=digest) if digest else path), searched


def _is_interpreter(path: Path, *, otherwise: bool) -> bool:
    from naiad.config.model.declared_environment import is_declaration

    if _INTERPRETER.fullmatch(path.name):
        return True
    return otherwise and not is_declaration(path) and not path.name.endswith(_ENDINGS[1:])


def _remote(
    uri: str, digest: str, search: EnvironmentSearch, files: Files
) -> tuple[EnvironmentSource, tuple[SearchedPath, ...]]:
    """A remote archive, pinned by its name or else by the repository's `environments.lock`."""
    if digest or search.repository is None:
        return EnvironmentSource(uri=uri, digest=digest), ()
    file = search.repository / PINS_FILE
    look = SearchedPath(file, files.exists(file))
    if not look.found:
        return EnvironmentSource(uri=uri), (look,)
    try:
        pins = parse_pins(files.read(file).decode("utf-8-sig"), str(file))
    except ConfigError as error:
        raise ResolutionError(error.message) from None
    except (OSError, UnicodeDecodeError) as error:
        # Without its pin, another content would be accepted than the one that was reviewed.
        raise ResolutionError(f"cannot read {file}: {error}; correct the file or its permissions") from None
    return EnvironmentSource(uri=uri, digest=pins.get(uri, "")), (look,)


def _similar(name: str, path: Path, search: EnvironmentSearch, files: Files) -> str:
    """What a path that does not exist may have meant: a name of an environment directory, or a name in the folder."""
    if _NAME.fullmatch(name):
        places = [directory / f"{name}{ending}" for directory in search.directories for ending in _ENDINGS]
        if any(files.exists(place) for place in places):
            return f"; did you mean '{ENVIRONMENT_SCHEME}{name}'?"
    if name.startswith("~"):
        return "; '~' is not expanded; write the whole path"
    if name.startswith("$"):
        word = name.partition("/")[0]
        keyword = difflib.get_close_matches(word, [known for known, _ in _keywords(search)], n=1)
        if keyword and keyword[0] != word:
            return f"; did you mean {keyword[0]}?"
    near = difflib.get_close_matches(path.name, files.names(path.parent), n=1, cutoff=0.7)
    if near and near[0] != path.name:  # else it is a dangling link
        return f"; did you mean '{path.with_name(near[0])}'?"
    return ""


def _beside(path: Path, files: Files) -> str:
    path = Path(os.path.normpath(path))
    folder = next((parent for parent in path.parents if files.is_dir(parent)), None)
    if folder is None:
        return ""
    if folder != path.parent:
        return f"; '{folder}' exists, and has no '{path.relative_to(folder).parts[0]}'"
    names = files.names(folder)
    if path.name in names:
        return "; it is a link, and what it names does not exist"
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"; '{folder}' has {', '.join(names[:_SHOWN_NAMES])}{more}" if names else f"; '{folder}' is empty"


def _find_named(
    name: str, text: str, origin: str, search: EnvironmentSearch, files: Files
) -> tuple[Path, tuple[SearchedPath, ...]]:
    if not _NAME.fullmatch(name):
        raise ResolutionError(
            f"{origin}: '{text}': '{name}' is not a name of an environment: use letters, digits and ._+-, and '/' "
            f"between parts, which must not begin with a dot; {_RULES}"
        )
    if not search.directories:
        raise ResolutionError(
            f"{origin} names the execution environment '{text}', but --env-directory is missing; name the "
            f"directory that holds '{name}' with --env-directory",
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
            raise ResolutionError(
                f"{origin}: '{text}': {keyword} must be the whole value or its beginning before a '/'; {_RULES}"
            )
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
