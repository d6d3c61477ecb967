"""The line of a verbose log about each request, as the reference writes it (SRV src/http_server.cc)."""

from __future__ import annotations

import logging

from naiad.frontends.http1.messages import HttpRequest

__all__ = ["log_request"]

# The reference prints the numbers that its HTTP library has for methods, and so look those who read its logs.
_NAMES = "GET HEAD POST PUT DELETE MKCOL COPY MOVE OPTIONS PROPFIND PROPPATCH LOCK UNLOCK TRACE CONNECT PATCH"
_METHODS = {name: number for number, name in enumerate(_NAMES.split())}
_UNKNOWN = len(_METHODS)


def log_request(logger: logging.Logger, request: HttpRequest, status: int = 0) -> None:
    """Log a request, or with a *status* that it was answered with an error."""
    method, path = _METHODS.get(request.method, _UNKNOWN), request.path.decode("latin-1")
    if status:
        logger.debug("HTTP error: %d %s - %d", method, path, status)
    else:
        logger.debug("HTTP request: %d %s", method, path)
