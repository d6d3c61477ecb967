"""Of what a model returns from `auto_complete_config`, five things are taken; `test_reference_json.py` shows more."""

from __future__ import annotations

import pytest

from naiad.config.model.auto_complete import merge_auto_completed
from naiad.config.model.normalise import normalise
from naiad.config.model.render import to_json
from naiad.config.model.text import parse_text
from naiad.core.errors import Code, ConfigError

TENSOR = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def configured(text=""):
    message = parse_text(f'name: "m" backend: "python" {text}', "config.pbtxt")
    normalise(message)
    return message


def merged(text="", **changes):
    """What comes of a model that changes its configuration; None takes a field away."""
    message = configured(text)
    completed = {key: value for key, value in (to_json(message) | changes).items() if value is not None}
    return merge_auto_completed(message, completed)


def test_batch_size_tensors_and_the_decoupled_policy_are_taken_from_the_answer():
    result = merged(
        max_batch_size=4, input=[TENSOR], output=[TENSOR, TENSOR], model_transaction_policy={"decoupled": True}
    )

    assert result.max_batch_size == 4
    assert [tensor.name for tensor in result.input] == ["X"]
    assert len(result.output) == 2
    assert result.model_transaction_policy.decoupled


def test_configured_tensors_are_replaced_and_not_extended():
    result = merged('max_batch_size: 8 input { name: "old" data_type: TYPE_INT8 dims: 1 }', max_batch_size=2, input=[])

    assert result.max_batch_size == 2
    assert not result.input


@pytest.mark.parametrize(
    ("name", "scheduler"),
    [
        ("dynamic_batching", {}),
        ("sequence_batching", {"iterative_sequence": True}),
        ("ensemble_scheduling", {"step": []}),
    ],
)
def test_a_scheduler_is_taken_where_none_was_configured_and_normalised(name, scheduler):
    taken = merged(max_batch_size=4, **{name: scheduler})
    assert taken.WhichOneof("scheduling_choice") == name
    assert list(taken.dynamic_batching.preferred_batch_size) == [4] * (name == "dynamic_batching")


def test_settings_of_a_configured_scheduler_stay():
    text = "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 5 }"

    result = merged(text, max_batch_size=3, dynamic_batching={"max_queue_delay_microseconds": 7})

    assert result.dynamic_batching.max_queue_delay_microseconds == 5
    # Made explicit from the batch size of before, as for the reference.
    assert list(result.dynamic_batching.preferred_batch_size) == [2]


@pytest.mark.parametrize(
    ("text", "changes", "problem"),
    [
        (
            "sequence_batching { }",
            {"sequence_batching": None, "dynamic_batching": {}},
            "Cannot update scheduling choice from 13 to 13 when auto-completing. Model 'm' is configured with sequence_batching, and its auto_complete_config returned dynamic_batching.",
        ),
        (
            "dynamic_batching { }",
            {"dynamic_batching": None},
            "Cannot update scheduling choice from 11 to 11 when auto-completing. Model 'm' is configured with dynamic_batching, and its auto_complete_config returned none.",
        ),
    ],
)
def test_a_configured_scheduler_cannot_be_exchanged(text, changes, problem):
    with pytest.raises(ConfigError) as caught:
        merged(text, **changes)

    assert caught.value.message == problem
    assert caught.value.code is Code.INTERNAL


def test_other_fields_of_the_answer_are_ignored_and_the_configuration_that_was_given_is_left_alone():
    result = merged(
        backend="other",
        parameters={"k": {"string_value": "v"}},
        instance_group=[{"count": 9}],
        version_policy={"all": {}},
        optimization={},
        response_cache={"enable": True},
    )
    assert result == configured()
    message = configured()
    merge_auto_completed(message, {"max_batch_size": 4})
    assert message == configured()


def test_a_configured_decoupled_policy_stays_where_the_answer_has_none():
    assert merged(
        "model_transaction_policy { decoupled: true }", model_transaction_policy=None
    ).model_transaction_policy.decoupled


def test_an_answer_that_is_not_a_configuration_is_refused_with_the_field():
    with pytest.raises(ConfigError) as caught:
        merged(input=[TENSOR | {"dtype": "x"}])

    assert caught.value.message == (
        "auto-completed configuration of model 'm': input[0]: ModelInput has no field 'dtype'; did you mean "
        "'data_type'?"
    )
