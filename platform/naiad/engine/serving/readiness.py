"""Whether models say of themselves that they are ready (`is_ready` of a model)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from naiad.engine.served import ServedVersion
from naiad.errors import NotReadyError

logger = logging.getLogger("naiad.engine")


async def are_ready(versions: Iterable[ServedVersion]) -> bool:
    """Ask every guest of *versions* whose model wants to be asked; nothing waits where none does."""
    # An ensemble's instances are those of its models, too.
    workers = dict.fromkeys(instance.worker for version in versions for instance in version.instances)
    questions = [worker.readiness.ask() for worker in workers if worker is not None and worker.readiness is not None]
    if not questions:
        return True
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, NotReadyError):
            logger.debug("%s", answer.message)
        elif isinstance(answer, BaseException):
            raise answer
    return not any(answers)
