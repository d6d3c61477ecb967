"""`RequestPlan`: a pure check, as data that another process can use."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from naiad_stub.layout import unpack

import naiad.server.processes.messages  # noqa: F401 - says how requests are pickled
from naiad.core.errors import InvalidRequestError, UnsupportedRequestError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.protocol.request_plan import InputRule, RequestPlan, offsets_of

FP32, BYTES = Datatype.FP32, Datatype.BYTES
UNKNOWN = "[request id: <id_unknown>] "


def rule(name: str, dims=(2,), datatype=FP32, **more) -> InputRule:
    return InputRule(name, datatype, dims, datatype.byte_size, has_wildcard=-1 in dims, **more)


def plan(*rules: InputRule, max_batch_size: int = 4, **more) -> RequestPlan:
    fields = {
        "model_name": "m",
        "model_version": 1,
        "generation": 7,
        "max_batch_size": max_batch_size,
        "rules": {each.name: each for each in rules},
        "outputs": frozenset({"X", "Y"}),
        "input_names": tuple(each.name for each in rules),
        "output_names": ("X", "Y"),
        "packs_inputs": True,
        **more,
    }
    return RequestPlan(**fields)


PLAIN = plan(rule("A"), rule("B", (-1,)))
UNBATCHED = plan(rule("A"), max_batch_size=0)
OPTIONAL = plan(rule("A"), rule("B", is_optional=True))
TEXT = plan(rule("A", (1,), BYTES))
RESHAPED = plan(rule("A", (-1, 2), reshape=(2, 1, -1)), rule("B"))


def tensor(name: str, shape: tuple[int, ...], datatype=FP32, data: bytes | None = None) -> InputTensor:
    size = 4
    for dim in shape:
        size *= max(dim, 0)
    return InputTensor(name, datatype, shape, bytes(size) if data is None else data)


def request(*inputs: InputTensor, **more) -> InferRequest:
    return InferRequest("m", -1, list(inputs), **more)


A, B = tensor("A", (3, 2)), tensor("B", (3, 5))


@pytest.mark.parametrize(
    ("by", "asked", "batch_size", "is_repeatable"),
    [
        (PLAIN, request(A, B), 3, True),
        (PLAIN, request(B, A), 3, True),
        (PLAIN, request(A, B, requested_outputs=("Y",)), 3, True),
        (PLAIN, request(A, tensor("B", (3, 0))), 3, True),
        (UNBATCHED, request(tensor("A", (2,))), 1, True),
        (OPTIONAL, request(A), 3, True),
        (OPTIONAL, request(A, tensor("B", (3, 2))), 3, True),
        (TEXT, request(tensor("A", (1, 1), BYTES, b"\2\0\0\0ab")), 1, False),
        (plan(max_batch_size=8), request(), 1, True),
    ],
)
def test_a_request_that_fits_has_a_layout(by, asked, batch_size, is_repeatable):
    checked = by.check(asked)

    assert checked.request is asked
    assert checked.layout[:3] == (7, batch_size, is_repeatable)
    places, requested = unpack(checked.layout.packed.layout)
    assert [by.input_names[place.position] for place in places] == [each.name for each in asked.inputs]
    assert [place.size for place in places] == [len(each.data) for each in asked.inputs]
    assert [place.offset for place in places] == list(checked.layout.packed.offsets)
    assert requested == (tuple(by.output_positions[name] for name in asked.requested_outputs) or None)


@pytest.mark.parametrize(
    ("by", "asked", "message"),
    [
        (PLAIN, request(A), (f"{UNKNOWN}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing "
         "required input(s) ['B']. Please provide all required input(s).")),
        (plan(rule("A"), rule("B"), rule("C")), request(A, tensor("C", (3, 2))),
         (f"{UNKNOWN}expected 3 inputs but got 2 inputs for model 'm'. Got input(s) ['C','A'], but missing "
         "required input(s) ['B']. Please provide all required input(s).")),
        (PLAIN, request(tensor("A", (3, -2)), B),
         f"{UNKNOWN}All input dimensions should be specified for input 'A' for model 'm', got [3,-2]"),
        (PLAIN, request(A, A), f"{UNKNOWN}input 'A' already exists in request"),
        (PLAIN, request(A, tensor("C", (3, 2))), "unexpected inference input 'C' for model 'm'"),
        (OPTIONAL, request(tensor("B", (3, 2))), (f"{UNKNOWN}expected number of inputs between 1 and 2 but got 1 inputs for "
         "model 'm'. Got input(s) ['B'], but missing required input(s) ['A']. Please provide all required input(s).")),
        (PLAIN, request(A, B, requested_outputs=("Z",)), "unexpected inference output 'Z' for model 'm'"),
        (PLAIN, request(A, B, requested_outputs=("X", "X")), f"{UNKNOWN}output 'X' already exists in request"),
        (PLAIN, request(A, tensor("B", (2, 5))), f"{UNKNOWN}input 'A' batch size does not match other inputs for 'm'"),
        (PLAIN, request(A, tensor("B", ())),
         f"{UNKNOWN}input 'B' has no shape but model requires batch dimension for 'm'"),
        (UNBATCHED, request(tensor("A", (3,)), request_id="9"),
         "[request id: 9] unexpected shape for input 'A' for model 'm'. Expected [2], got [3]. "),
        (PLAIN, request(A, tensor("B", (3, -5))),
         f"{UNKNOWN}All input dimensions should be specified for input 'B' for model 'm', got [3,-5]"),
        (PLAIN, request(tensor("A", (5, 2)), tensor("B", (5, 1))),
         f"{UNKNOWN}inference request batch-size must be <= 4 for 'm'"),
        (PLAIN, request(tensor("A", (0, 2)), tensor("B", (0, 1))),
         f"{UNKNOWN}inference request batch-size must be >= 1 for 'm'"),
        (PLAIN, request(A, tensor("B", (3, 5), Datatype.INT32)),
         f"{UNKNOWN}inference input 'B' data-type is 'INT32', but model 'm' expects 'FP32'"),
        (PLAIN, request(A, tensor("B", (3, 5), data=b"1234")),
         f"{UNKNOWN}input byte size mismatch for input 'B' for model 'm'. Expected 60, got 4"),
        (TEXT, request(tensor("A", (1, 1), BYTES, b"\2\0\0\0a")),
         (f"{UNKNOWN}incomplete string data for inference input 'A' for model 'm', expecting string of length 2 but only "
         "1 bytes available")),
        (PLAIN, request(A, B, request_id="x" * 0xFFFF), "request id must have at most 65534 bytes"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_is_rejected_with_the_references_text(by, asked, message):
    with pytest.raises(InvalidRequestError) as caught:
        by.check(asked)

    assert caught.value.message == message


def test_long_correlation_ids_are_rejected():
    with pytest.raises(UnsupportedRequestError, match="cannot be longer than 128 characters"):
        PLAIN.check(request(A, B, correlation_id="x" * 129))


@pytest.mark.parametrize("correlation", ["x" * 128, "é" * 64, 7])
def test_correlation_ids_have_up_to_128_bytes(correlation):
    assert PLAIN.check(request(A, B, correlation_id=correlation)).layout.batch_size == 3


def test_a_text_of_more_bytes_than_characters_counts_by_its_bytes():
    with pytest.raises(UnsupportedRequestError, match="cannot be longer than 128 characters"):
        PLAIN.check(request(A, B, correlation_id="é" * 64 + "x"))


def test_request_ids_have_up_to_65534_bytes():
    assert PLAIN.check(request(A, B, request_id="x" * 0xFFFE)).layout.batch_size == 3


def test_a_model_with_batches_of_one_has_a_batch_dimension():
    single = plan(rule("A", (-1, 2), reshape=(2, 1, -1)), rule("B"), max_batch_size=1)
    checked = single.check(request(tensor("A", (1, 5, 2)), tensor("B", (1, 2))))
    assert [each.shape for each in checked.request.inputs] == [(1, 2, 1, 5), (1, 2)]
    assert checked.layout.batch_size == 1
    for shape, text in [
        ((1, 3), "unexpected shape for input 'B' for model 'm'. Expected [-1,2], got [1,3]. NOTE: Setting a non-zero"),
        ((2,), "input 'B' batch size does not match other inputs"),
        ((), "input 'B' has no shape but model requires batch dimension"),
        ((1, -1), "All input dimensions should be specified for input 'B'"),
    ]:
        asked = request(tensor("B", shape), tensor("A", (1, 5, 2)))
        with pytest.raises(InvalidRequestError) as caught:
            single.check(asked)
        assert text in caught.value.message


@pytest.mark.parametrize(
    ("by", "shape", "got"), [(UNBATCHED, (-1,), "[-1]"), (OPTIONAL, (3, 0), "[3,0]"), (OPTIONAL, (3,), "[3]")]
)
def test_a_shape_that_differs_is_named_as_it_is(by, shape, got):
    with pytest.raises(InvalidRequestError, match=r"unexpected shape for input 'A'") as caught:
        by.check(request(tensor("A", shape)))
    assert f", got {got}." in caught.value.message


@pytest.mark.parametrize("shape", [(3,), (3, 5, 5)])
def test_a_wildcard_stands_for_one_dimension(shape):
    with pytest.raises(InvalidRequestError, match=r"unexpected shape for input 'B' .* Expected \[-1,-1], got"):
        PLAIN.check(request(A, tensor("B", shape)))


@pytest.mark.parametrize("batch_size", [-1, -7])
def test_a_negative_batch_size_is_a_dimension_that_is_not_specified(batch_size):
    with pytest.raises(InvalidRequestError, match=f"All input dimensions .* input 'A' .* got .{batch_size},2]"):
        OPTIONAL.check(request(tensor("A", (batch_size, 2))))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batches_have_up_to_the_largest_size(batch_size):
    assert OPTIONAL.check(request(tensor("A", (batch_size, 2)))).layout.batch_size == batch_size


def test_the_dimensions_of_a_wildcard_must_be_known_without_batches_too():
    by = plan(rule("A", (-1,)), max_batch_size=0)
    assert by.check(request(tensor("A", (0,)))).layout.batch_size == 1
    with pytest.raises(InvalidRequestError, match=r"All input dimensions .* got \[-1]"):
        by.check(request(tensor("A", (-1,))))


def test_a_datatype_that_is_unknown_is_called_invalid():
    with pytest.raises(InvalidRequestError, match="data-type is '<invalid>', but model 'm' expects 'FP32'"):
        OPTIONAL.check(request(tensor("A", (1, 2), Datatype.INVALID)))


@pytest.mark.parametrize(
    ("data", "shape", "text"),
    [
        (b"\1\0\0\0a" * 2, (2, 1), ""),
        (b"", (1, 0), ""),
        (b"\1\0\0\0a", (2, 1), "expected 2 string elements for inference input 'A' for model 'm', got 1"),
        (b"\1\0\0\0a" * 3, (2, 1), ("unexpected number of string elements 3 for inference input 'A' for model 'm', "
         "expecting 2")),
        (b"\1\0\0\0a\0", (2, 1), ("incomplete string length indicator for inference input 'A' for model 'm', expecting "
         "4 bytes but only 1 bytes available. Please make sure the string length indicator is in one buffer.")),
        (b"\1\0\0\0a\5\0\0\0", (2, 1), ("incomplete string data for inference input 'A' for model 'm', expecting "
         "string of length 5 but only 0 bytes available")),
        (b"\1\0\0\0a\0\1\0\0x", (2, 1), ("incomplete string data for inference input 'A' for model 'm', expecting "
         "string of length 256 but only 1 bytes available")),
    ],
)  # fmt: skip
def test_strings_are_as_many_as_the_shape_says(data, shape, text):
    by = replace(TEXT, rules={"A": rule("A", (-1,), BYTES)})
    asked = request(tensor("A", shape, BYTES, data))
    if text:
        with pytest.raises(InvalidRequestError) as caught:
            by.check(asked)
        assert caught.value.message == UNKNOWN + text
    else:
        assert by.check(asked).layout.batch_size == shape[0]


def test_inputs_begin_at_aligned_places():
    assert offsets_of([]) == ([], 0)
    assert offsets_of([1, 64, 0, 65, 3]) == ([0, 64, 128, 128, 256], 259)
    packed = PLAIN.check(request(A, B)).layout.packed
    assert (list(packed.offsets), packed.byte_size) == offsets_of([24, 60])


def test_a_request_has_no_parameters_and_no_headers_by_default():
    made = request(A)
    assert made.parameters == made.propagated == {}
    with pytest.raises(TypeError):
        made.parameters["x"] = 1
    assert InferResponse("m", 1).parameters == {}


def test_reshaping_leaves_the_clients_request_as_it_is():
    asked = request(tensor("A", (3, 5, 2)), A := tensor("B", (3, 2)))

    checked = RESHAPED.check(asked)

    assert [each.shape for each in asked.inputs] == [(3, 5, 2), (3, 2)]
    assert [each.shape for each in checked.request.inputs] == [(3, 2, 1, 5), (3, 2)]
    assert checked.request.inputs[1] is A
    assert [place.shape for place in unpack(checked.layout.packed.layout)[0]] == [(3, 2, 1, 5), (3, 2)]
    assert not checked.layout.is_repeatable


def test_inputs_are_not_packed_where_the_guest_is_given_others():
    assert replace(PLAIN, packs_inputs=False).check(request(A, B)).layout.packed is None


def test_a_plan_and_its_results_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        PLAIN.max_batch_size = 1
    with pytest.raises(AttributeError):
        PLAIN.check(request(A, B)).layout.batch_size = 2


CHECK_ELSEWHERE = """
import pickle, sys
plan, requests = pickle.load(sys.stdin.buffer)
results = []
for request in requests:
    try:
        results.append(plan.check(request))
    except Exception as error:
        results.append(f"{type(error).__name__}: {error.message}")
heavy = {"numpy", "google.protobuf", "asyncio", "naiad.config", "naiad.engine", "naiad.guests"} & set(sys.modules)
sys.stdout.buffer.write(pickle.dumps((results, sorted(heavy))))
"""


def test_another_process_checks_requests_with_a_pickled_plan():
    full = request(tensor("A", (3, 5, 2)), tensor("B", (3, 2)), parameters={})
    plans_and_requests = (RESHAPED, [full, replace(full, inputs=full.inputs[1:])])

    done = subprocess.run(
        [sys.executable, "-c", CHECK_ELSEWHERE],
        input=pickle.dumps(plans_and_requests),
        stdout=subprocess.PIPE,
        check=True,
    )

    (accepted, rejected), heavy = pickle.loads(done.stdout)
    assert accepted == RESHAPED.check(full)
    assert rejected.startswith(f"InvalidRequestError: {UNKNOWN}expected 2 inputs but got 1 inputs")
    assert heavy == []


TWO = plan(rule("A"), rule("B"))
TWO_TEXTS = plan(rule("A", (2,), BYTES), rule("B", (2,), BYTES))
ONE_TEXT = b"\1\0\0\0a"


def shaped(name):
    return tensor(name, (3, 5))


def typed(name):
    return tensor(name, (3, 2), Datatype.INT32)


def sized(name):
    return tensor(name, (3, 2), data=bytes(4))


def batched(name):
    return tensor(name, (2, 2))


SHAPE, TYPE, SIZE = (
    "unexpected shape for input '{}'",
    "inference input '{}' data-type",
    "byte size mismatch for input '{}'",
)
BATCH = "input '{}' batch size does not match other inputs"


@pytest.mark.parametrize("names", ["AB", "BA"])
@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (shaped, typed, (SHAPE, TYPE)),
        (typed, sized, (TYPE, SIZE)),
        (sized, shaped, (SIZE, SHAPE)),
        (sized, sized, (SIZE, SIZE)),
        (batched, typed, (BATCH, TYPE)),
        (sized, batched, (SIZE, BATCH)),
    ],
)
def test_of_several_wrong_inputs_the_last_one_is_named_after_batch_sizes_that_differ(names, first, last, texts):
    asked = request(first(names[0]), last(names[1]))
    named = names[0] if BATCH in texts else names[1]
    expected = BATCH if BATCH in texts else texts[1]
    with pytest.raises(InvalidRequestError, match=expected.format(named)):
        TWO.check(asked)


@pytest.mark.parametrize(("names", "named"), [("AB", "B"), ("BA", "A")])
@pytest.mark.parametrize(
    ("data", "text"), [(ONE_TEXT, "expected 2 string"), (ONE_TEXT * 3, "unexpected number of string")]
)
def test_of_several_inputs_with_too_few_or_too_many_strings_the_last_one_is_named(names, named, data, text):
    asked = request(*(tensor(name, (1, 2), BYTES, data) for name in names))
    with pytest.raises(InvalidRequestError, match=f"{text} elements.* for inference input '{named}'"):
        TWO_TEXTS.check(asked)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (request(tensor("X", (3, 2)), tensor("Y", (3, 2))), "unexpected inference input 'Y'"),
        (request(tensor("X", (3, 2)), batched("A")), "unexpected inference input 'X'"),
        (request(typed("A"), tensor("X", (3, 2))), "unexpected inference input 'X'"),
        (request(tensor("X", (3, 2)), tensor("A", ())), "input 'A' has no shape"),
        (request(tensor("X", (3, 2)), tensor("X", (3, 2))), "input 'X' already exists in request"),
    ],
)
def test_unknown_and_repeated_inputs_are_found_before_wrong_ones(asked, text):
    with pytest.raises(InvalidRequestError, match=text):
        TWO.check(asked)
