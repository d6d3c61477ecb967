"""Which requests are equal to the response cache: the inputs decide, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.response_cache import digest_of
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor

TENSORS = st.builds(
    InputTensor,
    name=st.text(max_size=3),
    datatype=st.sampled_from([Datatype.INT8, Datatype.UINT8, Datatype.BYTES]),
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    data=st.binary(max_size=4),
)
INPUTS = st.lists(TENSORS, max_size=3, unique_by=lambda tensor: tensor.name)


def request(*inputs: InputTensor, **fields) -> InferRequest:
    return InferRequest("m", 1, inputs, **fields)


def tensor(name: str = "IN", datatype: Datatype = Datatype.INT8, shape=(4,), data: bytes = b"abcd") -> InputTensor:
    return InputTensor(name, datatype, shape, data)


@given(INPUTS, INPUTS, st.randoms())
def test_digests_are_equal_exactly_where_the_inputs_are(some, others, random):
    shuffled = random.sample(some, len(some))
    assert digest_of(request(*some)) == digest_of(request(*shuffled))
    by_name = sorted(some, key=lambda each: each.name)
    assert (digest_of(request(*some)) == digest_of(request(*others))) == (
        by_name == sorted(others, key=lambda each: each.name)
    )


@pytest.mark.parametrize(
    "other",
    [
        tensor(name="IN2"),
        tensor(datatype=Datatype.UINT8),
        tensor(shape=(2, 2)),
        tensor(data=b"abce"),
    ],
    ids=["name", "datatype", "shape", "bytes"],
)
def test_any_difference_of_an_input_makes_another_request(other):
    assert digest_of(request(tensor())) != digest_of(request(other))


def test_id_parameters_sequence_outputs_and_priority_make_no_difference():
    fields = {
        "request_id": "1",
        "parameters": {"a": 1},
        "correlation_id": 7,
        "flags": 3,
        "requested_outputs": ("OUT",),
        "priority": 1,
        "timeout_us": 5,
    }
    assert digest_of(request(tensor(), **fields)) == digest_of(request(tensor()))


def test_a_view_of_a_body_has_the_digest_of_its_bytes():
    body = memoryview(bytearray(b"..abcd.."))
    assert digest_of(request(tensor(data=body[2:6]))) == digest_of(request(tensor()))
