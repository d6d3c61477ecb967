"""What is held of a response until it is whole, counted in the memory of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from naiad.frontends.callbacks import do_nothing
from naiad.frontends.request_budget import COLLECTING, Charge, RequestBudget

_FEW = 1 << 16  # bytes that are not counted, as those of short bodies: the limit on connections bounds them


@dataclass(slots=True, eq=False)
class CollectedBytes:
    """Counts the bytes of one response while it is collected. A `Receiver` of the budget."""

    _budget: RequestBudget
    _on_refused: Callable[[str], None]  # gets the reason to drop the response
    _on_room: Callable[[], None] = do_nothing  # called at the end of a stop
    _charge: Charge | None = None
    is_stopped: bool = False

    def count(self, total: int) -> None:
        """*total* bytes are held now. `on_refused` may be called before this returns."""
        if self._charge is None:
            if total < _FEW:
                return
            self._charge = self._budget.open(self, COLLECTING)
        charge = self._charge
        if total > charge.size and not charge.add(total - charge.size):
            self.is_stopped = self._charge is not None

    def release(self) -> None:
        charge, self._charge = self._charge, None
        self.is_stopped = False
        # They refer to the response, which refers to this object: else only the garbage collector would free both.
        self._on_refused = self._on_room = do_nothing
        if charge is not None:
            charge.release()

    def resume_receiving(self) -> None:
        self.is_stopped = False
        self._on_room()

    def refuse(self, reason: str) -> None:
        on_refused = self._on_refused
        self.release()
        on_refused(reason)
