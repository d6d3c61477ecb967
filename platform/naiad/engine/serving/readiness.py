"""Readiness as models report it themselves (their method `is_ready`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from naiad.core.errors import NotReadyError, fresh
from naiad.engine.served import LoadedVersion
from naiad.engine.serving.branches import Branches

logger = logging.getLogger("naiad.engine")


@runtime_checkable
class HasBranches(Protocol):
    """A version that may have instances in other processes."""

    branches: Branches | None


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
    for branches in dict.fromkeys(branches for version in versions for branches in _branches_of(version)):
        queries += branches.queries()
    if not queries:
        return True
    answers = await asyncio.gather(*queries, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, NotReadyError):
            logger.debug("%s", answer.message)
        elif isinstance(answer, BaseException):
            raise fresh(answer)
    return not any(answers)


def _branches_of(version: LoadedVersion) -> Iterator[Branches]:
    """The instances of a version, or of the models of an ensemble, in other processes."""
    if isinstance(version, HasMembers):
        for member in version.members():
            if member is not None:
                yield from _branches_of(member)
    elif isinstance(version, HasBranches) and version.branches is not None:
        yield version.branches
