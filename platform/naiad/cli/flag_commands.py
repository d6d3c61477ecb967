"""The table of sub-commands that accept the server's flags.

They are parsed by `config/server/getopt.py`, which follows the rules and error texts of Triton's getopt. The tables,
this one and those of the packages beside `naiad`, name modules as text: a server must start quickly, so only the module
of the command that runs is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from naiad.core.extensions import command_modules, extension_of_command, load_from_extension


@dataclass(frozen=True, slots=True)
class FlagCommand:
    """A sub-command that accepts all flags of the server."""

    place: str  # module and function, as `module:function`; the function maps arguments to an exit code
    arguments: str  # what follows the command's name in usage texts
    summary: str
    choices: tuple[str, ...] = ()  # values that the first argument may have; empty for any value
    takes_served_model: bool = False  # whether the first argument is a model of the server at `--url`

    def load(self, name: str) -> Callable[[Sequence[str]], int]:
        command: Callable[[Sequence[str]], int] = load_from_extension(self.place, f"run `naiad {name}`")
        return command


_OWN = {
    "serve": FlagCommand(
        "naiad.cli.serve:naiad_serve",
        "[FILE]... [FLAGS]...",
        "Serve a repository, as `tritonserver`, or files that frameworks saved.",
    ),
    "run": FlagCommand(
        "naiad.cli.run:run", "MODEL_DIR [FLAGS]...", "Load one model, send it one request, print the responses."
    ),
    "explain": FlagCommand(
        "naiad.cli.explain:explain", "MODEL [FLAGS]...", "Show what would run a model, and the reason for each choice."
    ),
    "pull": FlagCommand(
        "naiad.cli.pull:pull",
        "oci://REGISTRY/NAME:TAG [FLAGS]...",
        "Bring a model repository from a registry into the store or a folder.",
    ),
    "verify": FlagCommand(
        "naiad.cli.verify:verify",
        "oci://REGISTRY/NAME:TAG|FOLDER [FLAGS]...",
        "Show who signed a model repository, and what was changed since.",
    ),
}


def find_flag_command(name: str) -> FlagCommand | None:
    """The command of that name; None if it does not accept the server's flags."""
    if name in _OWN:
        return _OWN[name]
    extension = extension_of_command(name)
    if extension is None:
        return None
    place = f"{extension.package}.commands:FLAG_COMMANDS"
    commands: Mapping[str, FlagCommand] = load_from_extension(place, f"run `naiad {name}`")
    return commands.get(name)


def all_flag_commands() -> Mapping[str, FlagCommand]:
    """All commands that are installed, by their names."""
    found = dict(_OWN)
    for module in command_modules():
        found.update(module.FLAG_COMMANDS)
    return found
