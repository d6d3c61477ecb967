"""Models that run code which calls other models, and requests to them."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from typing import Any

from serving.written import evaluate_over, write_model
from support.threads import in_thread

PARENT = "__import__('os').getppid()"
RING = (
    r"Model (\w+) - Error when running inference: the call can never be answered, as all instances that could wait on "
    r"each other: '(.*)'\. "
)
HELPERS = """
import asyncio, threading
def request_to(model, code, outputs=["OUT"], **more):
    array = np.array([code.encode()], object) if isinstance(code, str) else code
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs,
                                     inputs=[pb_utils.Tensor("CODE", array)], **more)
def value_of(response):
    if response.has_error():
        return response.error().message()
    return response.output_tensors()[0].as_numpy()[0].decode()
def call(model, code, *outputs, **more):
    return value_of(request_to(model, code, *outputs, **more).exec())
async def awaited(model, code):
    return value_of(await request_to(model, code).async_exec())
def results_of(model, code):
    return [value_of(each) for each in request_to(model, code).exec(decoupled=True) if each.output_tensors()]
def meet(folder, name, count):
    open(os.path.join(folder, name), "w").close()
    wait_for(folder, count)
def wait_for(folder, count):
    deadline = time.monotonic() + 60
    while len(os.listdir(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(folder)
        time.sleep(0.001)
"""


def write_runner(models: Path, name: str, config: str = "") -> None:
    """A model that runs the code it is sent, which may use `HELPERS`."""
    file = write_model(models, name, config=config)
    file.write_text(HELPERS + file.read_text())


def ask(connection: http.client.HTTPConnection, code: str, model: str = "a") -> Any:
    """The value of an expression, or the text of what it raised."""
    text = evaluate_over(connection, model, code)
    try:
        return eval(text)
    except (SyntaxError, NameError):
        return text


def run_together(parts: dict[str, tuple[http.client.HTTPConnection, str, str]]) -> dict[str, Any]:
    """What each of the named requests, a connection with a model and code, is answered with."""
    asked = {name: in_thread(ask, connection, code, model) for name, (connection, model, code) in parts.items()}
    return {name: each.result(120) for name, each in asked.items()}


def rings(found: object) -> list[set[str]]:
    """The instances of each cycle that is named in what requests were answered with."""
    return [set(names.split("' -> '")) for _, names in re.findall(RING, str(found).replace("\\", ""))]
