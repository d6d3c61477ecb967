"""Writes the section on language models of bench/results.md."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.llm.contestants import ENGINE, GRPC, HTTP, OPENAI
from bench.llm.session import FIRST, GUEST, HOST, RATE, STREAMS, TINY, TOKENS, case
from bench.report import MODELS_BEGIN, MODELS_END, with_section
from bench.results import OURS, THEIRS, Results

_QUIET = 1.5
"""Load average for each core above which other work disturbs the run; the run itself causes a little less."""
_LEAST_OF_ENGINE, _MOST_MILLISECONDS, _LEAST_OF_TRITON = 0.95, 5.0, 1.5
REAL = "SmolLM2-135M"
_INTRODUCTION = """\
Written by `python -m bench.llm`: models of the backend `vllm_like` on llama.cpp generate a fixed number of tokens for 1
and for 8 streams. They are compared with the same engine in a script without a server, and with the real Triton and the
same `model.py`. Figures are medians; contestants run in turns. Rate: tokens per second of all streams together, from
the first request to the end of the last response. First: milliseconds to the first text, median of the streams. CPU:
microseconds per token of server / guest, engine included. Client, server and engine share the cores; the engine
uses all but one. `tiny` is the smallest model that llama.cpp runs, one layer of random weights. llama.cpp generates
thousands of its tokens per second, and each token is one response, so this case measures the cost of a token in
`model.py` and in the server. The clients are plain sockets that parse only HTTP/2 frames. For the real model, llama.cpp
does the same work for a token in a script and in a guest. If the CPU times of guest and engine differ by much more than
the server's CPU time, the machine's speed changed in that turn, and the ratio is only as accurate as that."""
_BUSY = " **The machine was busy with other work: ratios between lines mean little, and rates less.**"


def section(results: Results, settings: str) -> str:
    """The text of the section, with its markers."""
    load = os.getloadavg()[1]
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    facts = f"{today}, {os.cpu_count()} cores, load average at the end {load:.1f}; {settings}."
    if load > _QUIET * (os.cpu_count() or 1):
        facts += _BUSY
    parts = [MODELS_BEGIN, "## Language models", _INTRODUCTION, facts, _table(_TARGET_HEAD, list(_targets(results)))]
    parts += [_readings(results, model) for model in TOKENS if case(model, STREAMS[0]) in results.samples]
    return "\n\n".join([*parts, MODELS_END])


def write(path: Path, made: str) -> None:
    """Put the section into the page."""
    path.write_text(with_section(path.read_text(), made, (MODELS_BEGIN, MODELS_END)))


_TARGET_HEAD = ("", "target", "reached", "met")


def _targets(results: Results) -> Iterator[Sequence[str]]:
    for streams in STREAMS:
        name = case(REAL, streams)
        for way in (HTTP, GRPC, OPENAI):
            ratio = _ratio(results, name, f"{OURS} {way}", ENGINE)
            label = f"{REAL}, {_streams(streams)}, {way}: rate / engine's"
            yield _row(label, f"at least {_LEAST_OF_ENGINE} x", ratio, "{:.2f} x", lambda x: x >= _LEAST_OF_ENGINE)
    for way in (HTTP, GRPC, OPENAI):
        name = case(REAL, 1)
        ours, engine = results.median(name, f"{OURS} {way}", FIRST), results.median(name, ENGINE, FIRST)
        over = ours - engine if ours is not None and engine is not None else None
        label = f"{REAL}, 1 stream, {way}: first text after the engine's"
        yield _row(label, f"at most {_MOST_MILLISECONDS:.0f} ms", over, "{:.1f} ms", lambda x: x <= _MOST_MILLISECONDS)
    for streams in STREAMS:
        for way in (HTTP, GRPC):
            ratio = _ratio(results, case(TINY, streams), f"{OURS} {way}", f"{THEIRS} {way}")
            label = f"{TINY}, {_streams(streams)}, {way}: rate / Triton's"
            yield _row(label, f"at least {_LEAST_OF_TRITON} x", ratio, "{:.2f} x", lambda x: x >= _LEAST_OF_TRITON)


def _row(label: str, target: str, value: float | None, form: str, is_met: object) -> Sequence[str]:
    if value is None:
        return (label, target, "not measured", "")
    met = callable(is_met) and is_met(value)
    return (label, target, form.format(value), "yes" if met else "**no**")


def _readings(results: Results, model: str) -> str:
    head = [
        "",
        *(f"{_streams(streams)}: {what}" for streams in STREAMS for what in ("rate", "/ engine", "first ms", "CPU")),
    ]
    rows = []
    for name in results.samples[case(model, STREAMS[0])]:
        cells = [name]
        for streams in STREAMS:
            rate = results.median(case(model, streams), name, RATE)
            first = results.median(case(model, streams), name, FIRST)
            ratio = _ratio(results, case(model, streams), name, ENGINE)
            figures = ((rate, "{:,.0f}"), (ratio, "{:.2f}"), (first, "{:.1f}"))
            cells += ["-" if value is None else form.format(value) for value, form in figures]
            cpu = [results.median(case(model, streams), name, part) for part in (HOST, GUEST)]
            cells.append(" / ".join("-" if value is None else f"{value:,.0f}" for value in cpu))
        rows.append(cells)
    return f"### {model}, {TOKENS[model]} tokens\n\n{_table(head, rows)}"


def _ratio(results: Results, name: str, one: str, other: str) -> float | None:
    above, below = results.median(name, one, RATE), results.median(name, other, RATE)
    return above / below if above is not None and below else None


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
