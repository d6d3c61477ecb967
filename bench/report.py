"""Writes bench/results.md from results; keeps the prose that was written by hand.

`docs/benchmarks.md` has what users need of it; `tests/benchmarks/test_page.py` says which of its figures are outdated.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench import cases, json_requests
from bench.quiet import LIMIT, STOLEN
from bench.reference import LOAD_WHEEL, SERVER_WHEEL
from bench.results import OURS, THEIRS, Results
from bench.scaling.load import GENERATOR

PAGE = Path(__file__).with_name("results.md")
PROSE_BEGIN, PROSE_END = "<!-- prose: kept when this page is written anew -->", "<!-- end of prose -->"
MODELS_BEGIN, MODELS_END = (
    "<!-- language models: written by `python -m bench.llm` -->",
    "<!-- end of language models -->",
)
SCALING_BEGIN, SCALING_END = "<!-- scaling: written by `python -m bench.scaling` -->", "<!-- end of scaling -->"
ELASTIC_BEGIN, ELASTIC_END = "<!-- elastic: written by `python -m bench.elastic` -->", "<!-- end of elastic -->"
REMOTE_BEGIN, REMOTE_END = "<!-- remote: written by `python -m bench.remote` -->", "<!-- end of remote -->"
OTHERS_BEGIN, OTHERS_END = "<!-- others: written by `python -m bench.others` -->", "<!-- end of others -->"
SAVED_BEGIN, SAVED_END = (
    "<!-- saved models: written by `python -m bench.saved_models` -->",
    "<!-- end of saved models -->",
)
NODES_BEGIN, NODES_END = "<!-- nodes: written by `python -m bench.nodes` -->", "<!-- end of nodes -->"
GPU_BEGIN, GPU_END = "<!-- gpu: figures of `python -m bench.gpu` on a machine with a GPU -->", "<!-- end of gpu -->"
SECTIONS = (
    (SAVED_BEGIN, SAVED_END),
    (OTHERS_BEGIN, OTHERS_END),
    (SCALING_BEGIN, SCALING_END),
    (ELASTIC_BEGIN, ELASTIC_END),
    (REMOTE_BEGIN, REMOTE_END),
    (NODES_BEGIN, NODES_END),
    (GPU_BEGIN, GPU_END),
    (MODELS_BEGIN, MODELS_END),
)
"""Markers of the sections that other programs write, in the order of the page."""
_INTRODUCTION = """\
Written by `make bench`: naiad and the real Triton on one machine in one run, in turns, with the real
`perf_analyzer`. Figures are medians. A ratio is naiad's figure divided by Triton's of the same turn, the median of all
turns. Loads and cold starts were measured again if more than {limit:.0%} of the processors' time went to other
machines, at most as often as there are turns. The last column shows this share for the turns that count."""
_REQUESTS = """\
In each pair the first figure is naiad's, the second Triton's. Identity models return their input tensor; so do those of
native-, a backend in C, and of native-python-, beside it in Python. CPU is the time per request of the server (host)
and of its instance (guest)."""
_JSON = """\
Sent by {generator}, not by perf_analyzer, which takes more CPU for a request than either server: rates of these cases
and of those above cannot be compared. A request has two tensors of 16 or 1,000 numbers, four strings, or the one text
of `generate`. `changing` has other numbers and another id each time. CPU is that of all processes of the server."""
_STARTS = "From starting the program to the first 200 of `/v2/health/ready`."
_MEMORY = "Memory of all processes below a server with 20 loaded models, divided by 20, and of the server's process."
_NO_PROSE = "## Where the time of a request goes\n\nNot written yet."


def write(path: Path, results: Results, settings: str, python: str) -> None:
    """Regenerate the page; keep the prose between its markers and the sections that other programs write."""
    page = path.read_text() if path.exists() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = render(results, settings, python, _prose(page))
    for markers in SECTIONS:
        text = with_section(text, section_of(page, markers), markers)
    path.write_text(text)


def section_of(page: str, markers: tuple[str, str]) -> str:
    """The section between *markers*, which it includes, or "" if the page has none."""
    begin, end = map(re.escape, markers)
    found = re.search(f"{begin}.*{end}", page, re.DOTALL)
    return found[0] if found else ""


def with_section(page: str, section: str, markers: tuple[str, str]) -> str:
    """*page* with the section between *markers* replaced, or with the section appended."""
    old = section_of(page, markers)
    if old:
        return page.replace(old, section)
    return f"{page.rstrip()}\n\n{section}\n" if section else page


def publish(path: Path, section: str, markers: tuple[str, str], *, write: bool) -> None:
    """Write a section into the page, or print it."""
    if write:
        path.write_text(with_section(path.read_text(), section, markers))
        print(f"written: {path.name}")
    else:
        print(section)


def render(results: Results, settings: str, python: str, prose: str) -> str:
    """The text of the page."""
    parts = [
        f"# Benchmarks\n\n{_INTRODUCTION.format(limit=LIMIT)}",
        _facts(settings, python),
        f"## Targets\n\n{_targets(results)}",
        f"{PROSE_BEGIN}\n{prose.strip()}\n{PROSE_END}",
        f"## Requests\n\n{_REQUESTS}\n\n{_loads(results)}",
        f"## Requests in JSON\n\n{_JSON.format(generator=GENERATOR)}\n\n{_json_loads(results)}",
        f"## Starts\n\n{_STARTS}\n\n{_starts(results)}",
        f"## Memory of idle instances\n\n{_MEMORY}\n\n{_memory(results)}",
    ]
    return "\n\n".join(parts) + "\n"


def _prose(page: str) -> str:
    found = re.search(f"{re.escape(PROSE_BEGIN)}(.*){re.escape(PROSE_END)}", page, re.DOTALL)
    return found[1] if found else _NO_PROSE


def _facts(settings: str, python: str) -> str:
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    rows = [
        ("date", str(today)),
        ("machine", f"{processor()}, {os.cpu_count()} cores, {_memory_size()}"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python of naiad", python),
        ("naiad", version("naiad")),
        ("Triton", f"2.51.0 with its Python backend ({SERVER_WHEEL})"),
        ("perf_analyzer", f"2.41.1 ({LOAD_WHEEL})"),
        ("run", settings),
    ]
    return table(("", ""), rows)


def _targets(results: Results) -> str:
    rows = []
    for target in cases.TARGETS:
        ratio = results.ratio(target.case, target.metric)
        reached = "not measured" if ratio is None else f"{ratio:.2f} x"
        verdict = "" if ratio is None else ("yes" if target.is_met_by(ratio) else "**no**")
        rows.append((target.promise, target.bound_text, reached, verdict))
    own = []
    for pair in cases.OWN_TARGETS:
        ratio = results.ratio_of_cases(pair.case, pair.beside, pair.metric)
        if ratio is not None:
            met = "yes" if ratio <= pair.at_most else "**no**"
            own.append((pair.promise, f"at most {pair.at_most} x", f"{ratio:.2f} x", met))
    compared = table(("naiad / Triton", "target", "reached", "met"), rows)
    return f"{compared}\n\n{table(('naiad / naiad', 'target', 'reached', 'met'), own)}" if own else compared


def _loads(results: Results) -> str:
    columns = ("throughput", "p50", "p95", "host_cpu", "guest_cpu")
    head = (
        "case",
        "clients",
        "requests/s",
        "ratio",
        "p50 us",
        "ratio",
        "p95 us",
        "ratio",
        "CPU us host",
        "CPU us guest",
        "stolen",
    )
    rows = []
    for name, load in cases.LOADS.items():
        if name not in results.samples:
            continue
        cells = [name, str(load.concurrency)]
        for metric in columns:
            cells.append(_pair(results, name, metric, 1, "{:,.0f}"))
            if metric in {"throughput", "p50", "p95"}:
                cells.append(_ratio(results, name, metric))
        rows.append([*cells, _stolen(results, name)])
    return table(head, rows)


def _json_loads(results: Results) -> str:
    head = ("case", "clients", "requests/s", "ratio", "p50 us", "ratio", "CPU us", "ratio", "stolen")
    rows = []
    for name, load in json_requests.LOADS.items():
        if name not in results.samples:
            continue
        cells = [name, str(load.clients)]
        for metric in ("throughput", "p50", "cpu"):
            cells += (_pair(results, name, metric, 1, "{:,.0f}"), _ratio(results, name, metric))
        rows.append([*cells, _stolen(results, name)])
    return table(head, rows)


def _starts(results: Results) -> str:
    labels = {
        **{name: f"cold, {count} model{'s' if count > 1 else ''}" for name, count in cases.STARTS.items()},
        cases.ENVIRONMENT_FIRST: "packed environment of 360 MB, first start",
        cases.ENVIRONMENT_SECOND: "packed environment of 360 MB, second start",
    }
    rows = [
        (
            label,
            *_figures(results, name, "seconds", 1, "{:.2f} s"),
            _ratio(results, name, "seconds"),
            _stolen(results, name),
        )
        for name, label in labels.items()
        if name in results.samples
    ]
    return table(("start", "naiad", "Triton", "ratio", "stolen"), rows)


def _memory(results: Results) -> str:
    name = f"start-{cases.COPIES[-1]}"
    labels = {
        "instance_pss": "instance, PSS",
        "instance_uss": "instance, USS",
        "instance_rss": "instance, RSS",
        "server_pss": "server, PSS",
    }
    rows = [
        (label, *_figures(results, name, metric, 1 << 20, "{:.1f} MiB"), _ratio(results, name, metric))
        for metric, label in labels.items()
        if name in results.samples
    ]
    return table(("", "naiad", "Triton", "ratio"), rows)


def _figures(results: Results, case: str, metric: str, unit: float, form: str) -> tuple[str, str]:
    values = (results.median(case, server, metric) for server in (OURS, THEIRS))
    ours, theirs = ("-" if value is None else form.format(value / unit) for value in values)
    return ours, theirs


def _pair(results: Results, case: str, metric: str, unit: float, form: str) -> str:
    return " / ".join(_figures(results, case, metric, unit, form))


def _ratio(results: Results, case: str, metric: str) -> str:
    ratio = results.ratio(case, metric)
    return "-" if ratio is None else f"{ratio:.2f}"


def _stolen(results: Results, case: str) -> str:
    share = results.median(case, OURS, STOLEN)
    return "-" if share is None else f"{share:.1%}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written_by(module: str) -> str:
    """The first sentence of a section: what wrote it, when, on what machine, and how busy that was."""
    command = " ".join(["python -m", module, *sys.argv[1:]])
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return (
        f"Written by `{command}`, {today}, {processor()}, {os.cpu_count()} cores (load at the end: "
        f"{os.getloadavg()[0]:.1f})."
    )


def processor() -> str:
    """The processor's name."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def _memory_size() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB"
