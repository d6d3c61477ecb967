"""Calls of models to other models: what comes back, in every way of asking. Found at the reference (see `contract`)."""

from __future__ import annotations

import pytest
from serving.contract import ours, run, serving

MODELS = (
    "runs_code",
    "runs_coroutine",
    "says_what_it_got",
    "identity",
    "repeats",
)


@pytest.fixture(scope="module")
def server(work):
    with serving(work, *MODELS) as running:
        yield running


PREFIX = "Model identity - Error when running inference: "
ONLY_IN_EXECUTE = "TritonModelException: BLS is only supported during the 'execute' function."


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("to('identity')", "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s)."),
        ("to('identity', pb_utils.Tensor('WRONG', np.ones(1, np.float32)))", "unexpected inference input 'WRONG' for model 'identity'"),
        ("to('identity', pb_utils.Tensor('IN', np.ones(1, np.int32)))", "[request id: <id_unknown>] inference input 'IN' data-type is 'INT32', but model 'identity' expects 'FP32'"),
        ("to('identity', pb_utils.Tensor('IN', np.ones((1, 1), np.float32)))", "[request id: <id_unknown>] unexpected shape for input 'IN' for model 'identity'. Expected [-1], got [1,1]. "),
        ("to('identity', tensor(1), outputs=['NOPE'])", "unexpected inference output 'NOPE' for model 'identity'"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_its_model_is_answered_with_the_reason(server, call, text):
    expected = {"error": PREFIX + text, "code": 1}
    assert run(server, "runs_code", f"return [answer(value_of({call}.exec()))]") == expected
    assert run(server, "runs_coroutine", f"return [answer(value_of(await {call}.async_exec()))]") == expected
    iterated = run(server, "runs_code", f"return [answer([value_of(r) for r in {call}.exec(decoupled=True)])]")
    assert iterated == [expected]


@ours
def test_a_call_of_an_unknown_model_or_version_is_an_error(server):
    """The reference of the newest release; the one compared with says of both that they are not ready."""
    prefix = "Model nobody - Error when running inference: "
    unknown = run(server, "runs_code", "return [answer(value_of(to('nobody', tensor(1)).exec()))]")
    assert unknown == {"error": f"{prefix}Request for unknown model: 'nobody' is not found", "code": 1}
    version = run(server, "runs_code", "return [answer(value_of(to('identity', tensor(1), model_version=7).exec()))]")
    assert version == {"error": f"{PREFIX}Request for unknown model: 'identity' version 7 is not found", "code": 1}


def test_a_decoupled_model_has_to_be_called_as_one(server):
    reply = run(server, "runs_code", "return [answer(value_of(to('repeats', tensor(1, 0)).exec()))]")
    assert reply == {
        "error": "Model repeats - Error when running inference: Model repeats is using the decoupled. The current BLS "
        "request call doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' "
        "argument to the 'exec' or 'async_exec' calls for decoupled models.'",
        "code": 1,
    }


@ours
def test_an_error_of_the_called_model_keeps_its_code(server):
    """The older reference turns every one into INTERNAL."""
    code = """
    codes = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
    body = "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.%s))]"
    return [answer([value_of(to("runs_coroutine", code(body % name)).exec()) for name in codes])]
    """
    assert run(server, "runs_code", code) == [{"error": "no", "code": number} for number in range(8)]


def test_an_exception_of_the_called_model_has_its_file_and_line(server):
    reply = run(
        server, "runs_code", """return [answer(value_of(to("runs_coroutine", code("raise ValueError('x')")).exec()))]"""
    )
    text = "Failed to process the request(s) for model 'runs_coroutine_0', message: ValueError: x\n\nAt:\n  <string>(2): run\n"
    assert (reply["error"].startswith(text), reply["code"]) == (True, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("request_id='a', correlation_id=7, flags=3, timeout=9", {"id": "a", "correlation": 7, "flags": 3, "timeout": 9}),
        ("correlation_id='seq'", {"correlation": "seq"}),
        ("correlation_id=(1 << 64) - 1", {"correlation": (1 << 64) - 1}),
        ("parameters={'x': 1, 'y': 'z', 'w': True}", {"parameters": {"x": 1, "y": "z", "w": True}}),
        ("outputs=['OUT', 'OUT']", {"outputs": ["OUT"]}),
        ("outputs=[]", {"outputs": ["MORE", "OUT"]}),
        ("outputs=np.array([b'OUT'], object), request_id=b'a', timeout=np.array([9])", {"id": "a", "timeout": 9}),
        ("preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)", {}),
        pytest.param("preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)", {}, marks=ours),
        ("trace=request.trace()", {}),
    ],
)  # fmt: skip
def test_the_called_model_gets_the_request_as_it_was_made(server, arguments, told):
    code = f"""return [answer(json.loads(value_of(to("says_what_it_got", tensor(1), {arguments}).exec())["OUT"][0]))]"""
    plain = {"id": "", "correlation": 0, "flags": 0, "timeout": 0, "parameters": {}, "outputs": ["OUT"]}
    assert run(server, "runs_code", code) == {**plain, **told}


def test_a_model_may_be_named_by_an_element_of_a_tensor(server):
    code = (
        "return [answer(value_of(to(np.array(['identity'], object).astype('S').astype(object)[0], tensor(1)).exec()))]"
    )
    assert run(server, "runs_code", code) == run(server, "runs_code", code.replace(".astype('S')", ""))


def test_only_requested_outputs_come_back(server):
    code = "return [answer(sorted(value_of(to('says_what_it_got', tensor(1), outputs=%s).exec())))]"
    assert run(server, "runs_code", code % "['MORE']") == ["MORE"]
    assert run(server, "runs_code", code % "[]") == ["MORE", "OUT"]


def test_models_are_called_from_execute_only(server):
    assert run(server, "runs_code", "return [answer(model.in_initialize)]") == ONLY_IN_EXECUTE


def test_a_finalizing_model_may_not_call(tmp_path):
    with serving(tmp_path, "runs_code", "identity") as server:
        server.stop()
        assert f"in finalize: {ONLY_IN_EXECUTE}" in server.log


@pytest.mark.parametrize("wrapped", ["CALL", "in_thread(lambda: CALL)", "in_thread(lambda: in_thread(lambda: CALL))"])
def test_threads_call_as_execute_does(server, wrapped):
    call = wrapped.replace("CALL", "raised(to('identity', tensor(5)).exec)")
    assert run(server, "runs_code", f"return [answer([{call} for _ in range(9)])]") == [{"OUT": [5.0]}] * 9


def test_a_request_may_be_run_again_and_again(server):
    code = """
    request = to("identity", tensor(5))
    return [answer([value_of(request.exec()) for _ in range(3)])]
    """
    assert run(server, "runs_code", code) == [{"OUT": [5.0]}] * 3


@pytest.mark.parametrize("model", ["runs_coroutine", "runs_code"])
def test_a_hundred_calls_are_awaited_together(server, model):
    values = "await ask(100)" if model == "runs_coroutine" else "asyncio.run(ask(100))"
    code = f"""
    async def ask(count):
        calls = [to("identity", tensor(n)).async_exec() for n in range(count)]
        return [value_of(response)["OUT"][0] for response in await asyncio.gather(*calls)]
    return [answer({values})]
    """
    assert run(server, model, code) == list(range(100))


def test_awaiting_needs_a_running_loop(server):
    code = "return [answer(raised(to('identity', tensor(5)).async_exec))]"
    assert run(server, "runs_code", code) == "RuntimeError: no running event loop"


def test_many_threads_call_at_once(server):
    code = """
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(16) as pool:
        values = pool.map(lambda n: value_of(to("identity", tensor(n)).exec())["OUT"][0], range(200))
    return [answer(list(values))]
    """
    assert run(server, "runs_code", code) == list(range(200))


@ours
def test_threads_and_coroutines_call_at_once(server):
    """Each waits in its own way, and one of them reads for all."""
    code = """
    loop = asyncio.get_running_loop()
    def in_pool(n):
        return value_of(to("identity", tensor(n)).exec())["OUT"][0]
    def own_loop(n):
        async def ask():
            return value_of(await to("identity", tensor(n)).async_exec())["OUT"][0]
        return asyncio.run(ask())
    async def here(n):
        return value_of(await to("identity", tensor(n)).async_exec())["OUT"][0]
    calls = []
    for n in range(0, 120, 3):
        calls += [loop.run_in_executor(None, in_pool, n), loop.run_in_executor(None, own_loop, n + 1), here(n + 2)]
        if n % 30 == 0:
            assert in_pool(n) == n
    return [answer(await asyncio.gather(*calls))]
    """
    assert run(server, "runs_coroutine", code) == list(range(120))


def test_chains_of_models_pass_values_on(server):
    inner = 'return [answer(value_of(to("identity", tensor(1, 2, 3)).exec()))]'
    code = f"""return [answer(json.loads(value_of(to("runs_coroutine", code({inner!r})).exec())["OUT"][0]))]"""
    assert run(server, "runs_code", code) == {"OUT": [1.0, 2.0, 3.0]}


@ours
def test_a_request_that_was_not_received_has_a_sender_that_cannot_send(server):
    """And is never cancelled. Asking kills the reference."""
    code = """
    made = to("identity", tensor(5))
    sender = made.get_response_sender()
    return [answer([sent(sender, answer(1)), sent(sender, flags=FINAL), sender.is_cancelled(), made.is_cancelled()])]
    """
    text = "TritonModelException: Unable to send response. Response sender has no reference to the decoupled state of the model."
    assert run(server, "runs_code", code) == [text, text, False, False]


@ours
def test_a_received_request_is_not_run_again(server):
    text = "TritonModelException: Only requests that the model made itself can be run on other models."
    assert run(server, "runs_code", "return [answer(raised(request.exec))]") == text
