"""The sub-commands of `naiad` that are for operators: what they are called, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from naiad.cli.flag_commands import FlagCommand

if TYPE_CHECKING:
    import click

FLAG_COMMANDS = {
    "doctor": FlagCommand(
        "naiad_operations.cli.doctor:doctor",
        "MODEL_REPOSITORY [FLAGS]...",
        "Find what would fail if this machine served a repository.",
    ),
    "bench": FlagCommand(
        "naiad_operations.bench.command:bench",
        "MODEL [URL] [FLAGS]...",
        "Send a load to a model, and print its rates and latencies.",
        takes_served_model=True,
    ),
    "tune": FlagCommand(
        "naiad_operations.tune.command:tune",
        "MODEL [FLAGS]...",
        "Find instances, batches and delays of a model under a load.",
    ),
    "bundle": FlagCommand(
        "naiad_operations.cli.bundle:bundle", "[FLAGS]...", "Write a server and its models into one archive or image."
    ),
    "push": FlagCommand(
        "naiad_operations.cli.push:push",
        "oci://REGISTRY/NAME:TAG MODEL_REPOSITORY [FLAGS]...",
        "Send a model repository with its environments to a registry.",
    ),
    "deploy": FlagCommand(
        "naiad_operations.cli.deploy:deploy",
        "systemd|compose|dockerfile|kubernetes|kserve [FLAGS]...",
        "Write files for systemd, Docker, Kubernetes or KServe.",
        ("systemd", "compose", "dockerfile", "kubernetes", "kserve"),
    ),
    "ray": FlagCommand(
        "naiad_operations.cli.ray:ray",
        "up|yaml [FLAGS]...",
        "Run servers on a Ray cluster, or write a RayService for Kubernetes.",
        ("up", "yaml"),
    ),
}


def click_commands() -> Mapping[str, click.Command]:
    """The commands that click parses, by their names."""
    from naiad_operations.cli.init import init_group
    from naiad_operations.top.command import top_command

    return {"top": top_command, "init": init_group}
