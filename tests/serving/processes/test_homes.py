"""Models with one instance, each in one of several processes of the server: reached from all of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from serving.frontends.killing import others
from serving.processes.reaching import connection_of_each, metrics
from serving.repositories import repository
from serving.written import write_model
from support.server import HOST, ServerProcess
from support.waiting import until

PROCESSES = 3
MODELS = ("one", "two", "three", "four")
PARENT = "__import__('os').getppid()"
PID = "__import__('os').getpid()"
CALL = (
    "pb_utils.InferenceRequest(model_name={model!r}, requested_output_names=['OUT'], inputs=[pb_utils.Tensor("
    "'CODE', np.array([{code!r}], object))]).exec()"
)
TEXT = "{call}.output_tensors()[0].as_numpy()[0].decode()"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes") / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    repository(models, ["identity"])
    for name in MODELS:
        write_model(models, name)
    write_model(
        models,
        "batched",
        RUNS_TOGETHER,
        config="max_batch_size: 8\ndynamic_batching {}\n",
    )
    options = (f"--processes={PROCESSES}", "--ui", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(models, *options, work=models.parent) as process:
        yield process


RUNS_TOGETHER = """
def execute(self, requests):
    texts = [pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0][0].decode() for request in requests]
    for text in texts:
        if text.startswith("wait "):
            open(text[5:] + ".begun", "w").close()
            while not os.path.exists(text[5:]):
                time.sleep(0.002)
    answer = f"{len(requests)} in {os.getppid()}".encode()
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[answer]], object))]) for _ in requests]
"""


def post(made: http.client.HTTPConnection, model: str, code: str, **fields: Any) -> tuple[int, Any]:
    value = {"name": "CODE", "datatype": "BYTES", "shape": fields.pop("shape", [1]), "data": [code]}
    made.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [value], **fields}))
    response = made.getresponse()
    document = json.loads(response.read())
    return response.status, document["error"] if response.status != 200 else document["outputs"][0]["data"][0]


def ask(made: http.client.HTTPConnection, model: str, code: str) -> str:
    status, answer = post(made, model, code)
    assert status == 200, answer
    return str(answer)


def connection(server: ServerProcess) -> Any:
    return closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60))


def homes(server: ServerProcess) -> dict[str, int]:
    """The process of each model, by its id."""
    with connection(server) as made:
        return {model: int(ask(made, model, PARENT)) for model in MODELS}


def away(server: ServerProcess) -> str:
    """A model that is not in the coordinator."""
    return next(model for model, home in homes(server).items() if home != server.pid)


class Waiting:
    """A request of a thread of its own."""

    def __init__(self, made: http.client.HTTPConnection, model: str, code: str, **fields: Any) -> None:
        self.answers: list[tuple[int, Any]] = []
        self._thread = threading.Thread(target=lambda: self.answers.append(post(made, model, code, **fields)))
        self._thread.start()

    def answer(self) -> tuple[int, Any]:
        self._thread.join(60)
        return self.answers[0]


def until_it_ends(folder: Path, name: str) -> str:
    """Code that ends once the file *name* is in *folder*; it writes another one when it begins."""
    return f"open('{folder / name}.begun', 'w').close()\nwhile not os.path.exists('{folder / name}'): time.sleep(0.002)"


def test_models_with_one_instance_use_all_processes_and_each_process_reaches_each_of_them(
    server: ServerProcess,
) -> None:
    found = homes(server)
    assert {each.ppid() for each in server.children()} == {each.pid for each in server.serving()}
    with connection_of_each(server) as each:
        for made in each.values():
            for model in MODELS:
                assert len({ask(made, model, f"({PARENT}, {PID})") for _ in range(10)}) == 1
                assert ask(made, model, PARENT) == str(found[model])
            assert post(made, "one", "1", id="7")[0] == 200


@pytest.mark.parametrize("size", [1, 5_000, 700_000, 3_000_000])
def test_tensors_of_every_size_reach_a_home_and_come_back(server: ServerProcess, size: int) -> None:
    array = np.random.default_rng(size).random(size, np.float32)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [size], "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    with connection_of_each(server) as made:
        for each in [*made.values()] * 3:
            headers = {"Inference-Header-Content-Length": str(len(head))}
            each.request("POST", "/v2/models/identity/infer", head + array.tobytes(), headers)
            response = each.getresponse()
            body = response.read()
            assert response.status == 200, body[:200]
            assert body[int(response.headers["Inference-Header-Content-Length"]) :] == array.tobytes()


def test_errors_and_statistics_are_those_of_a_model_in_one_process(server: ServerProcess) -> None:
    def successes(model: str) -> int:
        (found,) = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
        return int(found["inference_stats"]["success"]["count"])

    model = away(server)
    before = successes(model)
    with connection_of_each(server) as made:
        wrong = {post(each, model, "1", inputs=[])[1].partition(" for model")[0] for each in made.values()}
        assert wrong == {"[request id: <id_unknown>] expected 1 inputs but got 0 inputs"}
        for each in made.values():
            assert ask(each, model, "1 / 0") == "ZeroDivisionError: division by zero"
    assert successes(model) == before + PROCESSES


def test_requests_to_a_queue_in_another_process_are_executed_together(server: ServerProcess, tmp_path: Path) -> None:
    """Those of all processes are in one queue, so they make one batch."""
    with ExitStack() as stack:
        first, rest = stack.enter_context(connection(server)), []
        for _ in range(2):
            rest += list(stack.enter_context(connection_of_each(server)).values())

        busy = Waiting(first, "batched", f"wait {tmp_path / 'end'}", shape=[1, 1])
        until((tmp_path / "end.begun").exists, "the model to execute")
        sent = [Waiting(each, "batched", "x", shape=[1, 1]) for each in rest]
        pending = f'nv_inference_pending_request_count{{model="batched",version="1"}} {len(rest)}'
        until(lambda: pending in metrics(server), "all requests to wait")
        (tmp_path / "end").touch()
        assert busy.answer()[0] == 200
        answers = {each.answer()[1] for each in sent}
    assert len(answers) == 1
    assert answers.pop().startswith(f"{len(rest)} in ")


def test_a_request_that_waits_is_cancelled_when_its_client_leaves(server: ServerProcess, tmp_path: Path) -> None:
    model = away(server)
    with connection_of_each(server) as one, connection_of_each(server) as two:
        for pid, made in one.items():
            assert ask(made, model, "time.sleep(0.05)") == "None"  # a fast model gets its next request ahead
            busy = Waiting(made, model, until_it_ends(tmp_path, f"end {pid}"))
            until((tmp_path / f"end {pid}.begun").exists, "the model to execute")
            begun = tmp_path / f"begun {pid}"
            body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [f"open('{begun}', 'w')"]}]}
            two[pid].request("POST", f"/v2/models/{model}/infer", json.dumps(body))
            waiting = f'nv_inference_pending_request_count{{model="{model}",version="1"}} 1'
            until(lambda waiting=waiting: waiting in metrics(server), "the request to wait")
            two[pid].close()
            until(lambda waiting=waiting: waiting not in metrics(server), f"that of {pid} to be cancelled")
            (tmp_path / f"end {pid}").touch()
            assert busy.answer() == (200, "done")
            assert ask(made, model, "1") == "1"
            assert not begun.exists()


def test_calls_reach_models_of_other_processes_and_those_that_can_never_be_answered_are_refused(
    server: ServerProcess,
) -> None:
    found = homes(server)
    with connection(server) as made:
        for caller in MODELS:
            for called in MODELS:
                inner = CALL.format(model=called, code=PARENT)
                if caller != called:
                    assert ask(made, caller, TEXT.format(call=inner)) == repr(str(found[called]))
                else:
                    refused = ask(made, caller, f"{inner}.error().message()")
                    assert (
                        f"can never be answered, as all instances that could wait on each other: '{caller}_0" in refused
                    )
            for called in MODELS:
                if called == caller:
                    continue
                back = CALL.format(model=caller, code="1") + ".error().message()"
                answer = ask(made, caller, TEXT.format(call=CALL.format(model=called, code=back)))
                assert "can never be answered" in answer
                assert f"'{caller}_0" in answer
                assert f"'{called}_0" in answer


def test_an_unload_waits_for_the_request_that_the_model_executes(
    server: ServerProcess, models: Path, tmp_path: Path
) -> None:
    write_model(models, "leaving")
    assert server.post("/v2/repository/models/leaving/load").status == 200
    with connection_of_each(server) as each:
        for pid, made in each.items():
            busy = Waiting(made, "leaving", until_it_ends(tmp_path, f"end {pid}"))
            until((tmp_path / f"end {pid}.begun").exists, "the model to execute")
            assert server.post("/v2/repository/models/leaving/unload").status == 200
            (tmp_path / f"end {pid}").touch()
            assert busy.answer() == (200, "done")
            assert post(made, "leaving", "1")[0] == 404
            assert server.post("/v2/repository/models/leaving/load").status == 200
            assert ask(made, "leaving", "1") == "1"


def test_no_request_is_lost_while_a_model_is_loaded_again_and_it_stays_in_its_process(server: ServerProcess) -> None:
    model = away(server)
    home = homes(server)[model]
    outcomes: Counter[tuple[int, Any]] = Counter()
    is_over = threading.Event()

    def talk(made: http.client.HTTPConnection) -> None:
        while not is_over.is_set():
            outcomes[post(made, model, PARENT)] += 1

    with connection_of_each(server) as one, connection_of_each(server) as two:
        threads = [threading.Thread(target=talk, args=(each,)) for each in (*one.values(), *two.values())]
        for thread in threads:
            thread.start()
        for _ in range(4):
            assert server.post(f"/v2/repository/models/{model}/load").status == 200
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert set(outcomes) == {(200, str(home))}


def test_a_configuration_that_changes_nothing_leaves_the_guest_where_it_is(server: ServerProcess) -> None:
    model = away(server)
    with connection(server) as made:
        guest = ask(made, model, PID)
        server.begin_log()
        parameters = {"config": json.dumps(server.get(f"/v2/models/{model}/config").json())}

        reply = server.post(f"/v2/repository/models/{model}/load", {"parameters": parameters})

        assert reply.status == 200, reply.error
        assert ask(made, model, PID) == guest
        assert f"instances of '{model}' version 1: all stay" in server.log


def test_a_guest_that_is_killed_fails_its_request_alone_and_the_others_wait_for_the_next(
    server: ServerProcess, tmp_path: Path
) -> None:
    model = away(server)
    with connection_of_each(server) as one, connection_of_each(server) as two:
        pid = int(ask(one[server.pid], model, PID))
        busy = Waiting(one[server.pid], model, until_it_ends(tmp_path, "end"))
        until((tmp_path / "end.begun").exists, "the model to execute")
        os.kill(pid, signal.SIGKILL)
        waiting = [Waiting(each, model, PID) for each in two.values()]
        assert busy.answer()[0] == 500
        answers = {each.answer() for each in waiting}
    assert len(answers) == 1
    ((status, found),) = answers
    assert (status, found != str(pid)) == (200, True)


def test_the_page_shows_what_another_process_logs_of_its_models(server: ServerProcess) -> None:
    model = away(server)

    def restarts() -> int:
        lines = server.get(f"/ui/data/log/{model}/0").json()
        return sum(f"'{model}_0' is restarted in" in text and level == "W" for _, _, level, _, text in lines)

    before = restarts()
    with connection(server) as made:
        pid = int(ask(made, model, PID))
        os.kill(pid, signal.SIGKILL)
        until(lambda: restarts() > before, "the line of that process")
        until(lambda: ask(made, model, PID) != str(pid), "the next guest")


def test_requests_wait_while_the_process_of_their_model_is_started_again(server: ServerProcess, tmp_path: Path) -> None:
    model = away(server)
    home = homes(server)[model]
    with connection_of_each(server) as one, connection_of_each(server) as two:
        other = next(pid for pid in one if pid not in {home, server.pid})
        number = next(each.name() for each in others(server) if each.pid == home).split()[-1]
        busy = Waiting(one[other], model, until_it_ends(tmp_path, "end"))
        until((tmp_path / "end.begun").exists, "the model to execute")
        os.kill(home, signal.SIGKILL)
        text = f"cannot finish the request: process {number} of the server, which had it, has exited; send it again"
        assert busy.answer() == (503, text)
        assert server.get(f"/v2/models/{model}/ready").status == 400
        waiting = [Waiting(two[pid], model, PARENT) for pid in (server.pid, other)]
        answers = {each.answer() for each in waiting}
    assert len(answers) == 1
    ((status, now),) = answers
    assert (status, now != str(home)) == (200, True)
    until(lambda: server.get(f"/v2/models/{model}/ready").status == 200, "the model to be ready")
    server.wait_health("ready")
    assert set(homes(server).values()) <= {each.pid for each in server.serving()}


def test_requests_wait_for_a_process_that_dies_again_and_again_only_so_long(server: ServerProcess) -> None:
    model = away(server)
    home = homes(server)[model]
    number = next(each.name() for each in others(server) if each.pid == home).split()[-1]
    kept = {server.pid, *(each.pid for each in others(server) if each.pid != home)}
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.is_set():
            for each in psutil.Process(server.pid).children():
                with contextlib.suppress(psutil.Error):  # it has exited since
                    if each.pid not in kept and any("naiad-process" in word for word in each.cmdline()):
                        each.kill()
            is_over.wait(0.01)

    def is_ready(made: http.client.HTTPConnection) -> bool:
        made.request("GET", f"/v2/models/{model}/ready")
        response = made.getresponse()
        response.read()
        return response.status == 200

    killing = threading.Thread(target=kill)
    with connection_of_each(server) as one:
        made = one[server.pid]  # any other connection may come to the process that is killed
        killing.start()
        try:
            until(lambda: not is_ready(made), "the process to be gone")
            answers = [Waiting(made, model, PARENT).answer() for _ in range(2)]
        finally:
            is_over.set()
            killing.join()
        assert {status for status, _ in answers} == {503}
        assert all(f"process {number} of the server" in text for _, text in answers), answers
        until(lambda: is_ready(made), "the model to be ready")
    until(lambda: len(server.serving()) == PROCESSES, "all processes to serve")
    serving = {each.pid for each in server.serving()}
    until(lambda: {each.ppid() for each in server.children()} == serving, "guests of killed processes to end")
    server.wait_health("ready")


def test_a_stream_of_a_model_in_another_process_arrives_whole_and_ends_when_its_client_leaves(
    server: ServerProcess, models: Path
) -> None:
    text = """
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                count = int(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0])
                for number in range(count):
                    if request.is_cancelled():
                        break
                    tensor = pb_utils.Tensor("OUT", np.array([str(number).encode()], object))
                    sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    decoupled = "model_transaction_policy { decoupled: true }\n"
    for name in ("streams_a", "streams_b"):
        write_model(models, name, text, config=decoupled)
        assert server.post(f"/v2/repository/models/{name}/load").status == 200
    for model in ("streams_a", "streams_b"):
        with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
            got: list[str] = []

            def take(result: Any, error: Any, got: list[str] = got) -> None:
                if error is None:  # else it was cancelled
                    got.append(result.as_numpy("OUT")[0].decode())

            client.start_stream(take)
            value = tritonclient.grpc.InferInput("CODE", [1], "BYTES")
            value.set_data_from_numpy(np.array([b"3000"], object))
            client.async_stream_infer(model, [value])
            until(lambda got=got: len(got) == 3000, "all responses")
            assert got == [str(number) for number in range(3000)]
            value.set_data_from_numpy(np.array([b"1000000000"], object))
            client.async_stream_infer(model, [value])
            until(lambda got=got: len(got) > 4000, "some of its responses")
            client.stop_stream(cancel_requests=True)
        assert server.post(f"/v2/repository/models/{model}/unload").status == 200


def records_of(path: Path) -> dict[int, list[dict[str, Any]]]:
    found = defaultdict(list)
    for record in json.loads(path.read_text()):
        found[record["id"]].append(record)
    return found


STEP = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "CODE")
            .as_numpy())]) for request in requests]
"""
CALLS = """
def execute(self, requests):
    responses = []
    for request in requests:
        call = pb_utils.InferenceRequest(model_name="step", requested_output_names=["OUT"], trace=request.trace(),
            inputs=[pb_utils.get_input_tensor_by_name(request, "CODE")])
        responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
    return responses
"""
ENSEMBLE = """
platform: "ensemble"
input [{ name: "CODE" data_type: TYPE_STRING dims: [1] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [1] }]
ensemble_scheduling { step [
    { model_name: "step" model_version: -1 input_map { key: "CODE" value: "CODE" } output_map { key: "OUT" value: "x" } },
    { model_name: "calls" model_version: -1 input_map { key: "CODE" value: "x" } output_map { key: "OUT" value: "OUT" } }
] }
"""


def test_traces_and_times_of_ensembles_have_what_other_processes_execute(tmp_path: Path) -> None:
    """Members that were loaded before their ensemble stay where they are: in two other processes."""
    models, file = tmp_path / "models", tmp_path / "traces"
    write_model(models, "first")  # in the coordinator
    write_model(models, "step", STEP)
    write_model(models, "calls", CALLS)
    (models / "both" / "1").mkdir(parents=True)
    options = (
        f"--processes={PROCESSES}",
        "--model-control-mode=explicit",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=TENSORS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={file}",
    )
    with ServerProcess(models, *options, work=tmp_path) as server:
        for name in ("first", "step", "calls", "both"):
            if name == "both":
                (models / "both" / "config.pbtxt").write_text(ENSEMBLE)
            assert server.post(f"/v2/repository/models/{name}/load").status == 200
        assert len({each.ppid() for each in server.children()} - {server.pid}) == 2
        with connection_of_each(server) as each:
            for number, made in enumerate(each.values()):
                assert post(made, "both", f"text {number}", id=f"request {number}") == (200, f"text {number}")
        (found,) = server.get("/v2/models/both/stats").json()["model_stats"]
        assert found["inference_stats"]["compute_infer"]["ns"] > 0
    found = records_of(file)
    children = defaultdict(list)
    for number, records in found.items():
        for record in records:
            if "parent_id" in record:
                children[record["parent_id"]].append(number)
    roots = [number for number, records in found.items() if str(records[0].get("request_id")).startswith("request ")]
    roots = [number for number in roots if records_name(found[number]) == "both"]
    assert len(roots) == PROCESSES
    for root in roots:
        steps = children[root]
        assert sorted(records_name(found[each]) for each in steps) == ["calls", "step"]
        (calls,) = (each for each in steps if records_name(found[each]) == "calls")
        (called,) = children[calls]
        assert records_name(found[called]) == "step"
        for each in (*steps, called):
            stamps = {stamp["name"]: stamp["ns"] for record in found[each] for stamp in record.get("timestamps", ())}
            order = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"]
            order += ["COMPUTE_END", "REQUEST_END"]
            assert sorted(stamps, key=order.index) == order
            computed = [stamps[name] for name in order[1:]]
            assert computed == sorted(computed)
            assert {record["activity"] for record in found[each] if "tensor" in record} >= {"TENSOR_QUEUE_INPUT"}


def records_name(records: list[dict[str, Any]]) -> str:
    return next(str(record["model_name"]) for record in records if "model_name" in record)
