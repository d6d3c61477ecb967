"""`naiad doctor`: say what would go wrong with a repository on this machine, before a server is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

import orjson

from naiad.cli.serve import log_settings, open_log
from naiad.cli.usage import report, usage, with_help
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.doctor.examine import examine
from naiad.doctor.findings import Finding, Report, Severity
from naiad.environments.progress import default_reporter
from naiad.errors import NaiadError, OptionError

__all__ = ["doctor"]

_PROGRAM = "naiad doctor MODEL_REPOSITORY"
_GROUP = "Doctor (all flags of the server work, too: give those that it will have)"
_MODEL = Flag("model", Kind.STRING, "", "Examine this model; all of them unless given.", repeatable=True)
_JSON = Flag("json", Kind.NOTHING, "", "Print one JSON object.")
_STRICT = Flag("strict", Kind.NOTHING, "", "Exit with 1 for warnings, too.")
_NOTES = Flag("notes", Kind.NOTHING, "", "Print notes, too: what is missing that the code can do without.")
_PACKED = Flag("leave-packed", Kind.NOTHING, "", "Unpack no archives; what needs that is not examined.")
_OWN_FLAGS = tuple(replace(flag, group=_GROUP, own=True) for flag in (_MODEL, _JSON, _STRICT, _NOTES, _PACKED))
_SHOWN_FLAGS = with_help(_OWN_FLAGS, _GROUP)
_FOUND, _NOT_EXAMINED = 1, 2


def doctor(arguments: Sequence[str]) -> int:
    """Examine a repository; the exit code: 0 for a good one, 1 for one with errors, 2 if it could not be examined."""
    try:
        found, others = split_arguments(arguments, (*_OWN_FLAGS, *SERVER_FLAGS), _PROGRAM)
        own = {flag.name for flag in _OWN_FLAGS}
        asked = {flag.name for flag, _ in found if flag.name in own}
        if any(flag.name == HELP for flag, _ in found):
            print(usage(_PROGRAM, _SHOWN_FLAGS), end="")
            return 0
        repository = next(flag for flag in SERVER_FLAGS if flag.name == "model-repository")
        flags = [
            *((repository, each) for each in others),
            *((flag, text) for flag, text in found if flag.name not in own),
        ]
        if not any((flag.same_as or flag.name) == repository.name for flag, _ in flags):
            raise OptionError(f"{_PROGRAM}: name the directory or URI of a model repository")
        options = read_options(flags, environ=os.environ)
        only = [text for flag, text in found if flag.name == _MODEL.name]
        with open_log(replace(log_settings(options), info=False, warning=False, error=False)):
            examined = examine(options, default_reporter(), only=only, unpack=_PACKED.name not in asked)
    except UsageError as error:
        report(error, _PROGRAM, _SHOWN_FLAGS)
        return _NOT_EXAMINED
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return _NOT_EXAMINED
    (_print_json if _JSON.name in asked else _print_plainly)(examined, notes=_NOTES.name in asked)
    is_bad = examined.count(Severity.ERROR) or (_STRICT.name in asked and examined.count(Severity.WARNING))
    return _FOUND if is_bad else 0


def _print_json(examined: Report, *, notes: bool) -> None:
    del notes  # programs leave out themselves what they do not want
    document = {
        "repositories": examined.repositories,
        "models": examined.models,
        "errors": examined.count(Severity.ERROR),
        "warnings": examined.count(Severity.WARNING),
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in examined.findings],
    }
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _print_plainly(examined: Report, *, notes: bool) -> None:
    shown = [finding for finding in examined.findings if notes or finding.severity is not Severity.NOTE]
    for finding in shown:
        print(f"{finding.severity.value}: {_subject(finding)}{finding.message} [{finding.code}]")
        if finding.where and finding.where not in finding.message:
            print(f"  at {finding.where}")
        print(f"  -> {finding.advice}")
    left_out = len(examined.findings) - len(shown)
    more = f"; {left_out} notes (--notes)" if left_out else ""
    print(
        f"{examined.models} models examined: {examined.count(Severity.ERROR)} errors, "
        f"{examined.count(Severity.WARNING)} warnings{more}"
    )


def _subject(finding: Finding) -> str:
    if not finding.model:
        return ""
    return f"{finding.model}: " if finding.version is None else f"{finding.model} version {finding.version}: "
