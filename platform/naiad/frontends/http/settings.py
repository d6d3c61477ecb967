"""The endpoints of settings that change while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad.frontends import log_settings
from naiad.frontends.http.infer_request import parse_json
from naiad.frontends.http.members import boolean, text, unsigned
from naiad.frontends.http.messages import Request, json_response
from naiad.frontends.log_settings import Log
from naiad.protocol.inference import Buffer


def answer_logging(request: Request, log: Log) -> Sequence[Buffer]:
    """Change the log's settings where the request is a POST; answer with them all.

    Raises:
        NaiadError: If a setting cannot be changed so.
    """
    if request.method == "POST":
        wanted = {
            name: _READERS[log_settings.KINDS[name]](value, "")
            for name, value in parse_json(request.body).items()
            if name in log_settings.KINDS and (value is not None or name == "log_file")
        }
        log.change(log_settings.changed(log.settings, wanted))
    return json_response(log_settings.document(log.settings))


_READERS: dict[type, Callable[[object, str], str | bool | int]] = {bool: boolean, int: unsigned, str: text}
