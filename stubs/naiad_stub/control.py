"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: models that have the server load, unload and tell.

Texts are the reference's (PB src/model_loader.cc).
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NoReturn, Optional

from naiad_stub import wire
from naiad_stub.arguments import text
from naiad_stub.asking import Asking, RefusedError
from naiad_stub.exceptions import TritonModelException

_LOAD = "Failed to load model"
_UNLOAD = "Failed to unload model"
_READY = "Failed to check model readiness"
_MOST_BYTES = wire.MAX_FRAME - (1 << 20)


class Control:
    """What models ask about other models. A server, or a test, puts its own in place of this one."""

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, Any]]) -> None:  # noqa: ARG002
        """Load a model, with a configuration and files if they are given."""
        _refuse(_LOAD, model_name)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: ARG002, FBT001
        """Begin to unload a model."""
        _refuse(_UNLOAD, model_name)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:  # noqa: ARG002
        """Whether a model can infer."""
        _refuse(_READY, model_name)


class ServerControl(Control):
    """Asks the server."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, Any]]) -> None:
        """Load a model and wait until it is loaded."""
        fields = {"name": model_name, "config": config}
        for path, content in (files or {}).items():
            # Any bytes survive the way through a string and back.
            fields[f"file {path}"] = content.decode("utf-8", "surrogateescape")
        size = sum([len(content) for content in (files or {}).values()], len(config))
        if size > _MOST_BYTES:
            raise TritonModelException(
                f"{_LOAD}: configuration and files of '{model_name}' have {size} bytes together, at most {_MOST_BYTES} "
                "can be handed over; put the files into the model repository"
            )
        self._ask("model.load", _LOAD, fields)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: FBT001 - the hook's signature
        """Begin to unload a model."""
        self._ask("model.unload", _UNLOAD, {"name": model_name, "dependents": "1" if unload_dependents else ""})

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model can infer."""
        return self._ask("model.ready", _READY, {"name": model_name, "version": model_version}) == "1"

    def _ask(self, what: str, prefix: str, fields: Mapping[str, str]) -> str:
        try:
            return self._asking.ask(what, fields)
        except RefusedError as error:
            raise TritonModelException(f"{prefix}: {error.message}") from None


server = Control()
"""The hook; looked up at every call, so assign to `naiad_stub.control.server`."""


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Have the server load a model and wait until it is loaded.

    Args:
        model_name: The model.
        config: A configuration as JSON, in place of the model's own.
        files: Contents by `file:<version>/<path>`, in place of the model's own files.
    """
    model_name = text("load_model takes model_name as str", model_name)
    config = text("load_model takes config as str", config)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    rule = "load_model takes files as bytes by their paths as str"
    for content in (files or {}).values():
        if not isinstance(content, bytes):
            raise TypeError(f"{rule}, got {type(content).__name__} in place of bytes")
    named = {text(f"{rule}: a path", path): content for path, content in files.items()} if files is not None else None
    server.load_model(model_name, config, named)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:  # noqa: FBT001, FBT002
    """Have the server begin to unload a model; does not wait until it is unloaded."""
    model_name = text("unload_model takes model_name as str", model_name)
    if not isinstance(unload_dependents, (bool, int)):
        raise TypeError(f"unload_model takes unload_dependents as bool, got {type(unload_dependents).__name__}")
    server.unload_model(model_name, bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Ask the server whether a model can infer; an empty version is the latest one."""
    model_name = text("is_model_ready takes model_name as str", model_name)
    model_version = text("is_model_ready takes model_version as str", model_version)
    return server.is_model_ready(model_name, model_version)


def _refuse(prefix: str, model_name: str) -> NoReturn:
    """Say that there is no server."""
    raise TritonModelException(f"{prefix}: there is no server here that could answer for '{model_name}'")
