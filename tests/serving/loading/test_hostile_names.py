"""Names and paths of load requests and configurations that end elsewhere than they seem to: NUL, `..`, links."""

from __future__ import annotations

import base64
import json

import pytest
import tritonclient.grpc
from serving.written import CONFIG, document_of, evaluate, write_model
from support.model_files import write_files
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException

CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
TENSORS = {
    "input": [{"name": "CODE", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
}
BASIC = {"backend": "python", **TENSORS}


@pytest.fixture(scope="module")
def server(work):
    write_model(work / "models", "good")
    write_model(work / "models", "steady")
    (work / "secret").write_bytes(bytes(4) + b"secret")
    (work / "models" / "good" / "warmup").mkdir()
    (work / "models" / "good" / "warmup" / "link").symlink_to(work / "secret")
    (work / "models" / "good" / "initial_state").symlink_to(work)
    (work / "models" / "good" / "1" / "linked.py").symlink_to(work / "models" / "good" / "1" / "model.py")
    with ServerProcess(work / "models", "--model-control-mode=explicit", "--load-model=steady", work=work) as process:
        yield process
        assert "Traceback" not in process.log


def load(server: ServerProcess, name: str, config: object, files: dict[str, str] | None = None, path: str = ""):
    """The status and the text of the answer to a load."""
    parameters = {"config": config if isinstance(config, str) else json.dumps(config)}
    for file, content in (files or {}).items():
        parameters[f"file:{file}"] = base64.b64encode(content.encode()).decode()
    reply = server.post(f"/v2/repository/models/{path or name}/load", {"parameters": parameters})
    # Every failed load has the status 500, as in the reference; its reason ends with a semicolon.
    return reply.status, reply.error.removesuffix(";\n") if reply.body else ""


def test_a_model_with_files_cannot_have_a_nul_in_its_name(server):
    status, text = load(server, "a\0b", BASIC, {"1/model.py": CODE}, path="a%00b")
    assert status == 400
    assert text == "invalid model name 'a\\0b', model name must not contain path traversal characters"
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="must not contain path traversal characters"):
            client.load_model("a\0b", config=json.dumps(BASIC), files={"file:1/model.py": CODE.encode()})
        with pytest.raises(InferenceServerException):
            client.load_model("a\0b")


@pytest.mark.parametrize("path", ["", "/ready", "/config", "/infer", "/generate"])
def test_a_name_with_a_nul_is_an_unknown_model_everywhere(server, path):
    url = f"/v2/models/good%00x{path}"
    reply = server.post(url, {"inputs": []}) if path in {"/infer", "/generate"} else server.get(url)
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'good\0x' is not found")
    assert server.post("/v2/repository/models/good%00x/unload").status in {200, 400}


@pytest.mark.parametrize("file", ["1/model.py\0.txt", "1\0/model.py", "\0"])
def test_a_file_with_a_nul_in_its_name_is_refused(server, file):
    status, text = load(server, "sent", BASIC, {file: CODE})
    assert status == 500
    assert "must stay within model directory" in text


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"backend": "python\0x"}, "backend"),
        ({"default_model_filename": "model.py\0.py"}, "default_model_filename"),
        ({"runtime": "a\0b"}, "runtime"),
        ({"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/tmp\0/x"}}}, "parameters[EXECUTION_ENV_PATH].string_value"),
        ({"parameters": {"A\0B": {"string_value": "x"}}}, "a key of parameters"),
        (
            {"output": [{**TENSORS["output"][0], "label_filename": "labels\0.txt"}]},
            "output[0].label_filename",
        ),
        (
            {"model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"CODE": {"data_type": "TYPE_STRING", "dims": [1],
              "input_data_file": "a\0b"}}}]},
            "model_warmup[0].inputs[CODE].input_data_file",
        ),
        ({"instance_group": [{"name": "g\0", "count": 1}]}, "instance_group[0].name"),
        ({"cc_model_filenames": {"8.0": "a\0"}}, "cc_model_filenames[8.0]"),
    ],
)  # fmt: skip
def test_a_configuration_of_a_request_with_a_nul_is_refused(server, change, path):
    for name, files in (("good", None), ("sent", {"1/model.py": CODE})):
        status, text = load(server, name, {**BASIC, **change}, files)
        assert status == 500
        assert text.endswith(f"Invalid config override: {path} contains a NUL character; remove it)")


def test_a_configuration_file_with_a_nul_is_refused(server):
    write_files(server.work / "models", "nul", CONFIG + 'default_model_filename: "model.py\\000x"', CODE)
    reply = server.post("/v2/repository/models/nul/load")
    assert reply.status in {400, 500}
    assert reply.error.removesuffix(";\n").endswith(
        "config.pbtxt: default_model_filename contains a NUL character; remove it"
    )


@pytest.mark.parametrize("filename", ["../../secret.py", "/tmp/x.py", "../1/../../x.py", "sub/../../x.py"])
def test_the_file_of_a_model_is_in_its_versions_directory(server, filename):
    status, text = load(server, "good", {**BASIC, "default_model_filename": filename})
    assert status == 400
    assert f"cannot use default_model_filename '{filename}' of model 'good': it leaves '" in text
    assert text.endswith("name a file in the version's directory")


def test_a_link_in_the_repository_may_be_the_file_of_a_model(server):
    assert load(server, "good", {**BASIC, "default_model_filename": "linked.py"}) == (200, "")


def warmup(file: str) -> dict[str, object]:
    tensor = {"data_type": "TYPE_STRING", "dims": [1], "input_data_file": file}
    return {**BASIC, "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"CODE": tensor}}]}


@pytest.mark.parametrize("file", ["../../../secret", "/etc/hostname", "link", "../../../../../../../etc/hostname"])
def test_a_sample_of_warm_up_is_in_the_models_directory(server, file):
    status, text = load(server, "good", warmup(file))
    assert status == 400
    assert "cannot read input_data_file of warmup input 'CODE': '" in text
    assert text.endswith("is outside of the model's directory; put the file there")


def test_the_model_serves_after_all_hostile_names(server):
    assert load(server, "good", BASIC) == (200, "")
    assert evaluate(server, "good", "1+1") == "2"


HEADER = "Inference-Header-Content-Length"


@pytest.mark.parametrize("given", ["{}_{}", "+{}{}", "\xa0{}{}", "0x{}{}", "{}{}.0"])
def test_the_length_of_a_requests_json_is_in_ascii_digits(server, given):
    document = json.dumps(document_of("1")).encode()
    assert 10 <= len(document) < 100
    text = given.format(*str(len(document)))
    reply = server.request("POST", "/v2/models/steady/infer", document, {HEADER: text})
    assert reply.status == 400
    assert reply.error == f"Unable to parse {HEADER}, got: {text}"


@pytest.mark.parametrize("digits", [20, 5000])
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_length_of_many_digits_is_refused(server, digits, size):
    reply = server.request("POST", "/v2/models/steady/infer", b" " * size, {HEADER: "9" * digits})
    assert reply.status == 400
    assert reply.error.startswith(f"Unable to parse {HEADER}, got: 999")
