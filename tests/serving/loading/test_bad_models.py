"""Models that do what no model should: each gets, and gives, an error that says so, and everybody else goes on."""

from __future__ import annotations

import re
import shutil

import psutil
import pytest
from serving.contract import Stream, run, serving, stream
from serving.repositories import SAMPLES, index, infer, repository, values
from serving.written import evaluate, write_model
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until

MODELS = ("runs_code", "runs_coroutine", "runs_code_decoupled", "runs_coroutine_decoupled", "identity")


@pytest.fixture(scope="module")
def server(work):
    with serving(work, *MODELS) as running:
        yield running
        assert "Traceback" not in [
            line for line in running.log.splitlines() if line.startswith("E") and "naiad/" in line
        ]


def goes_on(server: ServerProcess, *models: str) -> None:
    """The model serves, and so do others."""
    assert values(infer(server, "identity", 4)) == [4]
    for model in models:
        assert run(server, model, "return [answer('goes on')]") == "goes on"


def failed(model: str, text: str) -> str:
    return f"500: Failed to process the request(s) for model '{model}_0', message: {text}"


# -- while it is loaded -------------------------------------------------------------------------------------------

BROKEN_AT_LOAD = {
    "raises_in_module": ("pass\nraise OSError('no licence')", r"Internal: OSError: no licence\n\nAt:\n  .*model\.py\(\d+\): "),
    "raises_in_constructor": ("def __init__(self):\n    raise OSError('no licence')", r"Internal: OSError: no licence\n\nAt:\n  .*model\.py\(\d+\): __init__\n"),
    "wants_arguments": ("def __init__(self, path):\n    pass", r"Internal: TypeError: .*missing 1 required positional argument: 'path'"),
    "initialize_takes_nothing": ("def initialize(self):\n    pass", r"Internal: TypeError: .*takes 1 positional argument but 2 were given"),
    "exits_politely": ("def initialize(self, args):\n    raise SystemExit(3)", r"Internal: SystemExit: 3\n\nAt:\n"),
    "recurses": ("def initialize(self, args):\n    self.initialize(args)", r"Internal: RecursionError: maximum recursion depth exceeded"),
    "error_without_words": ("def initialize(self, args):\n    class Mute(Exception):\n        def __str__(self):\n            raise ValueError\n    raise Mute", r"Internal: .*Mute"),
    "exits": ("def initialize(self, args):\n    os._exit(9)", r"Internal: Stub process 'exits_0' is not healthy. Reason: pid \d+ exited with status 9 while it started\."),
    "kills_itself": ("def initialize(self, args):\n    os.kill(os.getpid(), 11)", r"Internal: Stub process 'kills_itself_0' is not healthy. Reason: pid \d+ was killed by SIGSEGV while it started\."),
    "completes_to_none": ("@staticmethod\ndef auto_complete_config(config):\n    return None", r"Internal: auto_complete_config function in model 'completes_to_none' must return a valid pb\.ModelConfig object\."),
    "raises_in_completion": ("@staticmethod\ndef auto_complete_config(config):\n    raise OSError('no licence')", r"Internal: OSError: no licence\n\nAt:\n  .*model\.py\(\d+\): auto_complete_config\n"),
    "completes_to_no_number": ("@staticmethod\ndef auto_complete_config(config):\n    config.as_dict()['max_batch_size'] = float('nan')\n    return config", r"Invalid argument: auto-completed configuration of model 'completes_to_no_number': max_batch_size: Couldn't parse integer: nan"),
    "completes_to_no_text": ("@staticmethod\ndef auto_complete_config(config):\n    config.as_dict()['input'][0]['name'] = '\\ud800'\n    return config", r"Invalid argument: auto-completed configuration of model 'completes_to_no_text': input.name: Unpaired surrogate"),
    "exits_in_completion": ("@staticmethod\ndef auto_complete_config(config):\n    os._exit(9)", r"Internal: .* is not healthy. Reason: pid \d+ exited with status 9 while it started\."),
}  # fmt: skip


@pytest.fixture(scope="module")
def loading(tmp_path_factory):
    work = tmp_path_factory.mktemp("loading")
    for name, (methods, _) in BROKEN_AT_LOAD.items():
        write_model(work / "models", name, methods)
    write_model(work / "models", "good")
    with ServerProcess(work / "models", "--exit-on-error=false", work=work, wait="loaded") as running:
        running.wait_for(
            lambda: all(entry.get("state") in {"READY", "UNAVAILABLE"} for entry in index(running).values()),
            "every model to be loaded or refused",
        )
        yield running


@pytest.mark.parametrize("model", BROKEN_AT_LOAD)
def test_a_model_that_cannot_be_loaded_says_why(loading, model):
    entry = index(loading)[model]
    assert entry["state"] == "UNAVAILABLE"
    assert re.match(BROKEN_AT_LOAD[model][1], entry["reason"], re.DOTALL), entry["reason"]


def test_a_model_whose_attributes_are_looked_up_in_a_dict_serves(tmp_path):
    """As by the reference, though the look-up of a method that it does not have raises KeyError."""
    file = write_model(tmp_path / "models", "looks_up")
    with file.open("a") as text:
        text.write("    def __getattr__(self, name):\n        return {}[name]\n")
    with ServerProcess(tmp_path / "models", work=tmp_path) as running:
        assert evaluate(running, "looks_up", "1 + 1") == "2"


def test_a_good_model_beside_bad_ones_serves(loading):
    assert evaluate(loading, "good", "1 + 1") == "2"


# -- what it answers ----------------------------------------------------------------------------------------------

OUTPUT_NONE = "TritonModelException: Output tensor for inference response should not be empty."


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("return [pb_utils.InferenceResponse([None])]", OUTPUT_NONE),
        ("return [pb_utils.InferenceResponse(None)]", "TypeError: "),
        ("return [pb_utils.InferenceResponse(['OUT'])]", "TypeError: "),
        ("return {0: answer(1)}", "Expected a list in the execute return, found type '<class 'dict'>'."),
        ("return (answer(1) for _ in range(1))", "Expected a list in the execute return, found type '<class 'generator'>'."),
        ("return [[answer(1)]]", "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'list'>'."),
        ("return [requests[0]]", "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'c_python_backend_utils.InferenceRequest'>'."),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("raise MemoryError", "MemoryError"),
        ("np.zeros(1 << 52)", "MemoryError: Unable to allocate 32.0 PiB"),
        ("np.empty(1 << 60)", "ValueError: array is too big"),
        ("def deep(): deep()\ndeep()", "RecursionError: maximum recursion depth exceeded"),
        ("raise BaseException('of no kind')", "BaseException: of no kind"),
        ("raise GeneratorExit('x')", "GeneratorExit: x"),
        ("raise StopIteration('x')", "StopIteration: x"),
        ("raise ValueError('long ' * 100000)", "ValueError: long long"),
        ("raise ValueError('nul \\0 and \\udc80')", "ValueError: nul \0 and "),
    ],
)  # fmt: skip
def test_a_wrong_answer_fails_its_request_with_the_reason(server, code, text):
    for model in ("runs_code", "runs_coroutine"):
        if model == "runs_coroutine" and "StopIteration" in code:
            text = "RuntimeError: coroutine raised StopIteration"
        reply = run(server, model, code)
        assert str(reply).startswith(failed(model, "")), reply
        assert text in reply
        goes_on(server, model)


def test_lists_that_a_model_changes_later_are_copies(server):
    """What was made of a list does not change with it; what a response lists is what is sent."""
    mixed = "tensors = answer(5).output_tensors()\nresponse = pb_utils.InferenceResponse(tensors)\n"
    for change in ("tensors.append('x')", "tensors.clear()", "tensors[0] = None"):
        assert run(server, "runs_code", f"{mixed}{change}\nreturn [response]") == 5
    for change in ("request.inputs().clear()", "request.requested_output_names().clear()", "requests[:] = [None] * 7"):
        assert run(server, "runs_code", f"{change}\nreturn [answer(5)]") == 5
    goes_on(server, "runs_code")


@pytest.mark.parametrize("item", ["'x'", "None", "object()", "pb_utils.TritonError('x')", "request"])
def test_outputs_that_are_no_tensors_fail_their_request(server, item):
    code = f"response = answer(5)\nresponse.output_tensors().append({item})\nreturn [response]"
    for model in ("runs_code", "runs_coroutine"):
        reply = run(server, model, code)
        assert reply == 5 or str(reply).startswith(failed(model, "")), reply
        goes_on(server, model)
    events = stream(
        server,
        "runs_code_decoupled",
        f"response = answer(5)\nresponse.output_tensors().append({item})\n"
        "said = sent(request.get_response_sender(), response, FINAL)\nif said != 'sent':\n    raise ValueError(said) # error ends it",
    )
    assert len(events) == 1, events


ODD = (
    "print('x' * 1000000)",
    "import sys\nsys.stdout.close()\nsys.stderr.close()",
    "import os\nos.close(0)\nos.close(1)\nos.close(2)",
    "import os\nos.chdir('/')\nos.environ.clear()",
    "import signal\nfor number in (1, 2, 13, 15, 17):\n    signal.signal(number, signal.SIG_DFL)",
    "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)\nsignal.signal(signal.SIGALRM, lambda *_: None)",
    "import gc\ngc.disable()\ngc.set_threshold(0)",
    "import socket\nsocket.setdefaulttimeout(0.001)",
    "import logging\nlogging.disable()\nlogging.shutdown()",
    "import threading\nthreading.Thread = None\nthreading.Lock = None",
    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))",
    "import sys\nsys.setrecursionlimit(60)",
    "import sys\nsys.path.clear()\nsys.meta_path.clear()",
    "import sys\nsys.modules.clear()",
)


def test_a_model_may_change_settings_of_its_process(tmp_path):
    with serving(tmp_path, "runs_code", "identity") as server:
        for code in ODD:
            assert run(server, "runs_code", f"{code}\nreturn [answer(5)]") == 5, code
            goes_on(server, "runs_code", "runs_code")


# -- how its process ends -----------------------------------------------------------------------------------------

DEATHS = {
    "os._exit(3)": r"pid \d+ exited with status 3\.",
    "os._exit(0)": r"pid \d+ exited with status 0\.",
    "os.abort()": r"pid \d+ was killed by SIGABRT\.",
    "os.kill(os.getpid(), 9)": r"pid \d+ was killed by SIGKILL \(out of memory\?\)\.",
    "import ctypes; ctypes.string_at(0)": r"pid \d+ was killed by SIGSEGV\.",
    "in_thread(os._exit, 4)": r"pid \d+ exited with status 4\.",
    "[os.close(n) for n in sockets()]": r"pid \d+ (exited|was killed)",
    "import builtins; builtins.len = None": r"pid \d+ exited with status 1\. Its last lines on stderr:\n.*'NoneType' object is not callable",
    "[write_garbage(n) for n in sockets()]": r"pid \d+ was killed: it broke the protocol: ",
}  # fmt: skip
SOCKETS = """
import os, stat
def sockets():
    return [number for number in map(int, os.listdir("/proc/self/fd")) if is_socket(number)]

def write_garbage(number):
    try:
        os.write(number, b"garbage! " * 9)
    except BrokenPipeError:  # one of them only receives
        pass

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
"""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory):
    """A server on which models may die more often than they should."""
    work = tmp_path_factory.mktemp("mortal")
    models = repository(work / "models", MODELS)
    with ServerProcess(models, "--stub-restart-limit=1000", "--stub-restart-window-secs=1", work=work) as running:
        yield running


@pytest.mark.parametrize("code", DEATHS)
@pytest.mark.parametrize("model", ["runs_code", "runs_coroutine"])
def test_a_model_that_ends_its_process_says_how_and_comes_back(mortal, model, code):
    reply = run(mortal, model, f"{SOCKETS}{code}\nreturn [answer('after')]")
    assert re.match(f"500: Stub process '{model}_0' is not healthy. Reason: {DEATHS[code]}", reply, re.DOTALL), reply
    goes_on(mortal, model)


def test_a_decoupled_model_that_dies_in_mid_stream_ends_its_streams_with_the_reason(mortal):
    for model in ("runs_code_decoupled", "runs_coroutine_decoupled"):
        code = "import os\nsender = request.get_response_sender()\nsender.send(answer(1))\nos._exit(3) # error ends it"
        first, last = stream(mortal, model, code)
        assert first == 1
        assert re.match(
            rf"error: Stub process '{model}_0' is not healthy. Reason: pid \d+ exited with status 3\.", last
        ), last
        assert stream(mortal, model, "request.get_response_sender().send(answer(2), FINAL)") == [{"last": 2}]


# -- models that block --------------------------------------------------------------------------------------------

BLOCKS = {
    "runs_code": ["time.sleep(600)", "lock = threading.Lock()\nlock.acquire()\nlock.acquire()", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "while True: pass"],
    "runs_coroutine": ["await asyncio.Event().wait()", "time.sleep(600)"],
}  # fmt: skip


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    """A server on which models are loaded and unloaded by request; it ends although models have blocked."""
    work = tmp_path_factory.mktemp("controlled")
    options = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=1")
    with ServerProcess(repository(work / "models", ["identity", *BLOCKS]), *options, work=work) as running:
        yield running


@pytest.mark.parametrize(("model", "code"), [(model, code) for model, codes in BLOCKS.items() for code in codes])
def test_a_model_that_blocks_delays_no_other_and_can_be_unloaded(controlled, model, code):
    server = controlled
    before = server.log.count("blocks now")
    blocked = in_thread(run, server, model, f"print('blocks now')\n{code}")
    server.wait_for(lambda: server.log.count("blocks now") > before, "the model to block")
    assert values(infer(server, "identity", 4)) == [4]
    assert server.get(f"/v2/models/{model}/ready").status == 200
    assert server.post(f"/v2/repository/models/{model}/unload").status == 200
    assert server.post(f"/v2/repository/models/{model}/load").status == 200
    goes_on(server, model)
    assert re.match(r"50[03]: ", blocked.result(60)), blocked.result()


def test_a_server_ends_though_a_model_blocks_and_was_unloaded(tmp_path):
    models = repository(tmp_path / "models", ["runs_code", "identity"])
    options = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=1")
    with ServerProcess(models, *options, work=tmp_path) as server:
        waiting = []
        for number, code in enumerate(BLOCKS["runs_code"], 1):
            waiting.append(in_thread(run, server, "runs_code", f"print('blocks now')\n{code}"))
            server.wait_for(lambda number=number: server.log.count("blocks now") == number, "the model to block")
            assert server.post("/v2/repository/models/runs_code/unload").status == 200
            assert server.post("/v2/repository/models/runs_code/load").status == 200
        goes_on(server, "runs_code")
        assert server.stop() == 0
        assert all(re.match(r"50[03]: ", blocked.result(60)) for blocked in waiting)


def test_a_coroutine_that_never_ends_does_not_block_other_requests_of_a_decoupled_model(server):
    model = "runs_coroutine_decoupled"
    with Stream(server) as never:
        never.send(
            model,
            "request.get_response_sender().send(answer('here'))\nwhile not request.is_cancelled(): await asyncio.sleep(0.01)",
        )
        never.wait(bool, "its first response")
        assert stream(server, model, "request.get_response_sender().send(answer(2), FINAL)") == [{"last": 2}]
        never.close(cancel=True)


# -- threads ------------------------------------------------------------------------------------------------------

THREADS = {
    "for ever": "def work():\n    while True: time.sleep(0.05)",
    "raises": "def work(): raise ValueError('in a thread')",
    "exits": "def work(): raise SystemExit(3)",
    "calls for ever": "def work():\n    while True: to('identity', tensor(1), outputs=['OUT']).exec()",
    "logs for ever": "def work():\n    while True: pb_utils.Logger.log_info('x'); time.sleep(0.01)",
    "sends too late": "model.over = threading.Event()\ndef work():\n    model.over.wait()\n    for _ in range(100): time.sleep(0.01); model.late = sent(sender, answer('late'))",
}


BUSY = "def work():\n    while True: pass"


@pytest.fixture(scope="module")
def threaded(tmp_path_factory):
    """A server of a model for each kind of leaked thread. It ends in less than the 30 s that its guests have to end."""
    work = tmp_path_factory.mktemp("threaded")
    models = repository(work / "models", ["identity"])
    for name in THREADS:
        shutil.copytree(SAMPLES / "runs_code", models / name.replace(" ", "_"))
    with ServerProcess(models, "--log-verbose=0", work=work, timeout=25) as running:
        yield running
        assert running.stop() == 0


def leak(server: ServerProcess, model: str, work: str) -> None:
    """Start three threads that outlive their request."""
    code = (
        "sender = request.get_response_sender()\n"
        f"{work}\nfor _ in range(3): threading.Thread(target=work).start()\nreturn [answer(5)]"
    )
    assert run(server, model, code) == 5


@pytest.mark.parametrize("name", THREADS)
def test_a_leaked_thread_affects_no_request_and_does_not_delay_the_exit(threaded, name):
    model = name.replace(" ", "_")
    leak(threaded, model, THREADS[name])
    if name == "sends too late":
        # Only the response to another request shows that the first one was sent: a send before that may succeed.
        assert run(threaded, model, "model.over.set()\nreturn [answer(6)]") == 6
    for _ in range(20):
        goes_on(threaded, model)
    if name == "sends too late":
        closed = (
            "TritonModelException: Unable to send response. Non-decoupled model cannot send more than one response."
        )
        until(lambda: run(threaded, model, "return [answer(getattr(model, 'late', ''))]") == closed, closed)


def test_a_busy_leaked_thread_affects_no_request_and_does_not_delay_the_exit(tmp_path):
    """On a server of its own, because it takes a processor until the server ends."""
    models = repository(tmp_path / "models", ["runs_code", "identity"])
    with ServerProcess(models, "--log-verbose=0", work=tmp_path, timeout=25) as server:
        leak(server, "runs_code", BUSY)
        for _ in range(20):
            goes_on(server, "runs_code")
        assert server.stop() == 0


# -- forks --------------------------------------------------------------------------------------------------------

FORKS = {
    "returns": "return [answer('child')]",
    "raises": "raise ValueError('in the child')",
    "exits": "raise SystemExit(3)",
    "leaves": "os._exit(0)",
    "calls": "model.called = raised(to('identity', tensor(1)).exec)\n    os._exit(0)",
    "sends": "sent(request.get_response_sender(), answer('child'))\n    os._exit(0)",
    "stays": "time.sleep(600)",
    "logs": "pb_utils.Logger.log_info('child')\n    os._exit(0)",
}


@pytest.mark.parametrize("name", FORKS)
@pytest.mark.parametrize("model", ["runs_code", "runs_coroutine"])
def test_a_forked_child_cannot_use_the_channel_and_its_parent_serves_on(mortal, model, name):
    code = f"import os\nchild = os.fork()\nif not child:\n    {FORKS[name]}\nreturn [answer([os.getpid(), child])]"
    answer = run(mortal, model, code)
    assert isinstance(answer, list), answer
    parent, child = answer
    assert psutil.pid_exists(parent)
    for _ in range(5):
        goes_on(mortal, model)
    if name == "stays":
        psutil.Process(child).kill()
    until(lambda: is_gone(child), "the child to end")
    assert run(mortal, model, "import os\nreturn [answer(os.getpid())]") == parent


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
