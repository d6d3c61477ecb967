"""Responses reach their sink, and a sink that fails gets an error as its last response."""

from __future__ import annotations

from typing import Any

from naiad.core.errors import Code
from naiad.protocol.delivery import send_safely
from naiad.protocol.inference import InferResponse

RESPONSE = InferResponse("m", 3, "id")


class Sink:
    """Fails for the first *failures* responses."""

    def __init__(self, failures: int = 0) -> None:
        self.sent: list[tuple[Any, bool]] = []
        self._failures = failures

    def send(self, response: InferResponse | None, final: bool) -> None:
        if self._failures:
            self._failures -= 1
            raise ValueError("closed")
        self.sent.append((response, final))


def test_a_response_is_sent_as_it_is():
    sink = Sink()
    assert send_safely(sink, RESPONSE, False, ("m", 3, "id")) is None
    assert send_safely(sink, None, True, ("m", 3, "id")) is None
    assert sink.sent == [(RESPONSE, False), (None, True)]


def test_a_sink_that_fails_gets_the_error_as_its_last_response(caplog):
    sink = Sink(failures=1)
    error = send_safely(sink, RESPONSE, False, ("m", 3, "id"))
    assert error.code is Code.INTERNAL
    assert "pass on a response of 'm'" in str(error)
    [(response, final)] = sink.sent
    assert final
    assert (response.model_name, response.model_version, response.request_id) == ("m", 3, "id")
    assert response.error is error
    assert response.outputs == ()
    [record] = caplog.records
    assert record.getMessage() == "cannot pass on a response of 'm'"
    assert str(record.exc_info[1]) == "closed"


def test_a_sink_that_takes_no_error_either_disturbs_nobody(caplog):
    sink = Sink(failures=2)
    assert "pass on a response of 'm'" in str(send_safely(sink, RESPONSE, True, ("m", 3, "id")))
    assert sink.sent == []
    assert len(caplog.records) == 1
