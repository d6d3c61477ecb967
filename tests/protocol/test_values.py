"""Small values and rules that all frontends share: datatypes, names, quantiles, work in steps, models of language."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import pytest

from naiad.protocol.datatypes import BY_NAME, Datatype, zeros
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.model_names import model_key
from naiad.protocol.quantiles import quantile_of, rounded_value
from naiad.protocol.steps import finish
from naiad.protocol.text_models import can_embed, can_generate_text, has_string


def test_a_string_has_another_name_in_a_configuration():
    assert Datatype.BYTES.config_name == "TYPE_STRING"
    assert Datatype.FP32.config_name == "TYPE_FP32"


@pytest.mark.parametrize("datatype", BY_NAME.values(), ids=str)
def test_the_size_of_an_element_is_that_of_its_numpy_type(datatype):
    if datatype in {Datatype.BYTES, Datatype.BF16}:
        assert datatype.numpy is None
        assert datatype.byte_size == {Datatype.BYTES: 0, Datatype.BF16: 2}[datatype]
    else:
        assert datatype.numpy.itemsize == datatype.byte_size
        assert datatype.numpy.byteorder in "=|"


def test_zeros_are_numbers_or_empty_strings():
    assert zeros(Datatype.INT64, (2, 3)) == bytes(48)
    assert zeros(Datatype.BYTES, (3,)) == bytes(12)
    assert zeros(Datatype.FP16, ()) == bytes(2)
    assert zeros(Datatype.FP16, (0, 3)) == b""


def test_numpy_types_are_little_endian():
    assert Datatype.UINT32.numpy == np.dtype("<u4")
    assert Datatype.INVALID.numpy is None


def test_a_namespace_is_part_of_the_key_of_a_model():
    assert model_key("", "m") == "m"
    assert model_key("team", "m") == "team::m"


@pytest.mark.parametrize(
    ("value", "bits", "rounded"), [(0, 4, 0), (15, 4, 15), (16, 4, 16), (17, 4, 16), (31, 4, 30), (1023, 2, 768)]
)
def test_values_keep_their_leading_bits(value, bits, rounded):
    assert rounded_value(value, bits) == rounded


def test_a_quantile_is_the_value_of_its_rank():
    counts = {30: 1, 10: 2, 20: 1}
    assert [quantile_of(counts, quantile) for quantile in (0, 0.25, 0.5, 0.51, 0.75, 0.76, 1)] == [
        *(10, 10, 10, 20, 20, 30, 30)
    ]
    assert math.isnan(quantile_of({}, 0.5))


def test_all_steps_are_done_at_once():
    done = []

    def work() -> Generator[None, None, str]:
        done.append(1)
        yield
        done.append(2)
        yield
        return "result"

    assert finish(work()) == "result"
    assert done == [1, 2]


def tensors(**datatypes: str) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(name=name, datatype=each, shape=(1,)) for name, each in datatypes.items())


@pytest.mark.parametrize(
    ("inputs", "outputs", "generates", "embeds"),
    [
        ({"text_input": "BYTES"}, {"text_output": "BYTES"}, True, False),
        ({"x": "BYTES", "text_input": "BYTES"}, {"text_output": "BYTES", "y": "FP32"}, True, False),
        ({"text_input": "FP32"}, {"text_output": "BYTES"}, False, False),
        ({"text_input": "BYTES"}, {"text_output": "FP32"}, False, False),
        ({"text_input": "BYTES"}, {}, False, False),
        ({}, {"text_output": "BYTES"}, False, False),
        ({"embedding_request": "BYTES"}, {"text_output": "BYTES"}, False, True),
        ({"embedding_request": "BYTES"}, {}, False, False),
        ({"embedding_request": "BYTES", "text_input": "BYTES"}, {"text_output": "BYTES"}, True, True),
    ],
)
def test_models_of_language_are_recognised_by_their_tensors(inputs, outputs, generates, embeds):
    metadata = ModelMetadata(
        name="m", versions=("1",), platform="", inputs=tensors(**inputs), outputs=tensors(**outputs)
    )
    assert (can_generate_text(metadata), can_embed(metadata)) == (generates, embeds)


def test_a_tensor_is_a_string_by_name_and_datatype():
    assert has_string(tensors(a="FP32", b="BYTES"), "b")
    assert not has_string(tensors(a="FP32", b="BYTES"), "a")
    assert not has_string((), "a")
