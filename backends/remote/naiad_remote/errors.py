"""Why a call to a target failed, and what follows from it. Pure values: the cause decides about retry and breaker."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """What ended a call without a response."""

    CONNECT = "connect"  # no connection, so the target has received nothing
    TLS = "tls"  # the TLS handshake failed: the target has received nothing
    LOST = "lost"  # the connection ended before the response was complete: the target may have executed the request
    UNAVAILABLE = "unavailable"  # the target, or a proxy before it, responded that it cannot serve now
    TIMEOUT = "timeout"  # no response within the configured limit
    REQUEST_TIMEOUT = "request_timeout"  # no response within the request's own timeout: the target may be healthy
    ERROR = "error"  # the target responded with an error of the request or of its model
    MALFORMED = "malformed"  # the target's response does not follow the protocol
    CANCELLED = "cancelled"  # the client has cancelled the request or disconnected
    BLOCKED = "blocked"  # no target was called: all breakers are open, or the chain of calls returns here


_NEVER_RECEIVED = frozenset({Cause.CONNECT, Cause.TLS})
_RETRIED_IF_IDEMPOTENT = frozenset({Cause.LOST, Cause.UNAVAILABLE})
_UNHEALTHY = frozenset(
    {Cause.CONNECT, Cause.TLS, Cause.LOST, Cause.UNAVAILABLE, Cause.TIMEOUT, Cause.MALFORMED},
)
_NEUTRAL = frozenset({Cause.CANCELLED, Cause.REQUEST_TIMEOUT, Cause.BLOCKED})


def too_long(target: object, most: int) -> CallError:
    """The error for a response that is longer than the model accepts."""
    text = (
        f"cannot call {target}: its response has more than {most} bytes; ask it for fewer outputs, or raise the "
        "parameter 'max_response_mib'"
    )
    return CallError(Cause.ERROR, text, "INTERNAL")


class CallError(Exception):
    """A call that failed."""

    def __init__(self, cause: Cause, text: str, code: str = "UNAVAILABLE") -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text  # one sentence for the client; it names the target
        self.code = code  # name of a code of `TritonError`

    @property
    def is_unhealthy(self) -> bool:
        """Whether the target's breaker counts it as a failure."""
        return self.cause in _UNHEALTHY

    @property
    def is_neutral(self) -> bool:
        """Whether it says nothing about the target."""
        return self.cause in _NEUTRAL


def may_retry(error: CallError, *, idempotent: bool, has_responded: bool) -> bool:
    """Whether a call may be repeated after *error*: never once a response of it has been passed on to the client."""
    if has_responded:
        return False
    return error.cause in _NEVER_RECEIVED or (idempotent and error.cause in _RETRIED_IF_IDEMPOTENT)
