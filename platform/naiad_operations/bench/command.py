"""The command `naiad bench`: sends loads to a model of a running server, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from naiad.cli.command_line import EXIT_FAILURE, CommandLine, repeated_address, run_command, wrong_arguments
from naiad.cli.http_reading import DEFAULT_URL, HttpStatusError, ServerAddress, parse_header
from naiad.cli.json_output import json_option, print_json
from naiad.config.server.flag import Kind
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.option_group import flags_of, own_option, own_path, own_switch
from naiad.core.errors import NaiadError, OptionError
from naiad.protocol.inference import InferRequest
from naiad_operations.bench.load import LoadResult, LoadTarget, run_load, run_paced_load
from naiad_operations.bench.report import as_csv, as_json, header, row
from naiad_operations.bench.requests import BenchModel, RequestSource, model_of_config, request_option

_PROGRAM = "naiad bench MODEL [URL]"
_GRPC_URL = "localhost:8001"
_LARGEST_NUMBER = 10_000
_LARGEST_RATE = 1_000_000
_LISTED_MODELS = 10
_UNAUTHORIZED = (401, 403)  # statuses of requests without the key of a restricted API


def parse_numbers(values: FlagValues, name: str, largest: int = _LARGEST_NUMBER) -> tuple[int, ...]:
    """The numbers of a flag such as `--concurrency=1,4,16`; none without a value."""
    text = values.text(name)
    parts = [part.strip() for part in text.split(",")] if text or values.has(name) else []
    if not all(part.isdecimal() and 1 <= int(part) <= largest for part in parts):
        raise OptionError(f"--{name}={text}: not numbers from 1 to {largest}, such as 1,4,16")
    return tuple(map(int, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The flags of `naiad bench`."""

    url: str = own_option("url", f"The server, as the argument; default: {DEFAULT_URL}, with --grpc {_GRPC_URL}.")
    uses_grpc: bool = own_switch("grpc", "Use gRPC; needs grpcio (naiad[remote]).")
    concurrencies: tuple[int, ...] = own_option(
        "concurrency", "Requests in flight, one load for each number.", default="1,4,16", read=parse_numbers
    )
    rates: tuple[int, ...] = own_option(
        "rate",
        "Requests per second to send, one load for each number, instead of --concurrency.",
        read=partial(parse_numbers, largest=_LARGEST_RATE),
    )
    seconds: float = own_option("seconds", "Length of each load.", Kind.NUMBER, "5", low=0.1)
    warm_up: float = own_option(
        "warm-up", "Seconds of requests before the first load, which are not counted.", Kind.NUMBER, "1", low=0
    )
    timeout: float = own_option(
        "timeout", "Seconds that requests have after the end of a load.", Kind.NUMBER, "60", low=0.1
    )
    source: RequestSource = request_option()
    version: str = own_option(
        "version", "Version of the model; default: the highest.", Kind.INTEGER, read=FlagValues.text
    )
    headers: list[str] = own_option("header", "Header of HTTP requests: NAME:VALUE.", repeatable=True)
    csv: Path | None = own_path("csv", "File to write the figures of all loads into, as CSV.")
    is_json: bool = json_option()


OWN_FLAGS = flags_of("Bench", BenchOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BenchReport:
    model: BenchModel
    request: InferRequest
    notes: Sequence[str]
    place: str
    protocol: str


def bench(arguments: Sequence[str]) -> int:
    """Send loads to a model; returns the exit code: 1 if a request failed."""
    return run_command(arguments, BenchOptions, OWN_FLAGS, _PROGRAM, "measure", _bench)


def _bench(line: CommandLine, plan: BenchOptions) -> int:
    if not 1 <= len(line.positional) <= len(("MODEL", "URL")):
        raise wrong_arguments(_PROGRAM, "one model", line.positional)
    if {"rate", "concurrency"} <= line.given:
        raise OptionError("--rate and --concurrency are two kinds of loads; leave one of them out")
    name, *urls = line.positional
    if urls and "url" in line.given:
        raise repeated_address(_PROGRAM, urls[0], plan.url)
    url = urls[0] if urls else plan.url
    if line.server:
        raise OptionError(f"--{line.server[0][0].name}: a flag of `naiad serve`; start the server with it")
    if "/" in name:
        raise NaiadError(
            f"cannot measure '{name}': it is not the name of a model; name a model of a running server, which `naiad "
            f"serve --model-repository={Path(name).parent}` starts"
        )
    if plan.uses_grpc:
        results = asyncio.run(_measure_over_grpc(name, url or _GRPC_URL, plan))
    else:
        server = ServerAddress(url or DEFAULT_URL, dict(map(parse_header, plan.headers)))
        results = asyncio.run(_measure_over_http(name, server, plan))
    return EXIT_FAILURE if any(result.errors for result in results) else 0


# -- the targets ------------------------------------------------------------------------------------------------------


async def _measure_over_http(name: str, server: ServerAddress, plan: BenchOptions) -> list[LoadResult]:
    from naiad_operations.bench.http_target import HttpTarget

    versioned = f"/versions/{plan.version}" if plan.version else ""
    try:
        config = server.get(f"/v2/models/{quote(name, safe='')}{versioned}/config")
    except HttpStatusError as error:
        raise NaiadError(
            f"cannot measure model '{name}': the server at {server.url} responded: {error.detail}"
            f"{_advice(error.status, name, server)}"
        ) from error
    model = model_of_config(config, plan.version)
    request, notes = plan.source.request(model)
    target = HttpTarget(server, model, request, plan.version)
    report = _BenchReport(model=model, request=request, notes=notes, place=server.url, protocol="HTTP")
    try:
        return await _measure(target, plan, report)
    finally:
        target.close()


def _advice(status: int, name: str, server: ServerAddress) -> str:
    """What to do about a model whose configuration the server did not return."""
    if status in _UNAUTHORIZED:
        return "; give the key with --header=NAME:VALUE"
    if status != HTTPStatus.NOT_FOUND:
        return ""
    try:
        ready = [(row["name"], row["version"]) for row in server.post("/v2/repository/index", {"ready": True})]
    except (NaiadError, KeyError, TypeError):  # such as a server that restricts the index
        return ""
    if versions := [version for model, version in ready if model == name]:
        return f"; its versions are: {', '.join(versions)}"
    models = sorted({model for model, _ in ready})
    if near := difflib.get_close_matches(name, models, n=1):
        return f"; did you mean '{near[0]}'?"
    others = f" and {len(models) - _LISTED_MODELS} more" if len(models) > _LISTED_MODELS else ""
    return f"; its models are: {', '.join(models[:_LISTED_MODELS]) or 'none'}{others}"


async def _measure_over_grpc(name: str, url: str, plan: BenchOptions) -> list[LoadResult]:
    from naiad_operations.bench.grpc_target import GrpcEndpoint, GrpcTarget

    server = GrpcEndpoint(url)
    try:
        model = await server.model(name, plan.version)
        request, notes = plan.source.request(model)
        target = GrpcTarget(server, model, request, plan.version)
        report = _BenchReport(model=model, request=request, notes=notes, place=server.address, protocol="gRPC")
        return await _measure(target, plan, report)
    finally:
        await server.close()


# -- the loads --------------------------------------------------------------------------------------------------------


async def _measure(target: LoadTarget, plan: BenchOptions, report: _BenchReport) -> list[LoadResult]:
    if not plan.is_json:
        _print_head(plan, report)
    loads = [partial(run_paced_load, target, rate) for rate in plan.rates] or [
        partial(run_load, target, concurrency) for concurrency in plan.concurrencies
    ]
    if plan.warm_up:
        await loads[0](plan.warm_up, timeout=plan.timeout)
    results: list[LoadResult] = []
    for load in loads:
        results.append(await load(plan.seconds, timeout=plan.timeout))
        if not plan.is_json:
            print(row(results[-1]), flush=True)
    if plan.csv is not None:
        _write_csv(plan.csv, report, results)
    if plan.is_json:
        _print_json(report, results)
    else:
        _print_rest(results)
    return results


def _print_head(plan: BenchOptions, report: _BenchReport) -> None:
    inputs = ", ".join(f"{each.name} {each.datatype.name} {list(each.shape)}" for each in report.request.inputs)
    print(f"{report.model.metadata.name} at {report.place}, {report.protocol}; {plan.seconds:g} s for each load")
    print(f"request: {inputs or 'no inputs'}")
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"\n{header(is_paced=bool(plan.rates))}", flush=True)


def _print_rest(results: Sequence[LoadResult]) -> None:
    for result in results:
        if result.first_ms:
            median = as_json(result)["first_response_p50_ms"]
            load = f"{result.rate:g} sent/s" if result.rate else f"{result.concurrency} in flight"
            print(f"\nfirst response, {load}: p50 {median:.3g} ms")
    failed = next((result for result in results if result.errors), None)
    if failed is not None:
        count = sum(result.errors for result in results)
        print(f"{count} requests failed; the first: {failed.first_error}", file=sys.stderr)


def _write_csv(file: Path, report: _BenchReport, results: Sequence[LoadResult]) -> None:
    model, version = report.model.metadata.name, report.model.metadata.versions[0]
    fixed = {"model": model, "version": version, "place": report.place, "protocol": report.protocol}
    try:
        file.write_text(as_csv([{**fixed, **as_json(result)} for result in results]), encoding="utf-8")
    except OSError as error:
        raise NaiadError(f"cannot write {file}: {error.strerror or error}; name another file with --csv") from None


def _print_json(report: _BenchReport, results: Sequence[LoadResult]) -> None:
    inputs = [
        {"name": each.name, "datatype": each.datatype.name, "shape": each.shape} for each in report.request.inputs
    ]
    print_json(
        {
            "model": report.model.metadata.name,
            "version": report.model.metadata.versions[0] or None,
            "place": report.place,
            "protocol": report.protocol,
            "inputs": inputs,
            "notes": report.notes,
            "loads": [as_json(result) for result in results],
        }
    )
