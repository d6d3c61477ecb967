"""What models may want of the server: calls to other models, and answers to what they ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from naiad.engine.calls.model_calls import CallDesk
from naiad.engine.registry import Registry
from naiad.errors import NaiadError
from naiad.workers.worker import Worker

Answerer: TypeAlias = Callable[[Worker, int, Mapping[str, str]], None]
"""Takes the worker, the number of its question and the fields; answers through `Worker.reply`, now or later."""
Listener: TypeAlias = Callable[[Worker, Mapping[str, str]], None]


class ModelServices(CallDesk):
    """See `naiad.workers.worker.GuestServices`, which this implements.

    Attributes:
        answerers: Who answers what models ask, by what is asked.
        listeners: Who hears what models tell, by what is told.
        departures: Called with each guest that ends.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.answerers: dict[str, Answerer] = {}
        self.listeners: dict[str, Listener] = {"standstill": self.stood_still}
        self.departures: list[Callable[[Worker], None]] = []

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        """Pass a question on."""
        answerer = self.answerers.get(what)
        try:
            if answerer is None:
                raise NaiadError(f"this server does not know what a model asks for with '{what}'")
            answerer(worker, number, fields)
        except NaiadError as error:
            worker.reply(number, error=error)

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        """Pass something told on."""
        listener = self.listeners.get(what)
        if listener is not None:
            listener(worker, fields)

    def on_worker_exit(self, worker: Worker) -> None:
        """Void what the guest held and waited for."""
        super().on_worker_exit(worker)
        for departed in self.departures:
            departed(worker)
