"""Health, metadata, configuration, statistics and repository calls with the real client."""

from __future__ import annotations

import grpc
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from naiad.core.errors import Code, NaiadError
from naiad.protocol.metadata import EXTENSIONS


def call(served, method, request=b"", service="inference.GRPCInferenceService"):
    with grpc.insecure_channel(served.url) as channel:
        return channel.unary_unary(f"/{service}/{method}")(request, timeout=10)


def refused(action, *arguments, **named):
    with pytest.raises(InferenceServerException) as caught:
        action(*arguments, **named)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


@pytest.mark.parametrize("state", [True, False])
def test_live_and_ready_are_what_the_engine_reports(client, served, state):
    served.engine.live = served.engine.ready = state
    assert client.is_server_live() is state
    assert client.is_server_ready() is state


def test_an_exiting_server_is_not_live_but_unavailable(client, served, monkeypatch):
    def exiting():
        raise NaiadError("Server exiting", code=Code.UNAVAILABLE)

    monkeypatch.setattr(served.engine, "is_live", exiting)
    assert refused(client.is_server_live) == ("UNAVAILABLE", "Server exiting")


@pytest.mark.parametrize("request_", [b"", b"\x0a\x03any"])
def test_health_check_mirrors_readiness_for_any_service(served, request_):
    assert call(served, "Check", request_, "grpc.health.v1.Health") == b"\x08\x01"
    served.engine.ready = False
    assert call(served, "Check", request_, "grpc.health.v1.Health") == b"\x08\x02"


@pytest.mark.parametrize(
    ("service", "method"),
    [("grpc.health.v1.Health", "Watch"), ("inference.GRPCInferenceService", "Nope"), ("naiad.grpc.Health", "Check")],
)
def test_other_methods_are_unimplemented(served, service, method):
    with pytest.raises(grpc.RpcError) as caught:
        call(served, method, service=service)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_message_get_the_references_answer(served):
    with pytest.raises(grpc.RpcError) as caught:
        call(served, "ModelReady", b"\xff\xff")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")


def test_model_readiness_of_a_known_model_is_never_an_error(client):
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("add_sub", "1")
    assert not client.is_model_ready("not_ready")


def test_readiness_of_an_unknown_model_is_an_error(client):
    assert refused(client.is_model_ready, "nope") == ("NOT_FOUND", "Request for unknown model: 'nope' is not found")


def test_server_metadata_names_the_extensions(client):
    metadata = client.get_server_metadata()
    assert (metadata.name, metadata.version) == ("triton", "2.73.0")
    assert tuple(metadata.extensions) == EXTENSIONS


def test_model_metadata_has_names_types_and_shapes(client):
    metadata = client.get_model_metadata("add_sub")
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("add_sub", ["1"], "python")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("INPUT0", "FP32", [-1, 4]),
        ("INPUT1", "FP32", [-1, 4]),
    ]
    assert [t.name for t in metadata.outputs] == ["OUTPUT0", "OUTPUT1"]


def test_model_config_arrives_with_enums_numbers_maps_and_oneofs(client):
    config = client.get_model_config("add_sub").config
    assert (config.name, config.backend, config.max_batch_size) == ("add_sub", "python", 8)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("INPUT0", 11, [4]), ("INPUT1", 11, [4])]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert config.instance_group[0].kind == 2
    assert config.parameters["EXECUTION_ENV_PATH"].string_value == "env.tar.gz"


def test_statistics_have_every_number(client):
    (model,) = client.get_inference_statistics("add_sub").model_stats
    assert (model.name, model.version, model.last_inference) == ("add_sub", "1", 1_700_000_000_123)
    assert (model.inference_count, model.execution_count) == (21, 11)
    durations = {field.name: (value.count, value.ns) for field, value in model.inference_stats.ListFields()}
    assert durations == {
        "success": (20, 20_000_999),
        "fail": (3, 3_000_000),
        "queue": (20, 2_000_000),
        "compute_input": (20, 4_000_000),
        "compute_infer": (20, 5_000_000),
        "compute_output": (20, 6_000_000),
        "cache_hit": (1, 70),
        "cache_miss": (2, 80),
    }
    (batch,) = model.batch_stats
    assert (batch.batch_size, batch.compute_input.ns, batch.compute_infer.ns, batch.compute_output.ns) == (2, 2, 4, 6)


def test_statistics_without_a_name_are_those_of_all_models(client):
    assert [m.name for m in client.get_inference_statistics().model_stats] == ["add_sub", "identity"]


def test_statistics_of_an_unknown_model_are_refused(client):
    text = "requested model 'nope' is not available"
    assert refused(client.get_inference_statistics, "nope") == ("INVALID_ARGUMENT", text)


def test_repository_index_has_states_reasons_and_bare_names(client):
    models = {m.name: m for m in client.get_model_repository_index().models}
    assert (models["add_sub"].version, models["add_sub"].state, models["add_sub"].reason) == ("1", "READY", "")
    assert (models["not_ready"].state, models["not_ready"].reason) == ("UNAVAILABLE", "unloaded")
    assert models["never_loaded"] == service_pb2.RepositoryIndexResponse.ModelIndex(name="never_loaded")


def test_repository_index_can_be_of_ready_models_alone(served):
    request = service_pb2.RepositoryIndexRequest(ready=True).SerializeToString()
    response = service_pb2.RepositoryIndexResponse.FromString(call(served, "RepositoryIndex", request))
    assert {m.state for m in response.models} == {"READY"}


def test_load_passes_configuration_and_files(client, served):
    client.load_model("m", config='{"backend": "python"}', files={"file:1/model.py": b"import \xff"})
    assert served.engine.loads == [("m", {"config": '{"backend": "python"}', "file:1/model.py": b"import \xff"})]


def test_a_failed_load_reports_its_cause(client):
    text = "failed to load 'broken', failed to poll from model repository"
    assert refused(client.load_model, "broken") == ("INTERNAL", text)


@pytest.mark.parametrize("dependents", [True, False])
def test_unload_passes_whether_dependents_go_too(client, served, dependents):
    client.unload_model("m", unload_dependents=dependents)
    assert served.engine.unloads == [("m", dependents)]


def test_unload_without_parameters_keeps_dependents(served):
    request = service_pb2.RepositoryModelUnloadRequest(model_name="m")
    request.parameters["other"].string_param = "ignored"
    call(served, "RepositoryModelUnload", request.SerializeToString())
    assert served.engine.unloads == [("m", False)]


Parameter = service_pb2.ModelRepositoryParameter
WRONG_KIND = "invalid value type for load parameter"
NOT_BOOL = "invalid value type for 'unload_dependents' parameter, expected bool_param."


@pytest.mark.parametrize(
    ("method", "key", "value", "text"),
    [
        ("Load", "config", Parameter(bytes_param=b"{}"), f"{WRONG_KIND} 'config', expected string_param."),
        ("Load", "file:1/m", Parameter(string_param="x"), f"{WRONG_KIND} 'file:1/m', expected bytes_param."),
        ("Load", "other", Parameter(string_param="x"), "unrecognized load parameter 'other'."),
        ("Unload", "unload_dependents", Parameter(int64_param=1), NOT_BOOL),
    ],
)
def test_wrong_repository_parameters_are_refused_with_the_references_text(served, method, key, value, text):
    request = getattr(service_pb2, f"RepositoryModel{method}Request")(model_name="m", parameters={key: value})
    with pytest.raises(grpc.RpcError) as caught:
        call(served, f"RepositoryModel{method}", request.SerializeToString())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)
    assert not served.engine.loads
    assert not served.engine.unloads


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_a_repository_name_is_refused(served, method):
    request = getattr(service_pb2, f"{method}Request")(repository_name="r")
    with pytest.raises(grpc.RpcError) as caught:
        call(served, method, request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "'repository_name' specification is not supported"
