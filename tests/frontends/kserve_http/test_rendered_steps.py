"""Long outputs as JSON, made in steps: the same JSON as that of short ones."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.choices import Choices, choices

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http import json_tensors
from naiad.frontends.kserve_http.infer_response import infer_response, infer_response_steps
from naiad.frontends.kserve_http.json_tensors import from_tensor, pack_strings, rendered_steps, to_bytes
from naiad.frontends.kserve_http.response_format import ResponseFormat
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.steps import finish


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_SPLIT_COUNT": 3, "_SPLIT_BYTES": 9, "_RENDERED_COUNT": 4, "_CHUNK": 5}.items():
        monkeypatch.setattr(json_tensors, name, value)


def packed(elements: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in elements)


def element(chosen: Choices) -> bytes:
    """Up to 40 bytes, or a text of characters of one to four bytes."""
    content = chosen.bytes(40)
    # 4097 apart, none of them is half of a surrogate pair.
    text = "".join(chr(each if each < 128 else (each - 127) * 4097) for each in content)
    return content if chosen.below(2) else text.encode()


@given(choices(400))
def test_strings_of_any_length_are_rendered_as_at_once(chosen: Choices) -> None:
    elements = [element(chosen) for _ in range(chosen.below(16))]
    tensor = OutputTensor("O", Datatype.BYTES, (len(elements),), packed(elements))
    assert b"[%b]" % b"".join(finish(rendered_steps(tensor, exact=True))) == orjson.dumps(
        from_tensor(tensor, exact=True)
    )


@settings(deadline=None)
@given(st.data(), st.sampled_from([each for each in Datatype if each.numpy is not None and each.name != "FP16"]))
def test_numbers_are_rendered_as_at_once(data: st.DataObject, datatype: Datatype) -> None:
    kind = datatype.numpy
    assert kind is not None
    size = data.draw(st.integers(0, 20)) * kind.itemsize
    values = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), kind)
    if datatype is Datatype.BOOL:
        values = values.view(np.uint8) % 2 == 1
    tensor = OutputTensor("O", datatype, values.shape, values.tobytes())
    assert b"[%b]" % b"".join(finish(rendered_steps(tensor, exact=True))) == orjson.dumps(
        from_tensor(tensor, exact=True)
    )


def test_datatypes_without_json_are_refused_in_steps_too() -> None:
    with pytest.raises(InvalidRequestError, match="sending FP16 data via JSON is not supported"):
        finish(rendered_steps(OutputTensor("O", Datatype.FP16, (1,), b"\0\0"), exact=True))


@pytest.mark.parametrize("binary", [{}, {"A": True}, {"A": True, "B": True, "C": True}, {"C": True}])
def test_a_response_made_in_steps_is_that_made_at_once(binary: dict[str, bool]) -> None:
    outputs = [
        OutputTensor("A", Datatype.FP32, (2, 3), np.arange(6, dtype=np.float32).tobytes()),
        OutputTensor(
            "B", Datatype.BYTES, (7,), packed([b"a", b"\xff", b"", b'"' * 30, b"\n", "ä".encode() * 20, b"x"])
        ),
        OutputTensor("C", Datatype.INT8, (0,), b""),
    ]
    result = InferResponse("m", 3, "id", outputs, {"p": 1})
    form = ResponseFormat(binary=binary)
    body, kind, header = infer_response(result, form)
    in_steps, its_kind, its_header = finish(infer_response_steps(result, form))
    assert (b"".join(in_steps), its_kind, its_header) == (b"".join(body), kind, header)


def nested(chosen: Choices, datatype: Datatype) -> list[object]:
    """A list of lists of any depth; one in two has a value of another type than that of the tensor."""
    root: list[object] = []
    path = [root]
    kinds = [str] if datatype is Datatype.BYTES else [int]
    kinds = kinds * 100 + [str, int] * chosen.below(2)
    while not chosen.is_over:
        step = chosen.below(8)
        if step == 0:
            inner: list[object] = []
            path[-1].append(inner)
            path.append(inner)
        elif step == 1 and len(path) > 1:
            path.pop()
        else:
            path[-1].append(chosen.below(201) if chosen.of(kinds) is int else chr(chosen.below(300)) * chosen.below(4))
    return root


@given(choices(120), st.integers(0, 120), st.sampled_from([Datatype.BYTES, Datatype.UINT8, Datatype.FP64]))
def test_nested_lists_are_read_in_chunks_as_at_once(chosen: Choices, skipped: int, datatype: Datatype) -> None:
    chosen.take(skipped)
    tree = nested(chosen, datatype)
    flat = [*json_tensors.flatten(tree)]
    wanted = str if datatype is Datatype.BYTES else int
    if not all(type(item) is wanted for item in flat):
        with pytest.raises(MalformedRequestError):
            to_bytes("A", datatype, (len(flat),), tree)
        return
    expected = np.array(flat, datatype.numpy).tobytes() if wanted is int else packed([item.encode() for item in flat])
    assert to_bytes("A", datatype, (len(flat),), tree) == expected


def test_many_strings_are_packed_as_one_by_one() -> None:
    for elements in (["ab", "", "c"] * 100, ["ä", "", "\udc80"] * 100, ["x" * 300] * 65):
        expected = packed([each.encode("utf-8", "surrogateescape") for each in elements])
        assert pack_strings(elements) == expected
