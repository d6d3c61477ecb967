"""The table of sub-commands that accept the server's flags.

They are parsed by `config/server/getopt.py`, which follows the rules and error texts of Triton's getopt. The table
names modules as text: a server must start quickly, so only the module of the command that runs is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

__all__ = ["FLAG_COMMANDS", "FlagCommand"]


@dataclass(frozen=True, slots=True)
class FlagCommand:
    """A sub-command that accepts all flags of the server.

    Attributes:
        place: Module and function, as `module:function`; the function maps arguments to an exit code.
        arguments: What follows the command's name in usage texts.
        summary: One sentence for the overview of commands.
        choices: Values that the first argument may have; empty for any value.
    """

    place: str
    arguments: str
    summary: str
    choices: tuple[str, ...] = ()

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the command; the function that runs it and returns the exit code."""
        module, _, function = self.place.partition(":")
        command: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
        return command


FLAG_COMMANDS = {
    "serve": FlagCommand(
        "naiad.cli.serve:naiad_serve", "[FLAGS]...", "Serve the models of a repository; the same as `tritonserver`."
    ),
    "run": FlagCommand(
        "naiad.cli.run:run", "MODEL_DIR [FLAGS]...", "Load one model, send it one request, print the responses."
    ),
    "explain": FlagCommand(
        "naiad.cli.explain:explain", "MODEL [FLAGS]...", "Show what would run a model, and the reason for each choice."
    ),
    "doctor": FlagCommand(
        "naiad.cli.doctor:doctor",
        "MODEL_REPOSITORY [FLAGS]...",
        "Find what would fail if this machine served a repository.",
    ),
    "bench": FlagCommand(
        "naiad_operations.bench.command:bench",
        "MODEL|MODEL_DIR [FLAGS]...",
        "Send a load to a model, and print its rates and latencies.",
    ),
    "bundle": FlagCommand(
        "naiad.cli.bundle:bundle", "[FLAGS]...", "Write a server and its models into one archive or image."
    ),
    "push": FlagCommand(
        "naiad.cli.push:push",
        "oci://REGISTRY/NAME:TAG MODEL_REPOSITORY [FLAGS]...",
        "Send a model repository with its environments to a registry.",
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
    "deploy": FlagCommand(
        "naiad.cli.deploy:deploy",
        "systemd|kubernetes|kserve [FLAGS]...",
        "Write a systemd unit, or manifests for Kubernetes or KServe.",
        ("systemd", "kubernetes", "kserve"),
    ),
    "ray": FlagCommand(
        "naiad.cli.ray:ray",
        "up|yaml [FLAGS]...",
        "Run servers on a Ray cluster, or write a RayService for Kubernetes.",
        ("up", "yaml"),
    ),
}
"""In the order of the overview."""
