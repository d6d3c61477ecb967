"""What models can use of the server: calls to other models, queries, notifications."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from naiad.core.errors import NaiadError, unexpected_error
from naiad.engine.calls.model_calls import ModelCalls
from naiad.engine.registry import Registry
from naiad.guests.worker import Worker

logger = logging.getLogger("naiad.engine")

# Takes the worker, the number of its query and the fields; responds through `Worker.reply`, now or later.
QueryHandler: TypeAlias = Callable[[Worker, int, Mapping[str, str]], None]
NotificationHandler: TypeAlias = Callable[[Worker, Mapping[str, str]], None]


class ModelServices:
    """Implements `naiad.guests.worker.GuestServices`; one for all guests of the server."""

    def __init__(self, registry: Registry) -> None:
        self.calls = calls = ModelCalls(registry)
        self.query_handlers: dict[str, QueryHandler] = {}
        self.notification_handlers: dict[str, NotificationHandler] = {}
        self.exit_handlers: list[Callable[[Worker], None]] = [calls.on_worker_exit]
        self.on_call = calls.on_call
        self.is_calling = calls.is_calling
        self.on_results_consumed = calls.on_results_consumed
        self.on_calls_cancelled = calls.on_calls_cancelled
        self.on_results_discarded = calls.on_results_discarded

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        handler = self.query_handlers.get(what)
        try:
            if handler is None:
                raise NaiadError(f"cannot answer a model's query '{what}': this server does not support it")
            handler(worker, number, fields)
        except NaiadError as error:
            worker.reply(number, error=error)
        except Exception as error:  # a thread of the model waits for the reply
            logger.exception("cannot answer the query '%s' of '%s'", what, worker.spec.name)
            worker.reply(number, error=unexpected_error("answer a query of a model", error))

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        handler = self.notification_handlers.get(what)
        if handler is not None:
            handler(worker, fields)

    def on_worker_exit(self, worker: Worker) -> None:
        for handler in self.exit_handlers:
            handler(worker)
