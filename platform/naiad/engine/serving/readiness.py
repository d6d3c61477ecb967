"""Readiness as models report it themselves (their method `is_ready`), and which instances make no progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from naiad.core.errors import NotReadyError, fresh
from naiad.engine.served import LoadedVersion
from naiad.engine.serving.replicas import Replicas
from naiad.protocol.metadata import InstanceStatus

logger = logging.getLogger("naiad.engine")

_NAMED = 3  # how many instances a sentence names


@runtime_checkable
class HasReplicas(Protocol):
    """A version that may have instances in other processes."""

    replicas: Replicas | None


@runtime_checkable
class HasMembers(Protocol):
    """An ensemble."""

    def members(self) -> Iterable[LoadedVersion | None]:
        """The versions of the models of its steps; None for one that is missing."""


async def are_ready(versions: Iterable[LoadedVersion]) -> bool:
    """Whether all guests of *versions* report that they are ready; guests whose model has no `is_ready` count as ready.

    Returns without waiting if no model has the method.
    """
    versions = list(versions)
    # As a dict: an ensemble's instances are those of its members, so a worker may come up more than once.
    workers = dict.fromkeys(instance.worker for version in versions for instance in version.instances)
    queries: list[Awaitable[object]] = [
        worker.readiness.ask() for worker in workers if worker is not None and worker.readiness is not None
    ]
    for replicas in dict.fromkeys(replicas for version in versions for replicas in _replicas_of(version)):
        queries += replicas.queries()
    if not queries:
        return True
    answers = await asyncio.gather(*queries, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, NotReadyError):
            logger.debug("%s", answer.message)
        elif isinstance(answer, BaseException):
            raise fresh(answer)
    return not any(answers)


def describe_stalls(statuses: Iterable[InstanceStatus]) -> str:
    """Of which instances `execute` makes no progress, as a sentence; empty for none."""
    stalled = sorted((each for each in statuses if each.stalled_seconds), key=lambda each: -each.stalled_seconds)
    named = [
        f"execute of '{each.name}' (pid {each.pid}) has made no progress for {each.stalled_seconds / 60:.0f} min"
        for each in stalled[:_NAMED]
    ]
    more = len(stalled) - len(named)
    return "; ".join([*named, *([f"so have {more} more instances"] if more else [])])


def stalls_of(version: LoadedVersion) -> str:
    """The same of a loaded version, or of the models of an ensemble, in all processes."""
    config = version.config
    statuses = [instance.status(config.name, version.version) for instance in version.instances]
    return describe_stalls([*statuses, *(each for replicas in _replicas_of(version) for each in replicas.statuses())])


def _replicas_of(version: LoadedVersion) -> Iterator[Replicas]:
    if isinstance(version, HasMembers):
        for member in version.members():
            if member is not None:
                yield from _replicas_of(member)
    elif isinstance(version, HasReplicas) and version.replicas is not None:
        yield version.replicas
