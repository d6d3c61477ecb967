"""Input tensors as values of requests."""

from __future__ import annotations

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from vllm_like.engines.base import CallerError
from vllm_like.tensors import Inputs


def inputs(*values: bytes) -> Inputs:
    tensors = [pb_utils.Tensor("text_input", np.array(values, object))]
    return Inputs(pb_utils.InferenceRequest(model_name="m", inputs=tensors, requested_output_names=[]))


def test_a_text_is_one_string_of_utf_8_and_never_changed():
    assert inputs("ü".encode()).text("text_input") == "ü"
    assert inputs(b"a").text("messages") is None
    with pytest.raises(CallerError, match="input 'text_input' has a string that is not UTF-8"):
        inputs(b"a\xff").text("text_input")
    with pytest.raises(CallerError, match="input 'text_input' must have one element, got 2"):
        inputs(b"a", b"b").text("text_input")
