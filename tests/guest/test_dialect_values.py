"""The dialect of older tutorials: inputs as a list that can be called, and lists of tensors as responses."""

from __future__ import annotations

import numpy as np
from naiad_stub.dialect import Inputs, responses_of
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor


def tensor(name: str = "T") -> Tensor:
    return Tensor(name, np.zeros(1, np.uint8))


def test_inputs_are_a_list_that_returns_itself():
    found = Inputs([tensor()])
    assert found() is found
    assert len(found()) == 1


def outputs(returned: object, count: int) -> list[list[str]]:
    """The names of the outputs of each response."""
    return [[each.name() for each in response.output_tensors()] for response in responses_of(returned, [None] * count)]


def test_lists_of_tensors_become_responses():
    assert outputs([[tensor("A"), tensor("B")], (tensor("C"),)], 2) == [["A", "B"], ["C"]]
    assert outputs([tensor("A"), tensor("B")], 2) == [["A"], ["B"]]
    assert outputs([tensor("A"), tensor("B")], 1) == [["A", "B"]]
    assert outputs([[tensor("A")]], 1) == [["A"]]


def test_what_is_a_response_already_stays_as_it_is():
    response = InferenceResponse([])
    assert responses_of([response, None], [None, None]) == [response, None]
    assert responses_of(None, [None]) is None
    assert responses_of([], [None]) == []
    assert responses_of((tensor(),), [None]).__class__ is tuple
