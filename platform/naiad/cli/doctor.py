"""`naiad doctor`: finds what would fail if this machine served a repository, before a server starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

import orjson

from naiad.cli.command_line import own_flags, parse_command_line, report_option_error, server_flag, usage, with_help
from naiad.cli.serve import log_settings, open_log
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.doctor.examine import examine
from naiad.doctor.findings import Examination, Finding, Severity
from naiad.environments.progress import default_reporter
from naiad.errors import NaiadError, OptionError

__all__ = ["doctor"]

_PROGRAM = "naiad doctor MODEL_REPOSITORY"
_GROUP = "Doctor (also takes all flags of the server; give those that the server will have)"
_MODEL = Flag("model", Kind.STRING, "", "Examine this model; default: all models.", repeatable=True)
_JSON = Flag("json", Kind.NOTHING, "", "Print one JSON object.")
_STRICT = Flag("strict", Kind.NOTHING, "", "Exit with 1 for warnings, too.")
_NOTES = Flag("notes", Kind.NOTHING, "", "Print notes, too: missing things that the code can do without.")
_PACKED = Flag("leave-packed", Kind.NOTHING, "", "Unpack no archives; skip the checks that need that.")
_OWN_FLAGS = own_flags(_GROUP, _MODEL, _JSON, _STRICT, _NOTES, _PACKED)
_SHOWN_FLAGS = with_help(_OWN_FLAGS, _GROUP)
_REPOSITORY = "model-repository"
_HAS_ERRORS, _NOT_EXAMINED = 1, 2


def doctor(arguments: Sequence[str]) -> int:
    """Examine a repository; returns the exit code: 0 without errors, 1 with errors, 2 if it cannot be examined."""
    try:
        line = parse_command_line(arguments, _OWN_FLAGS, _PROGRAM)
        if line.is_help_requested:
            print(usage(_PROGRAM, _SHOWN_FLAGS), end="")
            return 0
        repositories = [(server_flag(_REPOSITORY), text) for text in line.positional]
        if not repositories and not line.has_server_flag(_REPOSITORY):
            raise OptionError(f"cannot examine: no model repository is named; use {_PROGRAM}")
        options = read_options([*repositories, *line.server], environ=os.environ)
        with open_log(replace(log_settings(options), info=False, warning=False, error=False)):
            examination = examine(options, default_reporter(), only=line.all(_MODEL), can_unpack=not line.has(_PACKED))
    except UsageError as error:
        report_option_error(error, _PROGRAM, _SHOWN_FLAGS)
        return _NOT_EXAMINED
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return _NOT_EXAMINED
    if line.has(_JSON):
        _print_json(examination)
    else:
        _print_plainly(examination, with_notes=line.has(_NOTES))
    has_failed = examination.count(Severity.ERROR) or (line.has(_STRICT) and examination.count(Severity.WARNING))
    return _HAS_ERRORS if has_failed else 0


def _print_json(examination: Examination) -> None:
    """Print one JSON object; it always has the notes, as programs can filter by severity."""
    document = {
        "repositories": examination.repositories,
        "models": examination.models,
        "errors": examination.count(Severity.ERROR),
        "warnings": examination.count(Severity.WARNING),
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in examination.findings],
    }
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _print_plainly(examination: Examination, *, with_notes: bool) -> None:
    shown = [finding for finding in examination.findings if with_notes or finding.severity is not Severity.NOTE]
    for finding in shown:
        print(f"{finding.severity.value}: {_subject(finding)}{finding.message} [{finding.code}]")
        if finding.where and finding.where not in finding.message:
            print(f"  at {finding.where}")
        print(f"  -> {finding.advice}")
    hidden = len(examination.findings) - len(shown)
    more = f"; {hidden} notes (--notes)" if hidden else ""
    print(
        f"{examination.models} models examined: {examination.count(Severity.ERROR)} errors, "
        f"{examination.count(Severity.WARNING)} warnings{more}"
    )


def _subject(finding: Finding) -> str:
    if not finding.model:
        return ""
    return f"{finding.model}: " if finding.version is None else f"{finding.model} version {finding.version}: "
