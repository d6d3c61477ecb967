"""Repositories that come and go, or are polled, while a server runs."""

from __future__ import annotations

import numpy as np
import pytest
from serving.repositories import repository

import naiad

IN = np.array([1.0], np.float32)


@pytest.fixture
def explicit(tmp_path, store):
    (tmp_path / "first").mkdir()
    with naiad.Server(
        model_repository=tmp_path / "first",
        model_control_mode=naiad.ModelControlMode.EXPLICIT,
        flags=[f"--env-store={store}"],
    ) as server:
        yield server


def answers(model):
    (response,) = model.infer(inputs={"IN": IN})
    return response.model.name


def test_models_of_a_registered_repository_can_be_loaded(tmp_path, explicit):
    more = str(repository(tmp_path / "more", ["identity"]))
    assert explicit.models() == {}

    explicit.register_model_repository(more)
    assert list(explicit.models()) == [("identity", -1)]
    model = explicit.load("identity")
    assert answers(model) == "identity"

    explicit.unregister_model_repository(more)
    assert answers(model) == "identity"  # what is loaded stays
    explicit.unload(model, wait_until_unloaded=True, polling_interval=0.01, timeout=60)
    with pytest.raises(naiad.InternalError, match="failed to poll from model repository"):
        explicit.load("identity")


def test_a_misspelled_model_of_the_start_is_named_with_the_place_and_the_nearest(tmp_path, store):
    models = repository(tmp_path / "models", ["identity"])
    server = naiad.Server(
        model_repository=models,
        model_control_mode=naiad.ModelControlMode.EXPLICIT,
        startup_models=["identty"],
        flags=[f"--env-store={store}"],
    )

    with pytest.raises(naiad.InternalError) as failure:
        server.start()

    assert (
        f"failed to load 'identty', failed to poll from model repository (looked in '{models}'; did you mean 'identity'?)"
    ) in str(failure.value)


def test_a_repository_without_models_is_warned_of(tmp_path, store, caplog):
    (tmp_path / "models").mkdir()
    with naiad.Server(model_repository=tmp_path / "models", flags=[f"--env-store={store}"]):
        pass

    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == (
        f"there are no models in {tmp_path / 'models'}; each directory in a repository is a model: "
        "<repository>/<model>/<version>/model.py"
    )


def test_models_may_be_given_other_names(tmp_path, explicit):
    more = repository(tmp_path / "more", ["identity"])
    config = more / "identity" / "config.pbtxt"
    config.write_text('name: "identity"\n' + config.read_text())

    explicit.register_model_repository(str(more), {"identity": "other"})

    assert list(explicit.models()) == [("other", -1)]
    model = explicit.load("other")
    assert answers(model) == "other"
    assert model.config()["name"] == "other"


def test_an_invalid_registration_is_refused(tmp_path, explicit):
    more = str(repository(tmp_path / "more", ["identity"]))
    again = str(repository(tmp_path / "again", ["identity"]))
    explicit.register_model_repository(more)

    with pytest.raises(naiad.AlreadyExistsError, match=f"^model repository '{more}' has already been registered$"):
        explicit.register_model_repository(more)
    with pytest.raises(naiad.AlreadyExistsError, match="cannot be mapped to 'identity'"):
        explicit.register_model_repository(again, {"identity": "identity"})
    with pytest.raises(naiad.InvalidArgumentError, match=r"^failed to register 'nowhere', repository not found$"):
        explicit.register_model_repository("nowhere")
    with pytest.raises(naiad.InvalidArgumentError, match=r"^failed to unregister 'nowhere', repository not found$"):
        explicit.unregister_model_repository("nowhere")


def test_other_modes_keep_their_repositories(shared, tmp_path):
    for change, what in (
        (shared.register_model_repository, "registration"),
        (shared.unregister_model_repository, "unregistration"),
    ):
        text = f"^repository {what} is not allowed if model control mode is not EXPLICIT$"
        with pytest.raises(naiad.UnsupportedError, match=text):
            change(str(tmp_path))
    with pytest.raises(naiad.UnavailableError, match="polling is disabled"):
        shared.poll_model_repository()


def test_repositories_are_polled_when_asked(tmp_path, store):
    models = repository(tmp_path / "models", ["identity"])
    with naiad.Server(
        model_repository=models,
        model_control_mode=naiad.ModelControlMode.POLL,
        flags=[f"--env-store={store}", "--repository-poll-secs=3600"],
    ) as server:
        repository(models, ["two_instances"])
        server.poll_model_repository()
        assert {name for name, _ in server.models(exclude_not_ready=True)} == {"identity", "two_instances"}


def test_a_model_on_demand_is_loaded_by_its_first_request(tmp_path, store):
    models = repository(tmp_path / "models", ["identity"])
    with naiad.Server(
        model_repository=models, model_control_mode=naiad.ModelControlMode.DEMAND, flags=[f"--env-store={store}"]
    ) as server:
        state = 'naiad_demand_model_state{{model="identity",state="{}"}} 1'
        assert server.ready()
        assert state.format("dormant") in server.metrics()
        assert answers(server.model("identity")) == "identity"
        assert state.format("loaded") in server.metrics()
