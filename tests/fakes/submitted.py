"""A request in flight, in tests of those who submit it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Submitted"]


def _nothing(_: Submitted) -> None:
    pass


class Submitted:
    """Implements `naiad.protocol.inference.SubmittedRequest`; keeps what is done with it.

    Attributes:
        number: Which one it is.
        acts: What was done with it, in order.
    """

    def __init__(self, number: int = 0, on_act: Callable[[Submitted], None] = _nothing) -> None:
        """Request *number*; *on_act* is called whenever something was done with it."""
        self.number = number
        self.acts: list[tuple[str, bool | int]] = []
        self._on_act = on_act

    @property
    def is_cancelled(self) -> bool:
        return any(name == "cancel" for name, _ in self.acts)

    @property
    def confirmed(self) -> int:
        """Number of responses that were confirmed."""
        return sum(count for name, count in self.acts if name == "confirm_sent")

    def cancel(self, *, drops_responses: bool = True) -> None:
        self._note("cancel", drops_responses)

    def drop_responses(self) -> None:
        self._note("drop_responses", True)

    def confirm_sent(self, count: int = 1) -> None:
        self._note("confirm_sent", count)

    def _note(self, name: str, value: bool | int) -> None:
        self.acts.append((name, value))
        self._on_act(self)
