"""Sends a response to its sink, so that a sink that fails leaves no client waiting and disturbs no other request."""

from __future__ import annotations

import contextlib
import logging

from naiad.core.errors import NaiadError, unexpected_error, without_frames
from naiad.protocol.inference import InferResponse, RejectableSink, Sink

logger = logging.getLogger("naiad.engine")


def send_safely(sink: Sink, response: InferResponse | None, final: bool, of: tuple[str, int, str]) -> NaiadError | None:  # noqa: FBT001 - as `Sink.send`
    """Send a response as `Sink.send`. If the sink fails, end it with an error; return that error then."""
    try:
        sink.send(response, final)
    except Exception as error:  # noqa: BLE001 - a sink may raise anything; it is logged
        return end_failed_sink(sink, error, of)
    return None


def fail_sink(sink: Sink, error: NaiadError, of: tuple[str, int, str]) -> None:
    """End a sink with *error* as its last response. *of* is as for `send_safely`."""
    send_safely(sink, InferResponse(*of, error=without_frames(error)), True, of)


def reject_sink(sink: Sink, error: NaiadError, of: tuple[str, int, str] = ("", -1, "")) -> None:
    """End a sink whose request was not accepted: see `RejectableSink`. *of* is as for `send_safely`."""
    if isinstance(sink, RejectableSink):
        sink.reject(error)
    else:
        fail_sink(sink, error, of)


def end_failed_sink(sink: Sink, error: Exception, of: tuple[str, int, str]) -> NaiadError:
    """End a sink whose `send` has raised *error*, with the error that is returned. Call it while *error* is handled."""
    name, version, request_id = of
    logger.error("cannot pass on a response of '%s'", name, exc_info=error)
    problem = unexpected_error(f"pass on a response of '{name}'", error)
    with contextlib.suppress(Exception):  # it was logged, and nothing else can reach the client
        sink.send(InferResponse(name, version, request_id, error=problem), True)
    return problem
