"""`pb_utils.ModelConfig`: what auto_complete_config may say, and the reference's words where it contradicts."""

import json

import pytest
from triton_python_backend_utils import ModelConfig

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields):
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


def test_as_dict_is_the_configuration_itself():
    completed = config()
    completed.as_dict()["max_batch_size"] = 4

    assert completed.as_dict()["max_batch_size"] == 4


@pytest.mark.parametrize(("configured", "wanted"), [(0, 8), (8, 8), (4, 8), (0, 0)])
def test_max_batch_size_may_only_grow(configured, wanted):
    completed = config(max_batch_size=configured)
    completed.set_max_batch_size(wanted)

    assert completed.as_dict()["max_batch_size"] == wanted


def test_dynamic_batching_is_added_or_left_alone():
    completed = config()
    completed.set_dynamic_batching()
    assert completed.as_dict()["dynamic_batching"] == {}

    completed = config(dynamic_batching={"preferred_batch_size": [4]})
    completed.set_dynamic_batching()
    assert completed.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("kind", ["input", "output"])
def test_tensors_are_added_in_order(kind):
    completed = config()
    add = getattr(completed, f"add_{kind}")
    add(X)
    add({**X, "name": "Y"})

    assert [tensor["name"] for tensor in completed.as_dict()[kind]] == ["X", "Y"]


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    "configured",
    [X, {**X, "data_type": "TYPE_INVALID"}, {**X, "dims": []}, {**X, "data_type": "TYPE_INVALID", "dims": []}],
    ids=["same", "no type", "no dims", "neither"],
)
def test_configured_tensors_are_completed(kind, configured):
    completed = config(**{kind: [{**configured, "label_filename": "l"}]})
    getattr(completed, f"add_{kind}")(X)

    assert completed.as_dict()[kind] == [{**X, "label_filename": "l"}]


def test_an_input_may_be_optional():
    completed = config(input=[X])
    completed.add_input({**X, "optional": True})

    assert completed.as_dict()["input"] == [{**X, "optional": True}]


@pytest.mark.parametrize(("before", "after"), [({}, True), ({"decoupled": True}, True), ({"decoupled": False}, False)])
def test_the_transaction_policy_is_set_or_confirmed(before, after):
    completed = config(model_transaction_policy=before)
    completed.set_model_transaction_policy({"decoupled": after})

    assert completed.as_dict()["model_transaction_policy"] == {"decoupled": after}


def test_an_empty_transaction_policy_is_a_policy():
    completed = config()
    completed.set_model_transaction_policy({})

    assert completed.as_dict()["model_transaction_policy"] == {}


IN = "in auto-complete-config function for model 'm'"
BOTH = "but the model configuration specifies"


OTHER_TYPE = "unable to load model 'm', configuration expects datatype TYPE_INT8 for {} 'X', model provides TYPE_FP32"
OTHER_DIMS = f"model 'm', tensor 'X': the model expects dims [4] {BOTH} dims [4, 4]"
NOT_OPTIONAL = f"model 'm', tensor 'X': the model expects optional True {BOTH} optional False"
MORE = f"{{}} {IN} contains property other than {{}}."
LESS = f"configuration specified max_batch_size 8, but {IN} specified max_batch_size 4"
COUPLED = "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'False'."
POLICY = "model_transaction_policy"


@pytest.mark.parametrize(
    ("fields", "method", "argument", "message"),
    [
        ({"max_batch_size": 8}, "set_max_batch_size", 4, LESS),
        ({}, "add_input", {**X, "more": 1}, MORE.format("input 'X'", "'name', 'data_type', 'dims' and 'optional'")),
        ({}, "add_output", {**X, "optional": True}, MORE.format("output 'X'", "'name', 'data_type' and 'dims'")),
        *(
            row
            for kind in ("input", "output")
            for row in (
                (
                    {},
                    f"add_{kind}",
                    {"data_type": "TYPE_FP32", "dims": [1]},
                    f"{kind} {IN} is missing 'name' property.",
                ),
                ({}, f"add_{kind}", {"name": "X", "dims": [1]}, f"{kind} 'X' {IN} is missing 'data_type' property."),
                (
                    {},
                    f"add_{kind}",
                    {"name": "X", "data_type": "TYPE_FP32"},
                    f"{kind} 'X' {IN} is missing 'dims' property.",
                ),
                ({kind: [{**X, "data_type": "TYPE_INT8"}]}, f"add_{kind}", X, OTHER_TYPE.format(kind)),
                ({kind: [{**X, "dims": [4, 4]}]}, f"add_{kind}", X, OTHER_DIMS),
            )
        ),
        ({"input": [{**X, "optional": False}]}, "add_input", {**X, "optional": True}, NOT_OPTIONAL),
        ({}, f"set_{POLICY}", {"other": 1}, MORE.format("model transaction property", "'decoupled'")),
        ({POLICY: {"decoupled": False}}, f"set_{POLICY}", {"decoupled": True}, COUPLED),
    ],
)
def test_contradictions_are_value_errors_in_the_references_words(fields, method, argument, message):
    completed = config(**fields)

    with pytest.raises(ValueError) as raised:
        getattr(completed, method)(argument)

    assert str(raised.value) == message


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_another_scheduler_is_not_replaced(scheduler):
    with pytest.raises(ValueError) as raised:
        config(**{scheduler: {}}).set_dynamic_batching()

    assert str(raised.value) == (
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model "
        "'m' tries to set scheduling_choice as 'dynamic_batching'"
    )
