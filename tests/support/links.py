"""What one end of a link holds of requests and of the other process's memory."""

from __future__ import annotations

from typing import NamedTuple

from naiad.server.processes.request_link import RequestLink

__all__ = ["HeldCounts", "held_by"]


class HeldCounts(NamedTuple):
    """How much a process holds at a moment."""

    requests: int  # without their last response
    copied: int  # those of them whose inputs are still copied, or that follow such a request
    abandoned: int  # those of them whose further responses are dropped
    routes: int  # versions that requests can be sent to without asking the other process
    templates: int  # of requests, and layout keys that they are found by
    layouts: int  # of responses
    segments: int  # of guests that are mapped
    input_bytes: int  # in the parts of segments


def held_by(link: RequestLink) -> HeldCounts:
    return HeldCounts(
        requests=len(link._sent),
        copied=len(link._copied),
        abandoned=sum(opened.drops_responses for opened in link._sent.values()),
        routes=len(link.routes),
        templates=link._template_count,
        layouts=len(link._layouts),
        segments=len(link._segments),
        input_bytes=sum(part.in_use for part in link._parts.values()),
    )
