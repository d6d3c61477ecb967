"""Work that is done side by side, of which all has to end before a failure is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from naiad.core.errors import fresh


async def finish_all(work: Iterable[Awaitable[object]], *, except_for: tuple[type[BaseException], ...] = ()) -> None:
    """Wait until all of *work* has ended; then raise the first failure that is not *except_for*."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, except_for):
            raise fresh(result)
