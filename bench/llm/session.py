"""Runs all contestants in turns, so that changes of the machine's speed affect all alike."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from bench.llm.contestants import Contestant, Servers, engine
from bench.results import Results

STREAMS = (1, 8)
RATE, FIRST, HOST, GUEST = "tokens/s", "first ms", "host us/token", "guest us/token"
TINY = "tiny"
# Long compared with the start of a request, and short enough for many turns.
TOKENS = {TINY: 512, "SmolLM2-135M": 64}
# Requests of one measurement: a tiny model finishes one in a tenth of a second, too short for a measurement.
_REQUESTS = {TINY: 16, "SmolLM2-135M": 1}
_WORDS = "the story of a small lighthouse and the people who lived in it through a long winter by the sea"
_numbers = itertools.count(1)


def prompts(streams: int, each: int = 1) -> list[list[str]]:
    """*each* prompts for every stream; they differ from the first token on, so that no prefix cache has a hit."""
    return [[f"{next(_numbers)}: {_WORDS}" for _ in range(each)] for _ in range(streams)]


def case(model: str, streams: int) -> str:
    """The name of a case."""
    return f"{model}-{streams}"


@dataclasses.dataclass(frozen=True)
class Session:
    """One run.

    Attributes:
        models: Names of the models; only the tiny one also runs on the reference.
        rounds: Number of turns for each contestant and number of streams.
    """

    servers: Servers
    models: Sequence[str]
    rounds: int
    with_triton: bool
    results: Results = dataclasses.field(default_factory=Results)

    def run(self) -> Results:
        """Measure all cases."""
        for model in self.models:
            path = self.servers.environment.models[model]
            with contextlib.ExitStack() as stack:
                contestants = [stack.enter_context(engine(self.servers.environment, path))]
                contestants += stack.enter_context(self.servers.naiad(model, path))
                if self.with_triton and model == TINY:  # with a real model, the engine takes most of the time
                    contestants += stack.enter_context(self.servers.triton(model, path))
                self._measure(model, contestants)
        return self.results

    def _measure(self, model: str, contestants: Sequence[Contestant]) -> None:
        tokens = TOKENS[model]
        for contestant in contestants:
            contestant.measure(prompts(max(STREAMS)), tokens)  # warm-up: the first requests are slow
        for streams in STREAMS:
            for _ in range(self.rounds):
                for contestant in contestants:
                    each = max(1, _REQUESTS[model] // streams)
                    reading = contestant.measure(prompts(streams, each), tokens)
                    first = statistics.median(reading.first) * 1000
                    figures = {RATE: reading.rate, FIRST: first}
                    figures |= {name: cpu * 1e6 for name, cpu in zip((HOST, GUEST), reading.cpu, strict=False)}
                    self.results.add(case(model, streams), contestant.name, figures)
