"""Runs everything: contestants in turns, so that a machine growing slower or faster hurts all alike."""

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
# Long enough to outlast the start of a request, short enough for many turns.
TOKENS = {TINY: 512, "SmolLM2-135M": 64}
# Requests of one measurement: a tiny model answers one in a tenth of a second, which measures little.
_REQUESTS = {TINY: 16, "SmolLM2-135M": 1}
_WORDS = "the story of a small lighthouse and the people who lived in it through a long winter by the sea"
_numbers = itertools.count(1)


def prompts(streams: int, each: int = 1) -> list[list[str]]:
    """For each stream so many prompts; they differ from their first token on: nobody finds one in a cache."""
    return [[f"{next(_numbers)}: {_WORDS}" for _ in range(each)] for _ in range(streams)]


def case(model: str, streams: int) -> str:
    """What a case is called."""
    return f"{model}-{streams}"


@dataclasses.dataclass(frozen=True)
class Session:
    """One run.

    Attributes:
        models: Names of models; the tiny one alone runs on the reference, too.
        rounds: Turns for each contestant and number of streams.
    """

    servers: Servers
    models: Sequence[str]
    rounds: int
    with_triton: bool
    results: Results = dataclasses.field(default_factory=Results)

    def run(self) -> Results:
        """Measure everything."""
        for model in self.models:
            path = self.servers.environment.models[model]
            with contextlib.ExitStack() as stack:
                contestants = [stack.enter_context(engine(self.servers.environment, path))]
                contestants += stack.enter_context(self.servers.naiad(model, path))
                if self.with_triton and model == TINY:  # a real model's engine is what takes the time
                    contestants += stack.enter_context(self.servers.triton(model, path))
                self._measure(model, contestants)
        return self.results

    def _measure(self, model: str, contestants: Sequence[Contestant]) -> None:
        tokens = TOKENS[model]
        for contestant in contestants:
            contestant.measure(prompts(max(STREAMS)), tokens)  # the first of everything is slow
        for streams in STREAMS:
            for _ in range(self.rounds):
                for contestant in contestants:
                    each = max(1, _REQUESTS[model] // streams)
                    reading = contestant.measure(prompts(streams, each), tokens)
                    first = statistics.median(reading.first) * 1000
                    figures = {RATE: reading.rate, FIRST: first}
                    figures |= {name: cpu * 1e6 for name, cpu in zip((HOST, GUEST), reading.cpu, strict=False)}
                    self.results.add(case(model, streams), contestant.name, figures)
