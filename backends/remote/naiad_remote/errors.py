"""Why a call to a target failed, and what follows from it. Pure values: the cause decides about retry and breaker."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """What ended a call without a response."""

    CONNECT = "connect"
    """No connection, so the target has received nothing."""
    TLS = "tls"
    """The TLS handshake failed: the target has received nothing."""
    LOST = "lost"
    """The connection ended before the response was complete: the target may have executed the request."""
    UNAVAILABLE = "unavailable"
    """The target, or a proxy before it, responded that it cannot serve now."""
    TIMEOUT = "timeout"
    """No response within the configured limit."""
    REQUEST_TIMEOUT = "request_timeout"
    """No response within the request's own, shorter timeout: this says nothing about the target's health."""
    ERROR = "error"
    """The target responded with an error of the request or of its model."""
    MALFORMED = "malformed"
    """The target's response does not follow the protocol."""
    CANCELLED = "cancelled"
    """The client has cancelled the request or disconnected."""
    BLOCKED = "blocked"
    """No target was called: all breakers are open, or the chain of calls returns here."""


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
    """A call that failed.

    Attributes:
        cause: What ended it.
        text: One sentence for the client; it names the target.
        code: Name of a code of `TritonError`.
    """

    def __init__(self, cause: Cause, text: str, code: str = "UNAVAILABLE") -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text
        self.code = code

    @property
    def is_unhealthy(self) -> bool:
        """Whether the target's breaker counts it as a failure."""
        return self.cause in _UNHEALTHY

    @property
    def is_neutral(self) -> bool:
        """Whether it says nothing about the target."""
        return self.cause in _NEUTRAL


def may_retry(error: CallError, *, idempotent: bool, has_responded: bool) -> bool:
    """Whether a call may be repeated after *error*.

    Args:
        error: How the call failed.
        idempotent: Whether the model may execute a request twice.
        has_responded: Whether a response of the call has been passed on to the client.
    """
    if has_responded:
        return False
    return error.cause in _NEVER_RECEIVED or (idempotent and error.cause in _RETRIED_IF_IDEMPOTENT)
