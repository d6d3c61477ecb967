"""The program of a bundle: a few lines of shell that find the interpreter beside them."""

from __future__ import annotations

from naiad.bundle.host import HOST_FOLDER

__all__ = ["RUN", "STARTER", "interpreter_arguments", "run_script"]

RUN = "run"
STARTER = "naiad.cli.bundled"
"""Module that starts a server from an unpacked bundle, whose folder is its first argument."""

_SCRIPT = """\
#!/bin/sh
# Starts the server of this bundle. Flags given here are added to the bundle's own: ./run --http-port=8080
# ./run doctor says what would go wrong on this machine.
if [ "$(uname -s)-$(uname -m)" != "{uname}" ]; then
    echo "$0: this bundle is for {platform}, this machine is $(uname -s)-$(uname -m)" >&2
    exit 1
fi
# Links are followed: what `run` is started by may lie elsewhere.
here=$(dirname -- "$(readlink -f -- "$0")") || exit 1
exec "$here/{python}" {arguments} "$here" "$@"
"""


def interpreter_arguments() -> list[str]:
    """How the bundle's interpreter is started: apart from all that its caller may have set for Python."""
    return ["-I", "-B", "-m", STARTER]


def run_script(platform: str) -> bytes:
    """The file `run`."""
    system, _, machine = platform.partition("-")
    return _SCRIPT.format(
        uname=f"{system.capitalize()}-{machine}",
        platform=platform,
        python=f"{HOST_FOLDER}/bin/python3",
        arguments=" ".join(interpreter_arguments()),
    ).encode()
