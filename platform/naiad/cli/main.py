"""The commands: `naiad`, with sub-commands, and `tritonserver`, which is `naiad serve` under its other name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main", "main_tritonserver"]


def main_tritonserver(arguments: Sequence[str] | None = None) -> int:
    """Run the server as `tritonserver` does."""
    from naiad.cli.serve import serve

    return serve(sys.argv[1:] if arguments is None else arguments, "tritonserver")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command; flags without one are those of the server."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Served and explained by our own parser: getopt's rules and texts, which click does not have.
    match list(arguments):
        case ["serve", *rest]:
            from naiad.cli.serve import serve

            return serve(rest, "naiad serve")
        case ["explain", *rest]:
            from naiad.cli.explain import explain

            return explain(rest)
        case ["doctor", *rest]:
            from naiad.cli.doctor import doctor

            return doctor(rest)
        case ["bundle", *rest]:
            from naiad.cli.bundle import bundle

            return bundle(rest)
        case ["deploy", *rest]:
            from naiad.cli.deploy import deploy

            return deploy(rest)
        case ["run", *rest]:
            from naiad.cli.run import run as run_once

            return run_once(rest)
        case [first, *_] as flags if first.startswith("-") and first not in {"--help", "-h", "--version"}:
            from naiad.cli.serve import serve

            return serve(flags, "naiad")
        case others:
            from naiad.cli.commands import run

            return run(others)
