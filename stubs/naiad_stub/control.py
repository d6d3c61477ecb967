"""`pb_utils.load_model`, `unload_model` and `is_model_ready`: a model controls other models of the server.

Texts are the reference's (PB src/model_loader.cc).
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from naiad_stub import runtime, wire
from naiad_stub.arguments import text
from naiad_stub.exceptions import TritonModelException
from naiad_stub.queries import QueryError, ServerQueries

_LOAD = "Failed to load model"
_UNLOAD = "Failed to unload model"
_READY = "Failed to check model readiness"
_MAX_BYTES = wire.MAX_QUERY - (1 << 20)


class HostControl(runtime.ModelControl):
    """Controls models through queries to the server."""

    def __init__(self, queries: ServerQueries) -> None:
        self._queries = queries

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, Any]]) -> None:
        """Load a model and wait until it is loaded."""
        fields = {"name": model_name, "config": config}
        for path, content in (files or {}).items():
            # surrogateescape: the fields of a query are strings, and so any bytes survive the way there and back.
            fields[f"file {path}"] = content.decode("utf-8", "surrogateescape")
        size = sum([len(content) for content in (files or {}).values()], len(config))
        if size > _MAX_BYTES:
            raise TritonModelException(
                f"{_LOAD}: configuration and files of '{model_name}' have {size} bytes together, at most {_MAX_BYTES} "
                "can be handed over; put the files into the model repository"
            )
        self._query("model.load", _LOAD, fields)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:  # noqa: FBT001 - the API's signature
        """Begin to unload a model."""
        self._query("model.unload", _UNLOAD, {"name": model_name, "dependents": "1" if unload_dependents else ""})

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model accepts requests."""
        return self._query("model.ready", _READY, {"name": model_name, "version": model_version}) == "1"

    def _query(self, subject: str, prefix: str, fields: Mapping[str, str]) -> str:
        try:
            return self._queries.send(subject, fields)
        except QueryError as error:
            raise TritonModelException(f"{prefix}: {error.message}") from None


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
    runtime.current().control.load_model(model_name, config, named)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:  # noqa: FBT001, FBT002 - the API's signature
    """Have the server begin to unload a model; returns before it is unloaded."""
    model_name = text("unload_model takes model_name as str", model_name)
    if not isinstance(unload_dependents, (bool, int)):
        raise TypeError(f"unload_model takes unload_dependents as bool, got {type(unload_dependents).__name__}")
    runtime.current().control.unload_model(model_name, bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model of the server accepts requests; an empty version is the latest one."""
    model_name = text("is_model_ready takes model_name as str", model_name)
    model_version = text("is_model_ready takes model_version as str", model_version)
    return runtime.current().control.is_model_ready(model_name, model_version)
