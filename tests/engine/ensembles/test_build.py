"""Ensembles are built from their configurations only if their members are loaded and fit together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import ConfigError
from naiad.engine.ensembles.build import checked_ensemble, find_key, find_members, make_ensemble, needed_models
from naiad.engine.registry import Registry, VersionRecord
from naiad.engine.served import metadata_of
from naiad.protocol.metadata import ModelState, with_labels

IO = """
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
"""


def message(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


def step(model: str, source: str, made: str, version: int = -1) -> str:
    return f"""step {{ model_name: "{model}" model_version: {version}
    input_map {{ key: "IN" value: "{source}" }} output_map {{ key: "OUT" value: "{made}" }} }}"""


def ensemble(*steps: str, more: str = "") -> pb.ModelConfig:
    steps = steps or (step("a", "IN", "MIDDLE"), step("b", "MIDDLE", "OUT"))
    return message(f'name: "e" platform: "ensemble" {IO} {more} ensemble_scheduling {{ {" ".join(steps)} }}')


class Member:
    """A loaded version."""

    reason = ""

    def __init__(self, name: str, more: str = "", labels: tuple[str, ...] = ()) -> None:
        self.config = freeze(message(f'name: "{name}" backend: "python" {IO} {more}'))
        self.metadata = with_labels(metadata_of(self.config, 1), {"OUT": labels} if labels else {})


def registry(**members: Any) -> Registry:
    """A registry with these models, of versions by number."""
    made = Registry()
    for name, versions in members.items():
        record = made.record(name)
        for number, member in versions.items():
            record.versions[number] = VersionRecord(ModelState.READY, loaded=member)
    return made


def both(**more: Any) -> Registry:
    return registry(a={1: Member("a", **more)}, b={1: Member("b")})


def test_an_ensemble_needs_the_models_of_its_steps():
    assert needed_models(ensemble()) == {"a", "b"}
    assert needed_models(message('name: "m"')) == frozenset()
    made = ensemble()
    made.ensemble_scheduling.step[0].model_namespace = "one"
    assert needed_models(made) == {"one::a", "b"}


@pytest.mark.parametrize(
    ("namespace", "keys", "found"),
    [
        ("", {"x::a"}, "a"),
        ("one", {"one::a", "two::a"}, "one::a"),
        ("one", {"two::a"}, "two::a"),
        ("one", {"two::a", "three::a"}, "a"),
        ("one", set(), "a"),
    ],
)
def test_a_name_means_the_model_of_its_own_namespace_or_the_only_one(namespace, keys, found):
    assert find_key("a", namespace, lambda _: keys) == found
    made = ensemble()
    find_members(made, namespace, lambda name: keys if name == "a" else ())
    assert [each.model_namespace for each in made.ensemble_scheduling.step] == [found.rpartition("::")[0], ""]


def test_a_checked_ensemble_knows_whether_it_is_decoupled():
    asked = ensemble()
    checked = checked_ensemble(asked, "e", both(), {})
    assert not checked.model_transaction_policy.decoupled
    decoupled = both(more="model_transaction_policy { decoupled: true }")
    checked = checked_ensemble(asked, "e", decoupled, {})
    assert checked.model_transaction_policy.decoupled
    assert not asked.model_transaction_policy.decoupled


def test_ensembles_must_not_contain_each_other():
    with pytest.raises(ConfigError) as caught:
        checked_ensemble(ensemble(), "e", both(), {"e": ["a"], "a": ["e"]})
    assert caught.value.message == "circular dependency between ensembles: e -> ... -> a -> e"


def test_members_that_were_never_loaded_are_named():
    models = registry(c={})
    with pytest.raises(ConfigError) as caught:
        checked_ensemble(ensemble(step("c", "IN", "X"), step("a", "X", "OUT")), "e", models, {})
    assert caught.value.message == "ensemble e contains models that are not available or ambiguous: a, c"


def test_a_member_whose_configuration_is_invalid_is_named_with_its_error():
    models = both()
    models.record("a").versions.clear()
    models.record("a").reason = "no such field"
    with pytest.raises(ConfigError) as caught:
        checked_ensemble(ensemble(), "e", models, {})
    assert caught.value.message == (
        "ensemble 'e' depends on 'a' which is not valid. Model 'a' failed with error: no such field"
    )


def test_a_member_without_a_loaded_version_is_named_with_their_states():
    models = registry(a={2: None, 1: None}, b={1: Member("b")})
    for record in models.record("a").versions.values():
        record.state, record.reason = ModelState.UNAVAILABLE, "it crashed"
    with pytest.raises(ConfigError) as caught:
        checked_ensemble(ensemble(), "e", models, {})
    assert caught.value.message == (
        "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: "
        "version 1 is at UNAVAILABLE state: it crashed;\nversion 2 is at UNAVAILABLE state: it crashed;\n"
    )


@pytest.mark.parametrize(("version", "is_there"), [(1, True), (2, False), (3, False), (-1, True)])
def test_the_version_that_a_step_names_must_be_loaded(version, is_there):
    models = registry(a={1: Member("a"), 2: None}, b={1: Member("b")})
    asked = ensemble(step("a", "IN", "MIDDLE", version), step("b", "MIDDLE", "OUT"))
    if is_there:
        checked_ensemble(asked, "e", models, {})
        return
    with pytest.raises(ConfigError) as caught:
        checked_ensemble(asked, "e", models, {})
    assert caught.value.message == (f"ensemble 'e' depends on 'a' whose required version {version} is not loaded.")


def services() -> Any:
    return SimpleNamespace(calls=SimpleNamespace(on_ensemble_step_waiting=lambda _: None))


def test_an_ensemble_is_made_of_its_steps():
    models = both(more="model_transaction_policy { decoupled: true }", labels=("cat", "dog"))
    asked = ensemble(step("a", "IN", "OUT", 1))
    made = make_ensemble(asked, 5, models, services())
    assert (made.version, made.graph.name, made.graph.inputs, made.graph.outputs) == (5, "e", ("IN",), ("OUT",))
    [only] = made.graph.steps
    assert (only.model, only.version, only.inputs, only.outputs) == ("a", 1, (("IN", "IN"),), {"OUT": "OUT"})
    assert only.decoupled
    assert [tensor.labels for tensor in made.metadata.outputs] == [("cat", "dog")]


def test_outputs_have_no_labels_where_the_member_has_none():
    made = make_ensemble(ensemble(), 1, both(labels=("cat",)), services())
    assert [tensor.labels for tensor in made.metadata.outputs] == [()]
    assert not any(each.decoupled for each in made.graph.steps)


def test_the_response_cache_is_refused_for_a_decoupled_ensemble():
    asked = ensemble(more="response_cache { enable: true } model_transaction_policy { decoupled: true }")
    with pytest.raises(ConfigError, match="cache"):
        make_ensemble(asked, 1, both(), services())
