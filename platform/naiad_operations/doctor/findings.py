"""The doctor's findings: each says what is wrong, where, and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import partial


class Severity(enum.Enum):
    """The severity of a finding."""

    ERROR = "error"  # the model or server does not start, or fails every request
    WARNING = "warning"  # the model or server may fail, or differ from what its author intended
    NOTE = "note"  # the model works without something that its code can use


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    severity: Severity
    code: str  # the kind of problem; scripts may rely on these words (docs/reference/doctor.md)
    message: str
    advice: str
    where: str = ""  # path of a file, with a line number if there is one; empty for none
    model: str = ""
    version: int | None = None


error_finding = partial(Finding, Severity.ERROR)
warning_finding = partial(Finding, Severity.WARNING)
note_finding = partial(Finding, Severity.NOTE)


class MigrationState(enum.Enum):
    """Whether models of the reference can be served here."""

    READY = "ready"  # as they are
    ACTION = "action"  # after the finding or the change that the item names
    UNSUPPORTED = "unsupported"  # not by this server; the item names alternatives


@dataclass(frozen=True, slots=True)
class MigrationItem:
    """One item of the checklist for a repository of the reference."""

    kind: str  # the kind of models; scripts may rely on these words (docs/reference/doctor.md)
    title: str
    message: str
    advice: str = ""
    state: MigrationState = MigrationState.READY
    models: tuple[str, ...] = ()


@dataclass(slots=True)
class Examination:
    """The result of one examination: findings in the order of the models, those about the machine last."""

    repositories: tuple[str, ...]
    models: int = 0
    findings: list[Finding] = field(default_factory=list)
    migration: tuple[MigrationItem, ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)
