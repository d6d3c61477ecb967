"""Models leave when they are idle, or when others need their memory; never while a request is in progress."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from serving.ensembles.ensembles import write_function, write_model
from serving.repositories import index, infer, is_model_ready, values
from support.server import ServerProcess

PREWARM = 'parameters { key: "PREWARM" value { string_value: "true" } }\n'
ON_DEMAND = 'parameters { key: "demand" value { string_value: "true" } }\n'
PINNED = 'parameters { key: "demand" value { string_value: "pinned" } }\n'
BALLAST = """
def initialize(self, args):
    self.ballast = bytearray(os.urandom(1 << 20)) * 100

def answer(self, request):
    return self.output(np.array([os.getpid()], np.float32))
"""


def guest(server, model):
    return values(infer(server, model, 1))[0]


def unloaded(server, model, why):
    return f"'{model}' is unloaded, since {why}; its next request loads it again" in server.log


def test_the_least_recently_used_model_leaves_for_the_memory_of_another(tmp_path):
    models = tmp_path / "models"
    for name in ("a", "b", "c"):
        write_model(models, name, BALLAST)
    write_model(models, "stays", BALLAST, PINNED)
    with ServerProcess(models, "--model-control-mode=demand", "--models-memory=460MiB", work=tmp_path) as server:
        first = {name: guest(server, name) for name in ("stays", "a", "b", "a")}
        assert guest(server, "c") not in first.values()
        server.wait_for(lambda: unloaded(server, "b", "another model needs its memory"), "the oldest to leave")
        assert guest(server, "a") == first["a"]
        assert guest(server, "stays") == first["stays"]
        assert is_model_ready(server, "b")
        assert guest(server, "b") not in {*first.values()}
        server.wait_for(lambda: unloaded(server, "c", "another model needs its memory"), "the oldest to leave")
        stats = server.get("/v2/models/b/stats").json()["model_stats"][0]
        assert stats["inference_count"] == 2, "what was counted outlives the guests"


def test_models_that_push_each_other_out_answer_all_requests_of_frontend_processes(tmp_path):
    models = tmp_path / "models"
    for name in ("a", "b"):
        write_model(models, name, BALLAST.replace("100", "60"), PREWARM)
    options = ("--model-control-mode=demand", "--models-memory=100MiB", "--processes=2")
    large = [1.0] * 2000  # the inputs travel in shared memory
    with ServerProcess(models, *options, work=tmp_path) as server, ThreadPoolExecutor(3) as threads:

        def work():
            replies = list(threads.map(lambda number: infer(server, "ab"[number % 2], *large), range(10)))
            assert [reply.status for reply in replies] == [200] * 10
            return server.log.count("since another model needs its memory") >= 3

        server.wait_for(work, "models to leave for each other")


def test_in_explicit_mode_a_load_request_makes_such_a_model_available(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "x + 1", ON_DEMAND)
    with ServerProcess(models, "--model-control-mode=explicit", work=tmp_path) as server:
        assert infer(server, "m", 1).status == 404
        assert server.post("/v2/repository/models/m/load").status == 200
        assert (is_model_ready(server, "m"), "loading: m:1" in server.log) == (True, False)
        assert values(infer(server, "m", 1)) == [2]
        code = models / "m" / "1" / "model.py"
        code.write_text(code.read_text().replace("x + 1", "x + 5"))
        assert server.post("/v2/repository/models/m/load").status == 200
        assert values(infer(server, "m", 1)) == [6]
        assert server.post("/v2/repository/models/m/unload").status == 200
        server.wait_for(lambda: index(server)["m"].get("reason") == "unloaded", "the end of the model")
        assert infer(server, "m", 1).error == "Request for unknown model: 'm' has no available versions"


def test_in_poll_mode_a_change_is_used_by_the_next_load(tmp_path):
    models = tmp_path / "models"
    write_function(models, "m", "x + 1", ON_DEMAND)
    with ServerProcess(models, "--model-control-mode=poll", "--repository-poll-secs=1", work=tmp_path) as server:
        code = models / "m" / "1" / "model.py"
        code.write_text(code.read_text().replace("x + 1", "x + 5"))
        server.wait_log("model repositories changed: load m")
        assert values(infer(server, "m", 1)) == [6]
        assert server.log.count("loading: m:1") == 1
