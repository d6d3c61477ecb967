"""Whatever an ensemble looks like and in whatever order its steps answer: rules that always hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import NaiadError
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.scheduling.ensembles.progress import (
    CancelStep,
    EndResponses,
    EnsembleProgress,
    FailRequest,
    ResponseConsumed,
    SendResponse,
    StartStep,
)


@st.composite
def graphs(draw, *, streams=True):
    """An ensemble whose first step makes T0; each of the others takes tensors from before, and the last ones go out."""
    count = draw(st.integers(1, 6))
    steps = []
    is_stream = streams and draw(st.booleans())
    for index in range(count):
        before = [f"T{other}" for other in range(index)] or ["X"]
        sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3))
        steps.append(
            EnsembleStep(
                model=f"m{index}",
                version=-1,
                inputs=tuple((f"I{number}", source) for number, source in enumerate(sources)),
                outputs={"O": f"T{index}"},
                decoupled=index == 0 and is_stream,
            )
        )
    used = {source for each in steps for _, source in each.inputs}
    outputs = tuple(f"T{index}" for index in range(count) if f"T{index}" not in used)
    return EnsembleGraph(name="e", steps=tuple(steps), inputs=("X",), outputs=outputs)


class World:
    """Plays the models and the client of one run."""

    def __init__(self, graph, data, *, failures=False):
        self.graph, self.data, self.failures = graph, data, failures
        self.run = EnsembleProgress(graph)
        self.open = {}  # steps under way, by number
        self.started = []  # step and inputs
        self.sent = {}  # responses of streams by number
        self.taken = {}
        self.responses = []
        self.ends = 0

    def play(self):
        self.carry_out(self.run.start({"X": ("X",)}))
        while self.open:
            number = self.data.draw(st.sampled_from(sorted(self.open)), label="who answers")
            self.answer(number)
        self.carry_out(self.run.on_responses_consumed(1 << 40))

    def answer(self, number):
        index, inputs = self.open[number]
        is_stream = self.graph.steps[index].decoupled
        if self.failures and self.data.draw(st.integers(0, 9), label="luck") == 0:
            del self.open[number]
            self.carry_out(self.run.on_step_failed(number, NaiadError("bad luck"), True))
            return
        is_last = not is_stream or self.data.draw(st.integers(0, 3), label="more") == 0
        if is_last:
            del self.open[number]
        if is_stream:
            count = self.sent[number] = self.sent.get(number, 0) + 1
            outputs = {"O": (f"T{index}", count, *inputs)}
        else:
            outputs = {"O": (f"T{index}", *inputs)}
        self.carry_out(self.run.on_response(number, outputs, is_last))

    def carry_out(self, actions):
        for action in actions:
            match action:
                case StartStep(number, index, inputs):
                    assert not self.ends, "a step was started after the end"
                    assert [name for name, _ in inputs] == [name for name, _ in self.graph.steps[index].inputs]
                    tensors = tuple(tensor for _, tensor in inputs)
                    assert (index, tensors) not in self.started, "a step was started twice"
                    self.started.append((index, tensors))
                    self.open[number] = (index, tensors)
                case SendResponse(outputs, final):
                    assert not self.ends, "a response after the end"
                    self.responses.append(tuple(tensor for _, tensor in outputs))
                    self.ends += final
                case EndResponses() | FailRequest():
                    assert not self.ends, "a second end"
                    self.ends += 1
                case ResponseConsumed(number):
                    self.taken[number] = self.taken.get(number, 0) + 1
                case CancelStep(number):
                    assert number in self.open


def origins(tensor):
    """The responses of the stream that a tensor was made from."""
    if tensor[0] == "T0" and isinstance(tensor[1], int):
        return {tensor[1]}
    return set().union(*(origins(each) for each in tensor if isinstance(each, tuple)), set())


@given(graphs(), st.data())
def test_every_step_runs_once_for_each_response_and_every_due_response_is_sent(graph, data):
    world = World(graph, data)
    world.play()
    rounds = max(world.sent.values(), default=1) if graph.decoupled else 1
    assert world.ends == 1
    assert len(world.responses) == rounds
    assert len(world.started) == 1 + (len(graph.steps) - 1) * rounds
    assert world.run.is_done
    for outputs in world.responses:
        assert [tensor[0] for tensor in outputs] == list(graph.outputs)


@given(graphs(), st.data())
def test_joined_tensors_come_from_one_response(graph, data):
    world = World(graph, data)
    world.play()
    for _, tensors in world.started:
        assert len(set().union(*map(origins, tensors))) <= 1
    for outputs in world.responses:
        assert len(set().union(*map(origins, outputs))) <= 1


@given(graphs(), st.data())
def test_no_stream_has_more_consumed_responses_than_it_sent(graph, data):
    world = World(graph, data)
    world.play()
    for number, count in world.taken.items():
        assert count <= world.sent[number]


@given(graphs(), st.data())
def test_an_ensemble_ends_exactly_once_whichever_steps_fail(graph, data):
    world = World(graph, data, failures=True)
    world.play()
    assert world.ends == 1
    assert world.run.is_done
