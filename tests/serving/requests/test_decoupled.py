"""Response senders in both modes, and decoupled models: rules, texts, order. Found at the reference (see `contract`)."""

from __future__ import annotations

import pytest
from serving.contract import REFERENCE, Stream, ours, run, serving, stream

MODELS = ("runs_code", "runs_code_decoupled", "runs_coroutine", "runs_coroutine_decoupled", "identity", "repeats")

UNABLE = "TritonModelException: Unable to send response. "
CLOSED = UNABLE + "Response sender has been closed."
ONCE = UNABLE + "Non-decoupled model cannot send more than one response."
FIRST = UNABLE + "Non-decoupled model cannot send complete final before sending a response."
FLAG = UNABLE + "Unsupported flag provided."
NEEDED = "TritonModelException: Inference Response object must be provided when the response flags is set to zero."


@pytest.fixture(scope="module")
def server(work):
    with serving(work, *MODELS) as running:
        yield running


def failed(model: str, text: str) -> str:
    return f"Failed to process the request(s) for model '{model}_0', message: {text}"


# -- the default mode ---------------------------------------------------------------------------------------------


def test_a_model_may_answer_through_a_sender_once(server):
    code = """
    sender = request.get_response_sender()
    model.seen = [sent(sender, flags=FINAL), sent(sender), sent(sender, flags=5), sent(sender, answer(1), 7)]
    model.seen += [sent(sender, answer(1), FINAL), sent(sender, answer(2)), sent(sender, flags=FINAL)]
    return None
    """
    assert run(server, "runs_code", code) == 1
    assert run(server, "runs_code", "return [answer(model.seen)]") == [FIRST, NEEDED, FLAG, FLAG, "sent", ONCE, CLOSED]


def test_the_final_flag_may_follow_the_response(server):
    code = """
    sender = request.get_response_sender()
    model.seen = [sent(sender, answer(1)), sent(sender, answer(2)), sent(sender, flags=FINAL), sent(sender, flags=FINAL)]
    return [None]
    """
    assert run(server, "runs_code", code) == 1
    assert run(server, "runs_code", "return [answer(model.seen)]") == ["sent", ONCE, "sent", CLOSED]


def test_a_sender_is_closed_by_what_execute_returns_or_raises(server):
    run(server, "runs_code", "model.sender = request.get_response_sender()\nreturn [answer(1)]")
    code = "return [answer([sent(model.sender, answer(1)), sent(model.sender, flags=FINAL)])]"
    assert run(server, "runs_code", code) == [ONCE, CLOSED]
    run(server, "runs_code", "model.sender = request.get_response_sender()\nraise ValueError('x')")
    assert run(server, "runs_code", "return [answer(sent(model.sender, answer(1)))]") == CLOSED


@pytest.mark.parametrize("end", ["return [answer(2)]", "raise ValueError('late')", "return None", "return [None]"])
def test_a_sender_sends_nothing_after_its_final_flag(server, end):
    code = f"sender = request.get_response_sender()\nsent(sender, answer(1), FINAL)\n{end}"
    assert run(server, "runs_code", code) == 1
    assert REFERENCE or run(server, "runs_coroutine", code) == 1  # after the exception the reference's hangs


@pytest.mark.parametrize(
    "send",
    [
        "in_thread(lambda: sent(sender, answer('t'), FINAL))",
        "threading.Timer(0.05, lambda: sent(sender, answer('t'), FINAL)).start()",
    ],
)
def test_a_thread_may_answer_after_execute_has_returned(server, send):
    assert run(server, "runs_code", f"sender = request.get_response_sender()\n{send}\nreturn None") == "t"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("return (answer(1),)", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ("return 7", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("return answer(1)", "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'."),
        ("return []", "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"),
        ("return [None, None]", "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"),
        ("return ['x']", "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'."),
        ("return [pb_utils.TritonError('x')]", "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'c_python_backend_utils.TritonError'>'."),
    ],
)  # fmt: skip
def test_an_invalid_return_value_of_execute_fails_the_batch(server, code, text):
    assert run(server, "runs_code", code) == "500: " + failed("runs_code", text)
    assert run(server, "runs_coroutine", code) == "500: " + failed("runs_coroutine", text)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("SystemExit(3)", "SystemExit: 3"),
        ("KeyboardInterrupt('k')", "KeyboardInterrupt: k"),
        ("pb_utils.TritonModelException('own words')", "TritonModelException: own words"),
    ],
)
def test_whatever_execute_raises_fails_the_batch_only(server, error, text):
    start = "500: " + failed("runs_code", text) + "\n\nAt:\n  <string>(2): run\n"
    assert run(server, "runs_code", f"raise {error}").startswith(start)
    assert run(server, "runs_code", "return [answer('goes on')]") == "goes on"


# -- the decoupled mode -------------------------------------------------------------------------------------------

SENDER = "sender = request.get_response_sender()\n"


@pytest.mark.parametrize(
    ("code", "events"),
    [
        ("send(answer(1))\nsend(answer(2))\nsend(flags=FINAL)", [1, 2, "end"]),
        ("send(answer(1))\nsend(answer(2), FINAL)", [1, {"last": 2}]),
        ("send(flags=FINAL)", ["end"]),
        ("send(answer(1))\nsend(pb_utils.InferenceResponse([]))\nsend(flags=FINAL)", [1, "empty", "end"]),
        ("r = answer(5)\nsend(r)\nsend(r)\nsend(r, FINAL)", [5, 5, {"last": 5}]),
        ("send(answer(1))\nsend(failure)\nsend(answer(2))\nsend(flags=FINAL)", [1, "error: no", 2, "end"]),
        ("send(answer(1))\nsend(failure, FINAL)  # error ends it", [1, "error: no"]),
        ("send(answer(1), FINAL)\nraise ValueError('after all')", [{"last": 1}]),
        ("send(answer(1), FINAL)\nreturn [None]", [{"last": 1}]),
        ("threading.Thread(target=lambda: [send(answer(n)) for n in range(3)] + [send(flags=FINAL)]).start()", [0, 1, 2, "end"]),
    ],
)  # fmt: skip
def test_responses_come_as_they_were_sent(server, code, events):
    start = "failure = pb_utils.InferenceResponse(error=pb_utils.TritonError('no'))\n" + SENDER + "send = sender.send\n"
    assert stream(server, "runs_code_decoupled", start + code) == events
    assert stream(server, "runs_coroutine_decoupled", start + code) == events


def test_a_sender_enforces_its_rules_in_the_decoupled_mode(server):
    code = """
    sender = request.get_response_sender()
    seen = [sent(sender), sent(sender, flags=2), sent(sender, answer(1)), sent(sender, answer(2), FINAL)]
    model.seen = seen + [sent(sender, answer(3)), sent(sender, flags=FINAL), sent(sender)]
    """
    assert stream(server, "runs_code_decoupled", code) == [1, {"last": 2}]
    seen = stream(server, "runs_code_decoupled", SENDER + "sender.send(answer(model.seen), FINAL)")
    assert seen == [{"last": [NEEDED, FLAG, "sent", "sent", CLOSED, CLOSED, NEEDED]}]


@pytest.mark.parametrize("before", ["", "sender.send(answer(1))\n"])
def test_an_exception_ends_the_stream_with_its_text(server, before):
    code = SENDER + before + "raise ValueError('x')  # error ends it"
    *sent, error = stream(server, "runs_code_decoupled", code)
    assert sent == [1] * bool(before)
    assert error.startswith("error: " + failed("runs_code_decoupled", "ValueError: x\n\nAt:\n  <string>("))


@pytest.mark.parametrize("returned", ["[answer(1)]", "[]", "(None,)"])
def test_execute_of_a_decoupled_model_returns_none(server, returned):
    code = SENDER + f"return {returned}  # error ends it"
    text = "Python model 'runs_code_decoupled_0' is using the decoupled mode and the execute function must return None."
    assert stream(server, "runs_code_decoupled", code) == ["error: " + failed("runs_code_decoupled", text)]


def test_many_threads_send_to_one_request(server):
    code = """
    sender = request.get_response_sender()
    def send(thread):
        for n in range(50):
            sender.send(answer([thread, n]))
    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.send(flags=FINAL)
    """
    *events, end = stream(server, "runs_code_decoupled", code)
    assert end == "end"
    assert [[n for t, n in events if t == thread] for thread in range(8)] == [list(range(50))] * 8


def test_a_coroutine_lets_the_next_one_begin(server):
    """Which the first waits for."""
    with Stream(server) as opened:
        opened.send(
            "runs_coroutine_decoupled",
            SENDER
            + "model.event = asyncio.Event()\nawait asyncio.wait_for(model.event.wait(), 60)\nsender.send(answer('first'), FINAL)",
        )
        opened.send(
            "runs_coroutine_decoupled",
            SENDER
            + "while not hasattr(model, 'event'):\n    await asyncio.sleep(0.001)\nmodel.event.set()\nsender.send(answer('second'), FINAL)",
        )
        events = opened.wait(lambda events: len(events) == 2, "both")
    assert sorted(event["last"] for event in events) == ["first", "second"]


@ours
@pytest.mark.parametrize("end", ["sender.send(answer(2))", "return [answer(2)]", "raise ValueError('late')"])
def test_a_stream_gets_the_one_response_of_a_model_that_tries_to_send_two(server, end):
    with Stream(server) as opened:
        opened.send("runs_code", f"sender = request.get_response_sender()\nsender.send(answer(1))\n{end}")
        opened.send("runs_code", "return [answer('next')]")
        events = opened.wait(lambda events: len(events) >= 2, "both responses")
    assert events == [{"last": 1}, {"last": "next"}]


@ours
@pytest.mark.parametrize(
    "harm",
    [
        "asyncio.get_running_loop().stop()",
        "asyncio.ensure_future(exits())",
        "asyncio.get_running_loop().call_soon(exits_at_once)",
    ],
)
def test_tasks_of_a_model_do_not_end_its_loop(server, harm):
    code = f"""
    async def exits():
        raise SystemExit(4)
    def exits_at_once():
        raise KeyboardInterrupt
    {harm}
    await asyncio.sleep(0.01)
    return [answer('goes on')]
    """
    for _ in range(3):
        assert run(server, "runs_coroutine", code) == "goes on"


@ours
def test_a_response_that_cannot_be_sent_fails_with_the_reason(server):
    code = """
    tensor = pb_utils.Tensor("OUT", np.array(["x"], np.object_))
    tensor._shape = (1,) * 40
    return [pb_utils.InferenceResponse([tensor])]
    """
    text = "output 'OUT' has 40 dimensions; tensors of at most 32 can be sent"
    assert run(server, "runs_code", code) == "500: " + failed("runs_code", text)


@ours
@pytest.mark.parametrize("model", MODELS[:4])
def test_what_execute_logs_carries_the_id_of_its_request(server, model):
    code = f"""
    pb_utils.Logger.log_warn('said by {model}')
    thread = threading.Thread(target=pb_utils.Logger.log_warn, args=['said by a thread of {model}'])
    thread.start(), thread.join()
    sender = request.get_response_sender()
    sender.send(answer(1), FINAL)
    """
    for request_id in ("id-7", ""):
        with Stream(server) as opened:
            opened.send(model, code, request_id)
            opened.wait(lambda events: events, "the response")
    server.wait_for(lambda: server.log.count(f'said by a thread of {model}"') == 2, "the lines")
    assert server.log.count(f'[request id: id-7] said by {model}"') == 1
    assert server.log.count(f'said by {model}"') == 2
    assert f"[request id: id-7] said by a thread of {model}" not in server.log


def test_statistics_count_requests_by_how_they_ended(server):
    """As the reference does, for which an error that a model has sent itself is a success."""

    def counts() -> list[int]:
        [stats] = server.get("/v2/models/runs_code_decoupled/stats").json()["model_stats"]
        inference = stats["inference_stats"]
        return [stats["execution_count"], inference["success"]["count"], inference["fail"]["count"]]

    before = counts()
    for end in ("sender.send(flags=FINAL)", "sender.send(answer(2), FINAL)", "raise ValueError('x')  # error ends it"):
        stream(server, "runs_code_decoupled", SENDER + "sender.send(answer(1))\n" + end)
    sent = "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no')), FINAL)  # error ends it"
    stream(server, "runs_code_decoupled", SENDER + sent)
    # An execution is counted when `execute` has returned, which may be after its last response came here.
    server.wait_for(lambda: counts()[0] == before[0] + 4, "the last execution to be counted")
    assert [after - count for after, count in zip(counts(), before, strict=True)] == [4, 3, 1]
