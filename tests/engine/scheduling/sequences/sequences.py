"""A sequence scheduler of a model `m`, and short words for what it is told and decides."""

from __future__ import annotations

from engine.scheduling.requests import Request
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.engine.scheduling.factory import sequence_scheduler_for
from naiad.engine.scheduling.interface import Rejection, RowDispatch

START, END = 1, 2
READY = """control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }"""


def config(text, max_batch_size=4):
    message = pb.ModelConfig(name="m", max_batch_size=max_batch_size)
    return freeze(text_format.Parse(text, message))


def scheduler(*instances, text="direct {}", size=4):
    made = sequence_scheduler_for(config(f"sequence_batching {{ {text} }}", size))
    for instance in instances:
        assert made.add_instance(instance) == []
    return made


def send(made, sequence, flags=0, name=None, now=0, **options):
    request = Request(name if name is not None else sequence, correlation_id=sequence, flags=flags, **options)
    return made.enqueue(request, now)


def rows(actions):
    """What is dispatched: instance and the names of its rows."""
    return [
        (action.instance, [row.item.name if row.item else None for row in action.rows])
        for action in actions
        if isinstance(action, RowDispatch)
    ]


def refused(actions):
    return [(action.item.name, action.error.message) for action in actions if isinstance(action, Rejection)]


def start_error(sequence):
    return (
        f"inference request for sequence {sequence} to model 'm' must specify the START flag on the first request "
        "of the sequence"
    )
