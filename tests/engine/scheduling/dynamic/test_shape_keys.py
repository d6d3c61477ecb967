"""Which requests may share a batch."""

from __future__ import annotations

import pytest

from naiad.config.model.model_config import ModelConfig, TensorConfig
from naiad.engine.scheduling.dynamic.shapes import ShapeKeys
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor


def config(*inputs, max_batch_size=8):
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        inputs=tuple(
            TensorConfig(name=name, datatype=Datatype.FP32, dims=dims, **options) for name, dims, options in inputs
        ),
    )


def request(**shapes):
    return InferRequest("m", -1, [InputTensor(name, Datatype.FP32, shape, b"") for name, shape in shapes.items()])


VARIABLE = ("x", (-1,), {})
FIXED = ("f", (3,), {})
RAGGED = ("r", (-1,), {"allow_ragged_batch": True})
OPTIONAL = ("o", (3,), {"optional": True})


@pytest.mark.parametrize(
    ("inputs", "one", "other", "may_share"),
    [
        ((VARIABLE,), {"x": (1, 5)}, {"x": (4, 5)}, True),
        ((VARIABLE,), {"x": (1, 5)}, {"x": (1, 6)}, False),
        ((RAGGED,), {"r": (1, 5)}, {"r": (1, 6)}, True),
        ((VARIABLE, RAGGED), {"x": (1, 5), "r": (1, 5)}, {"r": (1, 6), "x": (1, 5)}, True),
        ((FIXED, OPTIONAL), {"f": (1, 3)}, {"f": (1, 3), "o": (1, 3)}, False),
        ((FIXED, OPTIONAL), {"o": (1, 3), "f": (1, 3)}, {"f": (2, 3), "o": (2, 3)}, True),
    ],
)
def test_requests_share_a_batch_if_their_keys_are_equal(inputs, one, other, may_share):
    keys = ShapeKeys(config(*inputs))

    assert (keys.key(request(**one)) == keys.key(request(**other))) is may_share


def test_without_a_batch_dimension_the_whole_shape_counts():
    keys = ShapeKeys(config(VARIABLE, max_batch_size=0))

    assert keys.key(request(x=(5,))) != keys.key(request(x=(6,)))


def test_a_model_of_fixed_shapes_needs_no_keys():
    keys = ShapeKeys(config(FIXED))

    assert not keys.is_needed
    assert keys.key(request(f=(1, 3))) is None
