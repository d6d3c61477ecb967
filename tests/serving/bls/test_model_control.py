"""Models that load, unload and ask about models of a real server."""

from __future__ import annotations

import json

import pytest
import tritonclient.grpc
import tritonclient.http
from serving.written import CONFIG, RUNS_CODE, evaluate, write_model
from support.server import ServerProcess
from support.waiting import until

SAYS_B = RUNS_CODE.replace("repr(eval(code, globals()))", "'b'")
LOADS_B = """
def initialize(self, args):
    if not pb_utils.is_model_ready(model_name="b", model_version="1"):
        pb_utils.load_model(model_name="b")
"""
SCRATCH = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "CODE", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
    }
)
FAILED_LOAD = "TritonModelException: Failed to load model: Failed to process the request for model 'a_0', message: "
FAILED_CHECK = (
    "TritonModelException: Failed to check model readiness: Failed to process the request for model 'a_0', message: "
)


@pytest.fixture(scope="module")
def server(work):
    write_model(work / "models", "a")
    write_model(work / "models", "b")
    with ServerProcess(work / "models", "--model-control-mode=explicit", "--load-model=a", work=work) as running:
        yield running


def test_a_model_loads_asks_about_and_unloads_another(server):
    assert evaluate(server, "a", "pb_utils.load_model('b')") == "None"
    assert evaluate(server, "a", "(pb_utils.is_model_ready('b'), pb_utils.is_model_ready('b', '1'))") == "(True, True)"
    assert evaluate(server, "b", "1 + 1") == "2"
    assert evaluate(server, "a", "pb_utils.unload_model('b', unload_dependents=True)") == "None"
    until(lambda: evaluate(server, "a", "pb_utils.is_model_ready('b')") == "False", "the end of b")
    assert server.get("/v2/models/b/ready").status == 400


def test_a_model_that_was_never_loaded_is_not_ready_and_can_be_loaded_then(tmp_path):
    write_model(tmp_path / "models", "b")
    write_model(tmp_path / "models", "a", LOADS_B + RUNS_CODE)
    with ServerProcess(tmp_path / "models", "--model-control-mode=explicit", work=tmp_path) as server:
        assert server.post("/v2/repository/models/a/load").status == 200
        assert evaluate(server, "a", "pb_utils.is_model_ready('b')") == "True"
        assert evaluate(server, "a", "pb_utils.is_model_ready('b', '7')") == "False"


def test_a_model_reloads_itself_and_unloads_itself(tmp_path):
    file = write_model(tmp_path / "models", "a")
    with ServerProcess(tmp_path / "models", "--model-control-mode=explicit", "--load-model=a", work=tmp_path) as server:
        before = evaluate(server, "a", "os.getpid()")
        assert evaluate(server, "a", "pb_utils.load_model('a')") == "None"
        assert evaluate(server, "a", "os.getpid()") == before, "nothing has changed"
        file.touch()
        assert evaluate(server, "a", "pb_utils.load_model('a')") == "None"
        assert evaluate(server, "a", "os.getpid()") != before
        gone = "[time.sleep(0.01) for _ in iter(lambda: pb_utils.is_model_ready('a'), False)]"
        assert evaluate(server, "a", f"pb_utils.unload_model('a'), {gone}, 'saw its end'").endswith("'saw its end')")
        until(lambda: "successfully unloaded 'a'" in server.log, "the end of a")


NO_VERSION = (
    f"{FAILED_CHECK}failed to get model version from specified version string {{}}, "
    "version should be an integral value > 0"
)
HOSTILE = "invalid model name '../a', model name must not contain path traversal characters"
NO_CONFIG = "(Load parameter 'config' must be specified for model file override)"
OUTSIDE = "(Invalid file parameter 'file:../x' with normalized path '../x' must stay within model directory.)"
NO_NAME = (
    f"{FAILED_LOAD}load failed for model 'n': version 1 is at UNAVAILABLE state: Internal: NameError: "
    "name 'oops' is not defined"
)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("pb_utils.is_model_ready('no')", FAILED_CHECK + "Request for unknown model: 'no' is not found"),
        ("pb_utils.is_model_ready('a', 'x')", NO_VERSION.format("'x' (details: stol)")),
        ("pb_utils.is_model_ready('a', '-1')", NO_VERSION.format("'-1'")),
        ("pb_utils.load_model('no')", FAILED_LOAD + "failed to load 'no', failed to poll from model repository"),
        ("pb_utils.load_model('../a')", HOSTILE),
        ("pb_utils.load_model('a', '{\"x\": 1}')", "(Invalid config override: ModelConfig has no field 'x'"),
        ("pb_utils.load_model('a', '', {'file:1/model.py': b''})", NO_CONFIG),
        ("pb_utils.load_model('n', '{}', {'file:../x': b''})", OUTSIDE),
        ("pb_utils.load_model('n', '{}', {'x': b''})", "(Unrecognized load parameter 'x' with type 'BYTES')"),
        ("pb_utils.load_model('n', '{\"backend\": \"python\"}', {'file:1/model.py': b'oops'})", NO_NAME),
    ],
)
def test_failures_have_the_texts_of_the_reference(server, code, answer):
    assert answer in evaluate(server, "a", code)


def test_a_configuration_replaces_the_models_own_until_the_next_load(server):
    config = json.loads(SCRATCH) | {"max_batch_size": 4}
    evaluate(server, "a", f"pb_utils.load_model('b', '''{json.dumps(config)}''')")
    assert server.get("/v2/models/b/config").json()["max_batch_size"] == 4
    evaluate(server, "a", "pb_utils.load_model('b')")
    assert server.get("/v2/models/b/config").json()["max_batch_size"] == 0


@pytest.fixture
def text_of_b(tmp_path):
    return write_model(tmp_path / "elsewhere", "b", SAYS_B).read_bytes()


def test_files_of_a_load_request_make_a_model_and_are_removed_with_it(server, text_of_b):
    evaluate(server, "a", f"text = {text_of_b!r}")
    code = f"pb_utils.load_model('made', '''{SCRATCH}''', {{'file:1/model.py': text, 'file:1/deep/x': bytes(3)}})"
    assert evaluate(server, "a", code) == "None"
    assert evaluate(server, "made", "anything") == "b"
    root = evaluate(
        server,
        "a",
        "(lambda p: p)(__import__('glob').glob(__import__('tempfile').gettempdir() + '/naiad-model-*/made'))",
    )
    assert root.count("naiad-model-") == 1
    evaluate(server, "a", "pb_utils.unload_model('made')")
    until(
        lambda: (
            evaluate(
                server, "a", "__import__('glob').glob(__import__('tempfile').gettempdir() + '/naiad-model-*/made')"
            )
            == "[]"
        ),
        "its files to go",
    )


def test_clients_load_with_configuration_and_files_over_http_and_grpc(server, text_of_b):
    for module, url in ((tritonclient.http, server.http_url), (tritonclient.grpc, server.grpc_url)):
        client = module.InferenceServerClient(url)
        client.load_model("brought", config=SCRATCH, files={"file:1/model.py": text_of_b})
        assert evaluate(server, "brought", "anything") == "b"
        client.unload_model("brought")
        until(lambda client=client: not client.is_model_ready("brought"), "its end")
        client.close()


def load_in_initialize(name: str) -> str:
    return f"""
def initialize(self, args):
    try:
        globals()["outcome"] = pb_utils.load_model({name!r})
    except pb_utils.TritonModelException as error:
        globals()["outcome"] = error
"""


def test_models_that_load_each_other_while_they_are_loaded_do_not_hang(tmp_path):
    models = tmp_path / "models"
    write_model(models, "a")
    write_model(models, "needs_leaf", load_in_initialize("leaf") + RUNS_CODE)
    write_model(models, "leaf")
    write_model(models, "itself", load_in_initialize("itself") + RUNS_CODE)
    write_model(models, "ring1", load_in_initialize("ring2") + RUNS_CODE)
    write_model(models, "ring2", load_in_initialize("ring1") + RUNS_CODE)
    options = ("--model-control-mode=explicit", "--load-model=a", "--model-load-thread-count=1")
    with ServerProcess(models, *options, work=tmp_path) as server:
        assert evaluate(server, "a", "pb_utils.load_model('needs_leaf')") == "None"
        assert evaluate(server, "needs_leaf", "outcome") == "None"
        assert evaluate(server, "leaf", "1") == "1"
        assert evaluate(server, "a", "pb_utils.load_model('itself')") == "None"
        assert "cannot load or unload 'itself' while 'itself' is being loaded" in evaluate(
            server, "itself", "str(outcome)"
        )
        assert evaluate(server, "a", "pb_utils.load_model('ring1')") == "None"
        assert evaluate(server, "ring1", "outcome") == "None"
        assert "cannot load or unload 'ring1' while 'ring2' is being loaded" in evaluate(
            server, "ring2", "str(outcome)"
        )


def test_models_control_no_models_while_the_server_starts_nor_without_explicit_control(tmp_path):
    ask = """
def initialize(self, args):
    outcomes = globals()["outcomes"] = []
    for act in (pb_utils.load_model, pb_utils.unload_model, pb_utils.is_model_ready):
        try:
            outcomes.append(act("other"))
        except pb_utils.TritonModelException as error:
            outcomes.append(str(error).rpartition("message: ")[2])
"""
    write_model(tmp_path / "models", "early", ask + RUNS_CODE)
    write_model(tmp_path / "models", "other")
    with ServerProcess(tmp_path / "models", "--model-control-mode=explicit", "--load-model=*", work=tmp_path) as server:
        refusal = (
            "Server not ready: models cannot load, unload or ask for 'other' in initialize while the server starts; to "
            "have it loaded first, name it in the parameter LOAD_AFTER of config.pbtxt, else do this in execute"
        )
        assert evaluate(server, "early", "outcomes") == str([refusal] * 3)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        refusal = "explicit model load / unload is not allowed if polling is enabled"
        assert refusal in evaluate(server, "early", "pb_utils.load_model('other')")
        assert refusal in evaluate(server, "early", "pb_utils.unload_model('other')")
        assert evaluate(server, "early", "pb_utils.is_model_ready('other')") == "True"


def test_a_model_that_completes_its_configuration_cannot_ask_the_server(tmp_path):
    complete = """
@staticmethod
def auto_complete_config(config):
    for act in (lambda: pb_utils.load_model("x"), lambda: pb_utils.MetricFamily("x", "", pb_utils.MetricFamily.GAUGE)):
        try:
            act()
        except pb_utils.TritonModelException as error:
            print(error)
    return config
"""
    write_model(tmp_path / "models", "m", complete + RUNS_CODE, config=CONFIG[:0])
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        why = (
            "the server does nothing for a model that is completing its configuration; do this in initialize or execute"
        )
        assert f"Failed to load model: Failed to process the request for model 'm', message: {why}" in server.log
        assert "Error when creating MetricFamily: Failed to process the request for model 'm', message: " in server.log
