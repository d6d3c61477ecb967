"""`naiad env rollout`: replaces an archive of an environment directory, and has servers reload the models that use it.

The archive is replaced in one atomic step, and only after the new one was unpacked and started. A model is reloaded by
the server's own load request, so that its old version serves until the new one is ready. If one model fails, the old
archive is put back, and the models that have changed by then are reloaded once more.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from naiad.config.model.environment_source import ENVIRONMENT_SCHEME, EnvironmentSource
from naiad.config.server.options import ServerOptions
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.signatures import SIGNATURE_SUFFIX
from naiad.models.resolution.environment import EnvironmentSearch, locate_environment
from naiad.models.resolution.files import RealFiles
from naiad_building.cli.env.models import environments_of

__all__ = ["Servers", "SharedArchive", "find_shared_archive", "reload_models", "users_of"]

_LOAD_SECONDS = 3600.0
"""Limit of one load, which may import large libraries; connecting fails at once if nothing listens."""
_CONTENT = ("", SIGNATURE_SUFFIX)
"""Suffixes of the files that make up an archive: a signature belongs to one content."""


@dataclass(frozen=True, slots=True)
class SharedArchive:
    """An archive in an environment directory, and the one that it has replaced.

    Attributes:
        path: The archive that models use.
    """

    path: Path

    @property
    def previous(self) -> Path:
        """What it has replaced; hidden, so that no `env://` name finds it."""
        return self.path.with_name(f".{self.path.name}.previous")

    def replace(self, new: Path) -> None:
        """Keep the present archive as the previous one, and put a copy of *new* in its place.

        Raises:
            OSError: If a file cannot be written.
        """
        for suffix in _CONTENT:
            source = Path(f"{new}{suffix}")
            unfinished = self.path.with_name(f".{self.path.name}{suffix}.new")
            if source.exists():
                # Without its time: a load compares times and sizes, and must find a change.
                shutil.copyfile(source, unfinished)
            self._keep(suffix)
            if source.exists():
                unfinished.replace(f"{self.path}{suffix}")
            else:
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def swap(self) -> None:
        """Exchange the present archive and the previous one.

        Raises:
            OSError: If a file cannot be renamed.
        """
        for suffix in _CONTENT:
            present, previous = Path(f"{self.path}{suffix}"), Path(f"{self.previous}{suffix}")
            kept = Path(f"{self.previous}{suffix}.swap")
            if present.exists():
                _link(present, kept)
            if previous.exists():
                previous.replace(present)
            else:
                present.unlink(missing_ok=True)
            if kept.exists():
                kept.replace(previous)

    def _keep(self, suffix: str) -> None:
        present, previous = Path(f"{self.path}{suffix}"), Path(f"{self.previous}{suffix}")
        if present.exists():
            _link(present, previous)
        else:
            previous.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name; a copy where its file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def find_shared_archive(name: str, directories: Sequence[Path]) -> SharedArchive:
    """The archive that `env://NAME` names.

    Raises:
        NaiadError: If no archive has that name, or it is a directory.
    """
    text = name if name.startswith(ENVIRONMENT_SCHEME) else f"{ENVIRONMENT_SCHEME}{name}"
    search = EnvironmentSearch(base=Path.cwd(), directories=tuple(each.absolute() for each in directories))
    found, _ = locate_environment(text, "naiad env rollout", search, RealFiles())
    path = found.path if isinstance(found, EnvironmentSource) else found
    if path is None or path.is_dir():
        raise ExecutionEnvironmentError(
            f"cannot roll out {text}: {path} is a directory, and only archives are replaced as a whole; pack it with "
            "`naiad env pack`"
        )
    return SharedArchive(path)


def users_of(archive: SharedArchive, options: ServerOptions) -> list[str]:
    """The names of the models that use an archive, sorted.

    Raises:
        ExecutionEnvironmentError: If a model pins its present content, so that no other can be rolled out.
    """
    users = set()
    for model, source, *_ in environments_of(options):
        path = source.path if isinstance(source, EnvironmentSource) else source
        if path is None or os.path.realpath(path) != os.path.realpath(archive.path):
            continue
        if isinstance(source, EnvironmentSource) and source.digest:
            raise ExecutionEnvironmentError(
                f"cannot roll out {archive.path}: model '{model}' pins its content with @sha256:{source.digest}; put "
                "the new archive beside it under another name, and name that in the model"
            )
        users.add(model)
    return sorted(users)


class Servers:
    """Running servers, reached over HTTP.

    Args:
        urls: Their addresses, `http://localhost:8000`.
        headers: Headers of each request, for servers that restrict model control.
    """

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str]) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self._headers = {**headers, "Content-Type": "application/json"}

    def loaded(self, url: str) -> set[str]:
        """The names of the models that a server has loaded.

        Raises:
            ExecutionEnvironmentError: If it cannot be reached.
        """
        index = self._post(url, "/v2/repository/index", {"ready": True})
        return {str(entry.get("name")) for entry in index} if isinstance(index, list) else set()

    def load(self, url: str, model: str) -> None:
        """Have a server load a model again; returns when it serves.

        Raises:
            ExecutionEnvironmentError: If that fails.
        """
        self._post(url, f"/v2/repository/models/{quote(model, safe='')}/load", {})

    def _post(self, url: str, path: str, document: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the operator's own address
            f"{url}{path}", json.dumps(document).encode(), self._headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=_LOAD_SECONDS) as reply:  # noqa: S310 - as above
                text = reply.read()
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise ExecutionEnvironmentError(f"{url}: {_explain(error)}") from error
        except (OSError, ValueError) as error:
            raise ExecutionEnvironmentError(
                f"cannot reach the server at {url}: {getattr(error, 'reason', error)}; name the address of its HTTP "
                "port with --url"
            ) from error


def _explain(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (KeyError, TypeError, ValueError):
        return f"it answered {error.code} {error.reason}"


def reload_models(
    servers: Servers, models: Sequence[str], undo: Callable[[], None], say: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Reload models on all servers that have loaded them, one after the other; undo all of it if one fails.

    Args:
        servers: The servers.
        models: The models.
        undo: Puts the old archive back.
        say: Called with a line for each step.

    Returns:
        Server and model of each reload.

    Raises:
        ExecutionEnvironmentError: If a model cannot be reloaded; the old archive is back then.
    """
    done: list[tuple[str, str]] = []
    try:
        for url in servers.urls:
            loaded = servers.loaded(url)
            for model in models:
                if model not in loaded:
                    say(f"'{model}' is not loaded at {url}")
                    continue
                servers.load(url, model)
                done.append((url, model))
                say(f"reloaded '{model}' at {url}")
    except BaseException as error:
        undo()
        for url, model in done:
            servers.load(url, model)
            say(f"reloaded '{model}' at {url} with the old archive")
        if isinstance(error, ExecutionEnvironmentError):
            raise ExecutionEnvironmentError(
                f"{error.message}; the old archive is back, and no model uses the new one"
            ) from error
        raise
    return done
