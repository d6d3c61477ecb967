"""Servers of the models that run a test's own code, ours or the reference.

With NAIAD_REFERENCE set to the reference's `tritonserver`, the tests that use this ask that one instead of ours: so
what they expect was found, and can be found again.
"""

from __future__ import annotations

import json
import os
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving.repositories import repository
from serving.written import send_code
from support.server import TRITONSERVER, ServerProcess
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

REFERENCE = os.environ.get("NAIAD_REFERENCE", "")
ours = pytest.mark.skipif(bool(REFERENCE), reason="the reference hangs, dies or answers otherwise")


@contextmanager
def serving(work: Path, *names: str, **config: str) -> Iterator[ServerProcess]:
    """A server of the sample models *names*."""
    models = repository(work / "models", names, **config)
    with ServerProcess(models, "--log-verbose=0", work=work, command=[REFERENCE or TRITONSERVER]) as server:
        yield server


def run(server: ServerProcess, model: str, code: str) -> Any:
    """What *model* answers to a request that brings *code* along: the value, or the text of the error."""
    reply = send_code(server, model, textwrap.dedent(code))
    if reply.status != 200:
        return f"{reply.status}: {reply.error}"
    return json.loads(reply.json()["outputs"][0]["data"][0])


def code_input(code: str) -> InferInput:
    tensor = InferInput("CODE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([textwrap.dedent(code).encode()], np.object_))
    return tensor


class Stream:
    """One gRPC stream, and what came on it."""

    def __init__(self, server: ServerProcess) -> None:
        self.events: list[Any] = []
        self._changed = threading.Condition()
        self._client = InferenceServerClient(server.grpc_url)
        self._client.start_stream(self._take)

    def __enter__(self) -> Stream:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, cancel: bool = False) -> None:
        self._client.stop_stream(cancel)
        self._client.close()

    def send(self, model: str, code: str, request_id: str = "") -> None:
        """Send one request; empty final marks are wanted."""
        self._client.async_stream_infer(
            model, [code_input(code)], request_id=request_id, enable_empty_final_response=True
        )

    def wait(self, condition: Callable[[list[Any]], object], what: str, timeout: float = 60) -> list[Any]:
        """Until the events are as wanted."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.events), timeout), f"no {what}: {self.events}"
            return list(self.events)

    def _take(self, result: Any, error: InferenceServerException | None) -> None:
        with self._changed:
            self.events.append(_event(result, error))
            self._changed.notify_all()


def _event(result: Any, error: InferenceServerException | None) -> Any:
    if error is not None:
        return f"error: {error.message()}"
    response = result.get_response()
    final = response.parameters["triton_final_response"].bool_param
    if not response.outputs:
        return "end" if final else "empty"
    value = json.loads(result.as_numpy("OUT")[0])
    return {"last": value} if final else value


def stream(server: ServerProcess, model: str, code: str) -> list[Any]:
    """What a decoupled model answers: each value, errors as text, "end" for an empty final mark.

    An error does not say whether more will come; so after one that is meant to be the last, say `# error ends it`.
    """
    with Stream(server) as opened:
        opened.send(model, code)
        ends = is_error if "# error ends it" in code else is_end
        return opened.wait(lambda events: events and ends(events[-1]), "end")


def is_end(event: Any) -> bool:
    return event == "end" or (isinstance(event, dict) and "last" in event)


def is_error(event: Any) -> bool:
    return isinstance(event, str) and event.startswith("error: ")
