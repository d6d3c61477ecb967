"""Requests to paths of an engine's own server, for models whose `model.json` names them in `engine_paths`.

Only the paths that are listed here can be named: none of an engine's administration.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence, Tuple

from vllm_like import json_text, values
from vllm_like.engines.base import CallerError, NotFoundError, PathRequest

_TRANSCRIPTIONS = "/v1/audio/transcriptions"
PATHS: Mapping[str, Tuple[str, ...]] = {
    "xllamacpp": ("/apply-template", "/completion", "/infill", _TRANSCRIPTIONS),
    "vllm": ("/classify", "/pooling", "/score", _TRANSCRIPTIONS),
    "onnx": (),
}
_PARTS = 3
_JSON = "application/json"
_LINK = "url"
_EMBEDDED = "data:"


def read_setting(given: Any, engine: str) -> Tuple[str, ...]:
    """The value of `engine_paths`."""
    if not isinstance(given, list) or not all(path in PATHS[engine] for path in given):
        known = ", ".join(PATHS[engine]) or "none"
        raise ValueError(
            f"'engine_paths' in {values.FILE} is {json.dumps(given)}; it must be a list of paths that the engine "
            f"{engine} has: {known}"
        )
    return tuple(given)


def read_request(parts: Sequence[bytes], allowed: Sequence[str]) -> PathRequest:
    """The request in the input `path_request`: path, content type and body."""
    if len(parts) != _PARTS:
        raise CallerError(f"input 'path_request' must have {_PARTS} elements: path, content type and body")
    path, content_type = (part.decode("utf-8", "replace") for part in parts[:2])
    if path not in allowed:
        raise NotFoundError(f"this model does not serve {path}, which 'engine_paths' in its model.json must name")
    document: Any = {}
    body = parts[2]
    if path != _TRANSCRIPTIONS:
        document = json_text.parse(parts[2].decode("utf-8", "replace"), "the body")
        if not isinstance(document, dict):
            raise CallerError("the body must be a JSON object")
        _check_links(document)
        content_type = _JSON
        body = json.dumps(document).encode()  # what was checked: another parser may read the client's JSON differently
    return PathRequest(path, content_type, body, document)


def _check_links(document: Any) -> None:
    """Reject links: an engine would fetch what they name, with the rights of this machine."""
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            names = ("data",) if one.get("data_format") == _LINK else ()  # for plugins of vLLM
            for name, value in one.items():
                is_link = isinstance(value, str) and (name.lower().endswith(_LINK) or name in names)
                if is_link and not value.startswith(_EMBEDDED):
                    raise CallerError(f"links are not fetched: '{name}' must be a data URL, not '{value[:80]}'")
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
