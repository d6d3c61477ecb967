"""Models that wait for each other: who can never be answered is told so, who only waits is not."""

from __future__ import annotations

import re

import pytest
from serving.contract import ours, run, serving


@pytest.fixture(scope="module")
def server(work):
    with serving(work, "runs_code", "runs_coroutine", "identity") as running:
        yield running


RING = r"Model (\w+) - Error when running inference: the call can never be answered, as all instances that could wait on each other: '(.*)'\. "


@ours
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("exec()", "exec()"),
        ("exec(decoupled=True)", "exec()"),
        ("async_exec()", "async_exec()"),
    ],
)
def test_models_that_wait_for_each_other_get_an_error_that_names_the_ring(server, outer, inner):
    """There is one instance of each; the reference waits for ever."""
    wait = "await " if "async" in outer else ""
    model, other = ("runs_coroutine", "runs_code") if wait else ("runs_code", "runs_coroutine")
    innermost = f"to({model!r}, code('return [answer(1)]'))"
    middle = f"return [answer(raised({innermost}.exec))]"
    first = (
        "value_of(next(to(%r, code(%r)).%s))" if "decoupled" in outer else f"value_of({wait}to(%r, code(%r)).%s)"
    ) % (other, middle, outer)
    reply = run(server, model, f"return [answer(json.loads({first}['OUT'][0]))]")
    match = re.match(RING, reply["error"])
    assert match, reply
    assert set(match[2].split("' -> '")) == {f"{model}_0", f"{other}_0"}
    assert run(server, model, "return [answer('goes on')]") == "goes on"


def test_a_call_that_waits_for_a_slow_model_is_no_ring(server):
    """A thread of the model waits for an instance that is busy with the same model's request, which goes on."""
    code = """
    model.late = []
    ask = lambda: model.late.append(raised(to("runs_code", code("return [answer('late')]")).exec))
    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(2.5)
    model.thread = thread
    return [answer(len(model.late))]
    """
    assert run(server, "runs_code", code) == 0
    assert run(server, "runs_code", "model.thread.join()\nreturn [answer(model.late)]") == [{"OUT": ['"late"']}]
