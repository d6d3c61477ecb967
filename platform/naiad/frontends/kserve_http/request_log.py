"""The line that the verbose log has for each request, as in the reference (SRV src/http_server.cc)."""

from __future__ import annotations

import logging

from naiad.frontends.http1.messages import HttpRequest

# The reference prints its HTTP library's number of the method. Tools that read its log rely on it.
_NAMES = "GET HEAD POST PUT DELETE MKCOL COPY MOVE OPTIONS PROPFIND PROPPATCH LOCK UNLOCK TRACE CONNECT PATCH"
_METHODS = {name: number for number, name in enumerate(_NAMES.split())}
_UNKNOWN = len(_METHODS)


def log_request(logger: logging.Logger, request: HttpRequest, status: int = 0) -> None:
    """Log that a request was received, or (with a *status*) that its response is an error."""
    method, path = _METHODS.get(request.method, _UNKNOWN), request.path.decode("latin-1")
    if status:
        logger.debug("HTTP error: %d %s - %d", method, path, status)
    else:
        logger.debug("HTTP request: %d %s", method, path)
