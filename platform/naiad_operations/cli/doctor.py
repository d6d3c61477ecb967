"""`naiad doctor`: finds what would fail if this machine served a repository, before a server starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from naiad.cli.colors import Paint
from naiad.cli.command_line import CommandLine, run_command, server_flag
from naiad.cli.json_output import json_option, print_json
from naiad.cli.serve import log_settings, open_log
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Kind
from naiad.config.server.option_group import flags_of, own_option, own_switch
from naiad.core.errors import OptionError
from naiad.core.quantities import counted
from naiad.environments.progress import default_reporter
from naiad_operations.doctor.examine import examine
from naiad_operations.doctor.findings import Examination, Finding, MigrationState, Severity

_PROGRAM = "naiad doctor MODEL_REPOSITORY"
_REPOSITORY = "model-repository"
_SHOWN_MODELS = 5
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_MARK_COLORS = {MigrationState.READY: "green", MigrationState.ACTION: "yellow", MigrationState.UNSUPPORTED: "red"}
_MARKS = {MigrationState.READY: "[x]", MigrationState.ACTION: "[ ]", MigrationState.UNSUPPORTED: "[!]"}
# Exit codes: 1 is for findings alone, so that scripts can tell them from a repository that could not be read.
_HAS_ERRORS, _NOT_EXAMINED = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The flags of `naiad doctor`."""

    models: list[str] = own_option("model", "Examine this model; default: all models.", repeatable=True)
    is_json: bool = json_option()
    is_strict: bool = own_switch("strict", "Exit with 1 for warnings, too.")
    with_notes: bool = own_switch("notes", "Print notes, too: missing things that the code can do without.")
    leaves_packed: bool = own_switch("leave-packed", "Unpack no archives; skip the checks that need that.")
    with_migration: bool = own_switch("from-triton", "Print a checklist for a repository that Triton has served.")
    assumed_gpus: int | None = own_option(
        "assume-gpus", "Examine for a machine with so many GPUs; default: those of this one.", Kind.INTEGER, low=0
    )


OWN_FLAGS = flags_of("Doctor (also takes all flags of the server; give those that the server will have)", DoctorOptions)


def doctor(arguments: Sequence[str]) -> int:
    """Examine a repository; returns the exit code: 0 without errors, 1 with errors, 2 if it cannot be examined."""
    return run_command(arguments, DoctorOptions, OWN_FLAGS, _PROGRAM, "examine", _doctor, failure=_NOT_EXAMINED)


def _doctor(line: CommandLine, own: DoctorOptions) -> int:
    repositories = [(server_flag(_REPOSITORY), text) for text in line.positional]
    if not repositories and not line.has_server_flag(_REPOSITORY):
        raise OptionError(f"cannot examine: no model repository is named; use {_PROGRAM}")
    options = read_options([*repositories, *line.server], environ=os.environ)
    with open_log(replace(log_settings(options), info=False, warning=False, error=False)):
        examination = examine(
            options,
            default_reporter(),
            only=own.models,
            can_unpack=not own.leaves_packed,
            assumed_gpus=own.assumed_gpus,
            on_waiting=_print_waiting,
        )
    if own.is_json:
        _print_json(examination, with_migration=own.with_migration)
    else:
        if own.with_migration:
            _print_migration(examination)
        _print_plainly(examination, with_notes=own.with_notes)
    has_failed = examination.count(Severity.ERROR) or (own.is_strict and examination.count(Severity.WARNING))
    return _HAS_ERRORS if has_failed else 0


def _print_json(examination: Examination, *, with_migration: bool) -> None:
    """Print one JSON object; it always has the notes, as programs can filter by severity."""
    document: dict[str, object] = {
        "repositories": examination.repositories,
        "models": examination.models,
        "errors": examination.count(Severity.ERROR),
        "warnings": examination.count(Severity.WARNING),
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in examination.findings],
    }
    if with_migration:
        items = [{**asdict(item), "state": item.state.value} for item in examination.migration]
        document["migration"] = items
    print_json(document)


def _print_plainly(examination: Examination, *, with_notes: bool) -> None:
    paint = Paint()
    shown = [finding for finding in examination.findings if with_notes or finding.severity is not Severity.NOTE]
    for finding in shown:
        severity = paint(f"{finding.severity.value}:", _COLORS[finding.severity], bold=True)
        print(f"{severity} {_subject(finding, paint)}{finding.message} {paint(f'[{finding.code}]', dim=True)}")
        if finding.where and finding.where not in finding.message:
            print(paint(f"  at {finding.where}", dim=True))
        print(f"  {paint('->', 'green')} {finding.advice}")
    # Notes on the machine would otherwise stand under the findings of every model that is fine.
    notes = [finding for finding in examination.findings if finding.severity is Severity.NOTE]
    hidden = 0 if with_notes else sum(bool(finding.model) for finding in notes)
    more = f"; {counted(hidden, 'note')} (--notes)" if hidden else ""
    errors, warnings = examination.count(Severity.ERROR), examination.count(Severity.WARNING)
    color = _COLORS[Severity.ERROR] if errors else _COLORS[Severity.WARNING] if warnings else "green"
    found = paint(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", color, bold=True)
    print(f"{counted(examination.models, 'model')} examined: {found}{more}")


def _print_migration(examination: Examination) -> None:
    paint = Paint()

    def mark(state: MigrationState) -> str:
        return paint(_MARKS[state], _MARK_COLORS[state], bold=True)

    for item in examination.migration:
        print(f"{mark(item.state)} {item.title}: {', '.join(item.models)}")
        print(f"    {item.message}")
        if item.advice:
            print(f"    {paint('->', 'green')} {item.advice}")
    print(f"{mark(MigrationState.ACTION)} the server's command line, its clients and its probes")
    print("    flags, ports, protocols and metrics are Triton's; flags that naiad lacks stop the server with a reason")
    print("    -> repeat this command with the server's flags, then start `naiad serve` with them")
    print("    -> clients with CUDA shared memory use system shared memory or none")
    print()


def _print_waiting(models: Mapping[str, str]) -> None:
    named = [f"{name} ({step})" if step else name for name, step in models.items()]
    shown = ", ".join(named[:_SHOWN_MODELS]) + (", ..." if len(named) > _SHOWN_MODELS else "")
    print(f"still examining {counted(len(models), 'model')}: {shown}", file=sys.stderr)


def _subject(finding: Finding, paint: Paint) -> str:
    if not finding.model:
        return ""
    name = finding.model if finding.version is None else f"{finding.model} version {finding.version}"
    return f"{paint(name, bold=True)}: "
