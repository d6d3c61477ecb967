"""Control tensors, as a model reads them."""

from __future__ import annotations

import struct

import pytest
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import InvalidRequestError
from naiad.engine.scheduling.sequences.controls import Controls
from naiad.protocol.datatypes import Datatype

ALL = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 7] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0.5, 1.5] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } }
"""


def controls(text, max_batch_size=4):
    message = pb.ModelConfig(name="m", max_batch_size=max_batch_size)
    text_format.Parse(f"sequence_batching {{ {text} }}", message)
    return Controls(freeze(message))


@pytest.mark.parametrize(
    ("flags", "start", "end"), [(0, 0, 0.5), (1, 7, 0.5), (2, 0, 1.5), (3, 7, 1.5)]
)  # fmt: skip
def test_every_control_has_a_tensor(flags, start, end):
    tensors = controls(ALL % "TYPE_UINT64").tensors_for(flags, 2**40)

    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in tensors] == [
        ("START", Datatype.INT32, (1, 1)),
        ("END", Datatype.FP32, (1, 1)),
        ("READY", Datatype.BOOL, (1, 1)),
        ("ID", Datatype.UINT64, (1, 1)),
    ]
    assert [bytes(tensor.data) for tensor in tensors] == [
        struct.pack("<i", start),
        struct.pack("<f", end),
        b"\1",
        struct.pack("<Q", 2**40),
    ]


def test_a_padding_row_is_not_ready_and_has_no_id():
    tensors = controls(ALL % "TYPE_INT32").padding_tensors()

    assert [bytes(tensor.data) for tensor in tensors] == [bytes(4), struct.pack("<f", 0.5), b"\0", bytes(4)]


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "data"),
    [
        ("TYPE_STRING", "abä", b"\4\0\0\0ab\xc3\xa4"),
        ("TYPE_UINT32", 2**32 + 5, b"\5\0\0\0"),
        ("TYPE_INT64", 2**64 - 1, b"\xff" * 8),
    ],
)
def test_the_correlation_id_comes_in_the_models_type(datatype, correlation_id, data):
    told = controls(f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}')
    told.check(correlation_id, "m")
    [tensor] = told.tensors_for(0, correlation_id)
    assert bytes(tensor.data) == data


def test_without_a_batch_dimension_controls_have_none():
    assert {tensor.shape for tensor in controls(ALL % "TYPE_STRING", 0).tensors_for(0, "x")} == {(1,)}


def test_a_model_without_controls_gets_no_control_tensors():
    told = controls("direct {}")
    told.check("x", "m")
    assert told.tensors_for(3, 5) == () == told.padding_tensors()
    assert not told.has_ready


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "given"), [("UINT64", "x", "BYTES"), ("INT32", "x", "BYTES"), ("STRING", 5, "UINT64")]
)  # fmt: skip
def test_an_id_of_the_wrong_type_is_refused(datatype, correlation_id, given):
    with pytest.raises(InvalidRequestError) as caught:
        controls(ALL % f"TYPE_{datatype}").check(correlation_id, "m")
    expected = "BYTES" if datatype == "STRING" else datatype
    assert caught.value.message == (
        f"sequence batching control 'ID' data-type is '{given}', but model 'm' expects '{expected}'"
    )
