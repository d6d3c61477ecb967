"""What the guest keeps of the answers to a request, whichever threads give them."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
from naiad_stub.exchange import Batch, Ticket
from naiad_stub.sender import Sending


@pytest.fixture
def eager_threads():
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_that_answer_at_once_share_one_account(eager_threads):
    """A second one, once dropped, would end the request without its answers."""
    sending = Sending(SimpleNamespace(handlers={}), None, "m", print, decoupled=True)
    start = threading.Barrier(4)
    for key in range(300):
        ticket = Ticket(key, (), Batch(key, -1, None))
        found: list[object] = []

        def look(ticket: Ticket = ticket, found: list[object] = found) -> None:
            start.wait()
            found.append(sending.answers_of(ticket))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {id(answers) for answers in found} == {id(ticket.answers)}
