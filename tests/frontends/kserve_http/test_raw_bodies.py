"""Raw bodies, which are the data of a model's only input: the shape that is computed for them, and their limits."""

from __future__ import annotations

import pytest

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_http.infer_request import parse_raw
from naiad.protocol.metadata import ModelMetadata, TensorMetadata


def parse(shape: tuple[int, ...], body: bytes, *, datatype: str = "FP32", is_batched: bool = False):
    inputs = (TensorMetadata(name="IN", datatype=datatype, shape=shape),)
    metadata = ModelMetadata(name="m", versions=("1",), platform="python", inputs=inputs, outputs=())
    (tensor,) = parse_raw(body, metadata, 1, 64, is_batched=is_batched)[0].inputs
    return tensor


@pytest.mark.parametrize(
    ("shape", "is_batched", "expected"),
    [
        ((-1,), False, (4,)),
        ((2, -1), False, (2, 2)),
        ((-1, 4), True, (1, 4)),
        ((-1, -1), True, (1, 4)),
        ((-1, 2, -1), True, (1, 2, 2)),
    ],
)
def test_the_shape_of_a_raw_body_has_batch_size_1_and_at_most_one_variable_dimension(shape, is_batched, expected):
    assert tuple(parse(shape, bytes(16), is_batched=is_batched).shape) == expected


@pytest.mark.parametrize(("shape", "is_batched"), [((-1, -1), False), ((-1, -1, -1), True)])
def test_more_than_one_variable_dimension_is_refused(shape, is_batched):
    with pytest.raises(InvalidRequestError) as caught:
        parse(shape, bytes(16), is_batched=is_batched)
    assert caught.value.message == (
        "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than one "
        "variable-sized dimension"
    )


@pytest.mark.parametrize(("shape", "is_batched"), [((1,), False), ((-1, 1), True)])
def test_a_raw_body_is_one_string(shape, is_batched):
    tensor = parse(shape, b"text", datatype="BYTES", is_batched=is_batched)
    assert tuple(tensor.shape) == (1,) * len(shape)
    assert bytes(tensor.data) == b"\x04\0\0\0text"


@pytest.mark.parametrize(("shape", "is_batched"), [((-1,), False), ((2,), False), ((-1, -1), True)])
def test_strings_that_may_be_several_are_refused(shape, is_batched):
    message = r"\[request id: <id_unknown>\] For BYTE datatype raw input 'IN', the model must have input shape \[1\]"
    with pytest.raises(InvalidRequestError, match=message):
        parse(shape, b"text", datatype="BYTES", is_batched=is_batched)


def test_a_raw_body_has_the_limit_of_json():
    with pytest.raises(
        InvalidRequestError, match=r"65 bytes exceeds the maximum allowed input size of 64 bytes\. Use --ht"
    ):
        parse((-1,), bytes(65), datatype="UINT8")
