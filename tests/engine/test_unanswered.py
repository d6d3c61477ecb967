"""What a guest leaves unanswered is answered by the host."""

from dataclasses import dataclass

from naiad.config.model import freeze
from naiad.config.text import parse_text
from naiad.engine.version import ModelVersion
from naiad.lifecycle.restart import RestartPolicy
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.workers.worker import Batch

CONFIG = """
name: "m" backend: "python"
input { name: "IN" data_type: TYPE_UINT8 dims: 1 }
output { name: "OUT" data_type: TYPE_UINT8 dims: 1 }
"""


@dataclass(frozen=True)
class Spec:
    name: str


@dataclass(frozen=True)
class Guest:
    spec: Spec


class Sent:
    def __init__(self):
        self.calls = []

    def send(self, response, final):
        self.calls.append((response, final))


def test_request_of_a_batch_that_is_done_without_its_answer_gets_an_error():
    """A custom stub may forget one; its client must not wait for ever."""
    version = ModelVersion(freeze(parse_text(CONFIG, "config.pbtxt")), 1, [], RestartPolicy())
    sink = Sent()
    key = version.submit(InferRequest("m", 1, [InputTensor("IN", Datatype.UINT8, (1,), b"1")]), sink)

    version.batch_done(Guest(Spec("m_0")), Batch([key], -1, 0), 0, 1)

    ((response, final),) = sink.calls
    assert final
    assert response.error.message == "'m_0' ended the execution without a response"
