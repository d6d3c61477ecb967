"""Completion in shells: what may follow on a command line, and the script that makes a shell ask for it.

click completes its own commands. The commands that accept the server's flags are parsed by other rules
(`config/server/getopt.py`), so this module lists their flags and values. The shell runs `naiad` for each completion, so
the modules of a command are imported only when its flags are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from naiad.cli.flag_commands import FlagCommand
from naiad.cli.http_reading import DEFAULT_URL, ServerAddress
from naiad.config.server.flag import Flag, Kind
from naiad.config.server.options import SERVER_FLAGS
from naiad.core.errors import NaiadError

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "naiad"
_VARIABLE = "_NAIAD_COMPLETE"  # the variable by which click's scripts ask for completions
TRITONSERVER, TRITONSERVER_VARIABLE = "tritonserver", "_TRITONSERVER_COMPLETE"
"""The same for Triton's program, whose command lines are those of `naiad serve`."""
_URL = "--url"
_SECONDS = 1.0
_BOOLEANS = ("true", "false")
_FOLDERS = frozenset({"model-repository", "model-store", "backend-directory", "env-directory", "env-store"})


class CompletedFlagCommand(click.Command):
    """A command that passes all its arguments on, and completes the flags that it accepts."""

    def __init__(self, name: str, command: FlagCommand) -> None:
        self._command = command
        super().__init__(
            name,
            callback=self._run,
            params=[
                click.Argument(
                    ["arguments"],
                    metavar=command.arguments,
                    nargs=-1,
                    type=click.UNPROCESSED,
                    shell_complete=self._complete_value,
                )
            ],
            help=command.summary,
            short_help=command.summary,
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
        )

    def _run(self, arguments: tuple[str, ...]) -> int:
        return self._command.load(self.name or "")(arguments)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        del ctx
        return [
            CompletionItem(f"--{flag.name}", help=flag.help)
            for flag in self._flags()
            if f"--{flag.name}".startswith(incomplete) and not flag.deprecated
        ]

    def _complete_value(self, ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The values of the flag before the cursor, or a path."""
        given: Sequence[str] = [word for word in ctx.params.get("arguments") or () if word != "="]
        name = given[-1].removeprefix("--") if given and given[-1].startswith("--") else ""
        flag = next((flag for flag in self._flags() if flag.name == name), None)
        if flag is None or not flag.takes_value:
            if found := self._served(given, incomplete):
                return found
            if self._command.choices:
                return [] if self._has_argument(given) else _matching(self._command.choices, incomplete)
            return [CompletionItem(incomplete, type="dir" if "FOLDER" in self._command.arguments else "file")]
        values = flag.choices or (_BOOLEANS if flag.kind is Kind.BOOLEAN else ())
        if values:
            return _matching(values, incomplete)
        is_path = flag.kind is Kind.STRING
        return [CompletionItem(incomplete, type="dir" if flag.name in _FOLDERS else "file")] if is_path else []

    def _served(self, given: Sequence[str], incomplete: str) -> list[CompletionItem]:
        """Models of the running server that the first argument may name."""
        if not self._command.takes_served_model or self._has_argument(given):
            return []
        return _matching(served_models(_address_in(given)), incomplete)

    def _has_argument(self, given: Sequence[str]) -> bool:
        """Whether one of the words is not a flag and not the value of one."""
        with_value = {f"--{flag.name}" for flag in self._flags() if flag.takes_value}
        before = ("", *given)
        return any(
            not word.startswith("-") and each not in with_value for each, word in zip(before, given, strict=False)
        )

    def _flags(self) -> Iterator[Flag]:
        module: Any = import_module(self._command.place.partition(":")[0])
        yield from getattr(module, "OWN_FLAGS", ())
        yield from SERVER_FLAGS


def _address_in(words: Sequence[str]) -> str:
    """The server that `--url` names, of words without `=`."""
    last = DEFAULT_URL
    for flag, value in pairwise(words):
        last = value if flag == _URL else last
    return last


def served_models(url: str) -> list[str]:
    """The models of a running server; none if it does not answer soon, since a person waits at a prompt."""
    try:
        index = ServerAddress(url, seconds=_SECONDS).post("/v2/repository/index", {})
        return sorted({str(entry["name"]) for entry in index})
    except (NaiadError, ValueError, KeyError, TypeError):
        return []


def _matching(values: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


@click.command("completion", short_help="Print a script that completes commands and flags in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print a script that completes the commands and flags of naiad and tritonserver in SHELL.

    For bash: add the line `eval "$(naiad completion bash)"` to ~/.bashrc
    """
    completer = get_completion_class(shell)
    assert completer is not None, shell
    root = click.get_current_context().find_root().command
    for program, variable in ((_PROGRAM, _VARIABLE), (TRITONSERVER, TRITONSERVER_VARIABLE)):
        click.echo(completer(root, {}, program, variable).source())
