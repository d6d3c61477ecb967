"""Calls made on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Call a function on a thread of its own, which ends with the tests: one of a pool would keep them from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
