"""Repositories that come and go while a server runs. Texts: CORE src/model_repository_manager/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from naiad.config.server.options import ModelControlMode
from naiad.errors import Code, RepositoryError, UnsupportedRequestError
from naiad.inprocess.running import RunningServer
from naiad.repository.place import LocalPlace

__all__ = ["register", "unregister"]


def register(server: RunningServer, path: str, names: Mapping[str, str]) -> None:
    """Serve one more repository. See `Server.register_model_repository`.

    Raises:
        UnsupportedRequestError: In another mode than explicit.
        RepositoryError: If there is no such repository, or it or one of its models is there already.
    """
    _require_explicit(server, "registration")
    if not Path(path).is_dir():
        raise RepositoryError(f"failed to register '{path}', repository not found")
    repositories = server.engine.repositories
    place = LocalPlace(Path(path).absolute())
    if place.given in repositories.given:
        raise RepositoryError(f"model repository '{path}' has already been registered", code=Code.ALREADY_EXISTS)
    known = {files.name for files in repositories.stored()}
    for directory, name in names.items():
        if name in known:
            raise RepositoryError(
                f"failed to register '{path}': '{directory}' cannot be mapped to '{name}', as there is a model of that "
                "name",
                code=Code.ALREADY_EXISTS,
            )
    repositories.add(place, names)


def unregister(server: RunningServer, path: str) -> None:
    """Serve a repository no more. See `Server.unregister_model_repository`.

    Raises:
        UnsupportedRequestError: In another mode than explicit.
        RepositoryError: If it is not served.
    """
    _require_explicit(server, "unregistration")
    if not server.engine.repositories.remove(str(Path(path).absolute())):
        raise RepositoryError(f"failed to unregister '{path}', repository not found")


def _require_explicit(server: RunningServer, what: str) -> None:
    if server.options.models.control_mode is not ModelControlMode.EXPLICIT:
        raise UnsupportedRequestError(f"repository {what} is not allowed if model control mode is not EXPLICIT")
