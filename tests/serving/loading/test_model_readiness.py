"""`is_ready` of models, as readiness probes of a real server see it."""

from __future__ import annotations

import pytest
import tritonclient.grpc
from serving.written import RUNS_CODE, evaluate, write_model
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until

SAYS = """
answer = staticmethod(lambda: True)
calls = 0

def initialize(self, args):
    globals()["M"] = self

def is_ready(self):
    self.calls += 1
    return self.answer()
"""
SAYS_LATER = SAYS.replace("def is_ready", "async def is_ready")


@pytest.fixture(scope="module")
def server(work):
    write_model(work / "models", "says", SAYS + RUNS_CODE)
    write_model(work / "models", "says_later", SAYS_LATER + RUNS_CODE)
    write_model(work / "models", "silent")
    with ServerProcess(work / "models", "--log-verbose=1", work=work) as running:
        yield running


def set_answer(server: ServerProcess, model: str, answer: str) -> None:
    assert evaluate(server, model, f"M.answer = {answer}") == "done"


def statuses(server: ServerProcess, model: str) -> tuple[int, bool, int, bool]:
    """Of the model over HTTP and gRPC, and of the server."""
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        return (
            server.get(f"/v2/models/{model}/ready").status,
            client.is_model_ready(model),
            server.get("/v2/health/ready").status,
            client.is_server_ready(),
        )


@pytest.mark.parametrize("model", ["says", "says_later"])
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("lambda: False", ""),
        ("lambda: 1", "is_ready() must return a boolean value"),
        ("lambda: None", "is_ready() must return a boolean value"),
        ("lambda: 1 / 0", "ZeroDivisionError: division by zero"),
        ("lambda: exit(3)", "SystemExit: 3"),
    ],
)
def test_a_model_that_reports_itself_not_ready_continues_to_serve(server, model, answer, problem):
    set_answer(server, model, answer)
    try:
        assert statuses(server, model) == (400, False, 400, False)
        assert server.get(f"/v2/models/{model}/ready").error == "Model version not ready"
        assert evaluate(server, model, "1 + 1") == "2"
        assert server.get("/v2/models/silent/ready").status == 200
        assert evaluate(server, "silent", f"pb_utils.is_model_ready('{model}')") == "False"
    finally:
        set_answer(server, model, "lambda: True")
    assert statuses(server, model) == (200, True, 200, True)
    assert evaluate(server, "silent", f"pb_utils.is_model_ready('{model}')") == "True"
    assert f"Model '{model}_0' is not ready (user-defined check failed). {problem}".rstrip() in server.log


@pytest.mark.parametrize("model", ["says", "says_later"])
def test_readiness_is_answered_while_execute_runs(server, model, tmp_path):
    go_on = tmp_path / "go on"
    code = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(go_on)!r}), True)], 'over'"
    before = int(evaluate(server, model, "M.calls"))
    answer = in_thread(evaluate, server, model, code)
    try:
        assert [server.get(f"/v2/models/{model}/ready").status for _ in range(3)] == [200] * 3
        assert not answer.done()
    finally:
        go_on.touch()
    assert answer.result(60).endswith("'over')")
    assert int(evaluate(server, model, "M.calls")) == before + 3


def test_a_model_on_an_event_loop_is_checked_on_its_loop(tmp_path):
    methods = """
async def execute(self, requests):
    import asyncio
    globals()["loop"] = asyncio.get_running_loop()
    return self.answer(requests)

async def is_ready(self):
    import asyncio
    globals()["asked"] = asyncio.get_running_loop()
    return True
"""
    write_model(tmp_path / "models", "m", methods + RUNS_CODE.replace("def execute", "def answer"))
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert evaluate(server, "m", "asked is loop") == "False"  # no loop ran yet when the start's check came
        assert server.get("/v2/models/m/ready").status == 200
        assert evaluate(server, "m", "asked is loop") == "True"


def test_every_instance_is_asked(tmp_path):
    methods = """
def initialize(self, args):
    self.name = args["model_instance_name"]

def is_ready(self):
    return not (self.name.endswith("_1") and os.path.exists(FLAG))
"""
    flag = tmp_path / "flag"
    write_model(
        tmp_path / "models",
        "m",
        methods.replace("FLAG", repr(str(flag))) + RUNS_CODE,
        config="instance_group [{ count: 2 kind: KIND_CPU }]",
    )
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert server.get("/v2/models/m/ready").status == 200
        flag.touch()
        assert server.get("/v2/models/m/ready").status == 400
        assert server.get("/v2/health/ready").status == 400


def test_without_strict_readiness_the_server_checks_no_model(tmp_path):
    write_model(tmp_path / "models", "m", SAYS + RUNS_CODE)
    with ServerProcess(tmp_path / "models", "--strict-readiness=false", work=tmp_path) as server:
        set_answer(server, "m", "lambda: False")
        assert server.get("/v2/models/m/ready").status == 400
        assert server.get("/v2/health/ready").status == 200


def test_a_guest_that_exits_during_a_check_is_not_ready(tmp_path):
    write_model(tmp_path / "models", "m", SAYS + RUNS_CODE)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        set_answer(server, "m", "lambda: os._exit(1)")
        assert server.get("/v2/models/m/ready").status == 400
        until(lambda: server.get("/v2/models/m/ready").status == 200, "the next guest")
