"""A model that says what batch each request came in, held up and let go by files; and requests to it, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.model_files import write_files
from support.server import Reply, ServerProcess
from support.threads import in_thread
from support.waiting import until

MODEL = """
'''OUT: number of the execute call, its requests, its rows, and the request's place; waits while `gate` is there.'''

def initialize(self, args):
    self.calls = 0
    self.folder = args["model_repository"]

def execute(self, requests):
    self.calls += 1
    open(os.path.join(self.folder, "began-%d" % self.calls), "w").close()
    while os.path.exists(os.path.join(self.folder, "gate")):
        time.sleep(0.01)
    sizes = [pb_utils.get_input_tensor_by_name(request, "IN").shape()[0] for request in requests]
    responses = []
    for place, size in enumerate(sizes):
        rows = np.array([[self.calls, len(requests), sum(sizes), place]] * size, dtype=np.int32)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", rows)]))
    return responses
"""


class BatchModel:
    """The model in a repository, its gate at first open."""

    def __init__(self, repository: Path, name: str, config: str, dims: str = "1") -> None:
        self.name = name
        self.folder = repository / name
        text = (
            f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }} '
            f'output {{ name: "OUT" data_type: TYPE_INT32 dims: 4 }} instance_group {{ kind: KIND_CPU }} {config}'
        )
        write_files(repository, name, text, MODEL)

    def close_gate(self) -> None:
        """Every execute call waits from now on."""
        (self.folder / "gate").touch()

    def open_gate(self) -> None:
        """They go on."""
        (self.folder / "gate").unlink()

    def wait_for_call(self, number: int) -> None:
        """Wait until execute was called so often."""
        until((self.folder / f"began-{number}").exists, f"execute call {number} of '{self.name}'")


class Request:
    """A request under way on a thread of its own."""

    def __init__(self, server: ServerProcess, model: BatchModel, rows: int = 1, width: int = 1, **parameters: Any):
        tensor = {"name": "IN", "datatype": "FP32", "shape": [rows, width], "data": [0.0] * (rows * width)}
        document = {"id": "7", "inputs": [tensor], "parameters": parameters}
        self._asked = in_thread(server.post, f"/v2/models/{model.name}/infer", document)

    @property
    def is_answered(self) -> bool:
        """Whether the reply is there."""
        return self._asked.done()

    @property
    def reply(self) -> Reply:
        """The reply, once it is there."""
        return self._asked.result(60)

    @property
    def batch(self) -> list[int]:
        """Number of the execute call, its requests, its rows, the request's place in it."""
        assert self.reply.status == 200, self.reply.body
        return list(self.reply.json()["outputs"][0]["data"][:4])

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and text of an error."""
        return self.reply.status, self.reply.error


def statistics(server: ServerProcess, model: BatchModel) -> dict[str, Any]:
    """The model's statistics."""
    return server.get(f"/v2/models/{model.name}/stats").json()["model_stats"][0]


def pending(server: ServerProcess, model: BatchModel) -> int:
    """How many requests wait in the queue, as the metrics say."""
    return int(sum(server.samples(f'nv_inference_pending_request_count{{model="{model.name}"').values()))


def wait_for_pending(server: ServerProcess, model: BatchModel, number: int) -> None:
    """Wait until so many requests wait in the queue."""
    until(lambda: pending(server, model) == number, f"{number} waiting requests of '{model.name}'")
