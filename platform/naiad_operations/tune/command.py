"""The command `naiad tune`: serves one model here, tries configurations of it under a load, and writes the best one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from naiad.cli.command_line import CommandLine, run_command, wrong_arguments
from naiad.cli.http_reading import HttpStatusError, ServerAddress
from naiad.cli.json_output import json_option, print_json
from naiad.config.model.text import parse_mapping, parse_text
from naiad.config.server.flag import Kind, format_flag
from naiad.config.server.option_group import flags_of, own_option, own_path, own_switch
from naiad.core.errors import NaiadError, OptionError
from naiad.protocol.inference import InferRequest
from naiad_operations.bench.command import parse_numbers
from naiad_operations.bench.http_target import HttpTarget
from naiad_operations.bench.load import run_load
from naiad_operations.bench.requests import BenchModel, RequestSource, model_of_config, request_option
from naiad_operations.supervised_server import SupervisedServer
from naiad_operations.tune.configuration import candidate_of, check_tunable, with_candidate, with_candidate_text
from naiad_operations.tune.objective import Limit, Measured, measured_of, parse_objective
from naiad_operations.tune.report import as_csv, as_markdown, as_svg, candidate_text
from naiad_operations.tune.search import Candidate, Space, best_load, score, search

_PROGRAM = "naiad tune MODEL"
_REPOSITORY = "model-repository"
_INSTANCE_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_DELAYS_US = (0, 100, 500, 1_000, 2_000, 5_000, 10_000)
_WARM_UP_SECONDS = 0.5
_REQUEST_SECONDS = 60.0
_LOAD_SECONDS = 3600.0  # a load may build an environment
_STOP_SECONDS = 40.0
_GROWS = 1.03  # twice the requests in flight have to raise the rate by this factor twice, or more of them are not tried
# Flags of the server that this command sets.
_OWN_SERVER_FLAGS = frozenset(
    {"http-port", "http-address", "allow-http", "allow-grpc", "allow-metrics", "model-control-mode", "log-file"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The flags of `naiad tune`."""

    limits: tuple[Limit, ...] = own_option(
        "objective",
        "Limits of latency, such as p95<20ms; the highest rate within them is sought.",
        read=lambda values, name: parse_objective(values.text(name)),
    )
    output: Path | None = own_path("output", "Folder to write; default: tune-MODEL.")
    replaces: bool = own_switch("force", "Write into a folder that exists.")
    concurrencies: tuple[int, ...] = own_option(
        "concurrency",
        "Requests in flight, one load for each number.",
        default="1,2,4,8,16,32,64",
        read=lambda values, name: tuple(sorted(parse_numbers(values, name))),
    )
    seconds: float = own_option("seconds", "Length of each load.", Kind.NUMBER, "2", low=0.1)
    instances: int | None = own_option(
        "instances", "Largest number of instances; default: twice the processors.", Kind.INTEGER, low=1
    )
    trials: int = own_option("trials", "Number of configurations to try at most.", Kind.INTEGER, "30", low=1)
    source: RequestSource = request_option()
    is_json: bool = json_option()


OWN_FLAGS = flags_of("Tune (also takes all flags of the server; the model is served with them)", TuneOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TunedModel:
    name: str
    repository: Path
    folder: Path  # what is written


@dataclass(slots=True, kw_only=True)
class _Trials:
    """The loads of each candidate that was tried, and what the search began with and found."""

    start: Candidate
    best: Candidate
    loads: dict[Candidate, list[Measured]]


def tune(arguments: Sequence[str]) -> int:
    """Find a configuration; returns the exit code: 1 if none keeps the limits."""
    return run_command(arguments, TuneOptions, OWN_FLAGS, _PROGRAM, "tune", _tune)


def _tune(line: CommandLine, own: TuneOptions) -> int:
    repositories = _repositories(line)
    path = Path(line.positional[0])
    tuned = _TunedModel(
        name=path.name, repository=Path(repositories[-1]), folder=own.output or Path(f"tune-{path.name}")
    )
    try:
        tuned.folder.mkdir(parents=True, exist_ok=own.replaces)
    except FileExistsError:
        raise OptionError(f"--output={tuned.folder}: it exists; name another folder, or add --force") from None
    log = tuned.folder / "server.log"
    flags = [format_flag(flag, text) for flag, text in line.server if (flag.same_as or flag.name) != _REPOSITORY]
    flags += [f"--{_REPOSITORY}={each}" for each in dict.fromkeys(repositories)]
    flags += ["--model-control-mode=explicit", f"--load-model={tuned.name}", "--http-address=127.0.0.1"]
    flags += ["--http-port=0", "--allow-grpc=false", "--allow-metrics=false", f"--log-file={log}"]
    try:
        server = SupervisedServer(flags)
    except NaiadError:
        raise NaiadError(f"cannot tune model '{tuned.name}': it is not served: {_last_error(log)}") from None
    try:
        address = ServerAddress(f"http://127.0.0.1:{server.ports['http']}", seconds=_LOAD_SECONDS)
        config = address.get(f"/v2/models/{quote(tuned.name, safe='')}/config")
        check_tunable(config)
        trials = _search(address, config, own)
    finally:
        server.stop(_STOP_SECONDS)
    _write(trials, config, tuned, own)
    load = best_load(trials.loads[trials.best], own.limits)
    _print_end(trials, load, tuned, own)
    return 0 if load is not None else 1


def _repositories(line: CommandLine) -> list[str]:
    """The repositories of the server; the last one has the model."""
    if len(line.positional) != 1:
        raise wrong_arguments(_PROGRAM, "one model", line.positional)
    path = Path(line.positional[0])
    repositories = [text for flag, text in line.server if (flag.same_as or flag.name) == _REPOSITORY]
    if len(path.parts) > 1:
        repositories.append(str(path.parent))
    if not repositories:
        raise OptionError(
            f"cannot tune '{path}': its repository is not named; give its folder, such as models/{path}, or add "
            "--model-repository=DIRECTORY"
        )
    own = next((flag.name for flag, _ in line.server if flag.name in _OWN_SERVER_FLAGS), None)
    if own is not None:
        raise OptionError(f"--{own}: this command sets it for the server that it starts; leave it out")
    return repositories


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    errors = [line.partition('] "')[2].rstrip('"') for line in lines if line.startswith("E")]
    return f"{(errors or ['it exited'])[0]}; its log is {log}"


# -- the search -------------------------------------------------------------------------------------------------------


def _space(config: Mapping[str, Any], plan: TuneOptions) -> Space:
    largest = int(config.get("max_batch_size", 0))
    has_batches = largest > 1 and "sequence_batching" not in config
    powers = [size for size in (2**power for power in range(1, 20)) if size < largest]
    shortest = min((limit.milliseconds for limit in plan.limits), default=float("inf"))
    return Space(
        instances=[number for number in _INSTANCE_STEPS if number <= (plan.instances or 2 * _processors())],
        batches=[0, *powers, largest] if has_batches else [],
        # A request that waits for as long as it may take keeps no limit.
        delays_us=[delay for delay in _DELAYS_US if delay < shortest * 1000],
    )


def _search(address: ServerAddress, config: Mapping[str, Any], plan: TuneOptions) -> _Trials:
    start = candidate_of(config)
    steps = search(start, _space(config, plan), plan.trials)
    model = model_of_config(config, "")
    request, _ = plan.source.request(model)
    loads: dict[Candidate, list[Measured]] = {}
    if not plan.is_json:
        objective = ", ".join(map(str, plan.limits)) or "the highest rate"
        print(f"{config['name']}: {objective}; {plan.seconds:g} s for each load, up to {plan.trials} configurations\n")
    candidate = next(steps)
    while True:
        loads[candidate] = _try(address, config, candidate, plan, model, request)
        if not plan.is_json:
            print(_row(candidate, loads[candidate], plan.limits), flush=True)
        try:
            candidate = steps.send(score(loads[candidate], plan.limits))
        except StopIteration as end:
            return _Trials(start=start, best=end.value, loads=loads)


def _try(
    address: ServerAddress,
    config: Mapping[str, Any],
    candidate: Candidate,
    plan: TuneOptions,
    model: BenchModel,
    request: InferRequest,
) -> list[Measured]:
    """Load the model with the settings of a candidate, and measure it; no loads if it does not load."""
    text = json.dumps({"parameters": {"config": json.dumps(with_candidate(config, candidate))}})
    try:
        address.text(f"/v2/repository/models/{quote(config['name'], safe='')}/load", text.encode())
    except HttpStatusError as error:
        return [Measured(concurrency=0, rate=0.0, milliseconds={}, errors=1, first_error=error.detail)]
    return asyncio.run(_measure(HttpTarget(address, model, request, ""), plan))


async def _measure(target: HttpTarget, plan: TuneOptions) -> list[Measured]:
    try:
        await run_load(target, plan.concurrencies[0], _WARM_UP_SECONDS, timeout=_REQUEST_SECONDS)
        loads: list[Measured] = []
        for concurrency in plan.concurrencies:
            loads.append(measured_of(await run_load(target, concurrency, plan.seconds, timeout=_REQUEST_SECONDS)))
            if _is_enough(loads, plan.limits):
                break
        return loads
    finally:
        target.close()


def _is_enough(loads: Sequence[Measured], limits: Sequence[Limit]) -> bool:
    """Whether more requests in flight would not help: latency only grows, and the rate does not any more."""
    if loads[-1].errors:
        return True
    if len(loads) > 1 and all(load.excess(limits) > 1 for load in loads[-2:]):
        return True
    rates = [load.rate for load in loads[-3:]]
    return len(rates) == 3 and rates[1] < rates[0] * _GROWS and rates[2] < rates[1] * _GROWS  # noqa: PLR2004 - see _GROWS


# -- what is written --------------------------------------------------------------------------------------------------


def _write(trials: _Trials, config: Mapping[str, Any], tuned: _TunedModel, plan: TuneOptions) -> None:
    file = tuned.repository / tuned.name / "config.pbtxt"
    message = parse_text(file.read_text(encoding="utf-8"), file) if file.is_file() else parse_mapping(config, file)
    conditions = (
        f"Each load took {plan.seconds:g} s.",
        f"The load generator ran on the same machine, with {_processors()} processors for both.",
        f"{len(trials.loads)} configurations were tried.",
    )
    texts = {
        "config.pbtxt": with_candidate_text(message, trials.best),
        "measurements.csv": as_csv(trials.loads),
        "report.md": as_markdown(tuned.name, trials.loads, plan.limits, trials.start, trials.best, conditions),
        "report.svg": as_svg(tuned.name, trials.loads, plan.limits, trials.start, trials.best),
    }
    for name, text in texts.items():
        (tuned.folder / name).write_text(text, encoding="utf-8")


def _row(candidate: Candidate, loads: Sequence[Measured], limits: Sequence[Limit]) -> str:
    load = best_load(loads, limits)
    text = f"{candidate_text(candidate):<50}"
    if load is not None:
        figure = limits[0].figure if limits else "p95"
        return f"{text} {load.rate:>9,.0f} requests/s  {figure} {load.milliseconds[figure]:.3g} ms"
    failed = next((each for each in loads if each.errors), None)
    return f"{text} {f'failed: {failed.first_error}' if failed is not None else 'over the limit'}"


def _print_end(trials: _Trials, load: Measured | None, tuned: _TunedModel, plan: TuneOptions) -> None:
    if plan.is_json:
        print_json(
            {
                "model": tuned.name,
                "objective": [str(limit) for limit in plan.limits],
                "before": trials.start._asdict(),
                "best": trials.best._asdict(),
                "requests_per_second": None if load is None else load.rate,
                "concurrency": None if load is None else load.concurrency,
                "configurations": len(trials.loads),
                "folder": tuned.folder,
            }
        )
        return
    print(f"\nbest: {candidate_text(trials.best)}" + (" (no configuration keeps the limits)" if load is None else ""))
    print(f"wrote {tuned.folder}: config.pbtxt, report.md, report.svg, measurements.csv, server.log")
    if trials.best != trials.start and load is not None:
        target = tuned.repository / tuned.name / "config.pbtxt"
        print(f"next (comments of the file are not kept):\n    cp {tuned.folder / 'config.pbtxt'} {target}")
