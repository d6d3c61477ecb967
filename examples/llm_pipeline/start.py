"""Build the three environments (once), then start the server: `python start.py [OPTION OF TRITONSERVER ...]`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".demo" / "pipeline"
# Candidates in order of preference; only those that the machine has and that differ from the server's are used.
VERSIONS = [
    version for version in ("3.10", "3.12", "3.13", "3.11", "3.9", "3.8") if version != "%d.%d" % sys.version_info[:2]
]


def naiad(*arguments: str | Path) -> bool:
    """Run `naiad env ...`; returns whether it succeeded."""
    program = Path(sys.executable).with_name("naiad")
    return subprocess.run([program, "env", *arguments], check=False).returncode == 0


def build_steps(folder: Path) -> list[str]:
    """Build the environments `prepare` and `finish` (numpy only), each with its own Python; returns the versions."""
    names, found = ["prepare", "finish"], []
    for version in VERSIONS:
        if len(found) == len(names):
            break
        prefix = folder / names[len(found)]
        if prefix.exists() or naiad("build", ROOT / "envs" / "numpy_only", "--python", version, "--output", prefix):
            found.append(version)
    return found


def build_generator(folder: Path) -> None:
    """Build the packed environment `generate`: llama.cpp and weights."""
    archive = folder / "generate.tar.zst"
    if not archive.exists():
        built = naiad("build", ROOT / "envs" / "llm", "--output", folder / "llm")
        if not built or not naiad("pack", folder / "llm", "--output", archive):
            sys.exit("the environment of envs/llm could not be built")


def main() -> None:
    """Build the environments, then replace this process with the server."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if len(build_steps(FOLDER)) < 2:
        sys.exit(f"two Pythons besides the server's are needed, of {', '.join(VERSIONS)}")
    build_generator(FOLDER)
    server = Path(sys.executable).with_name("tritonserver")
    options = [f"--model-repository={HERE / 'models'}", f"--env-directory={FOLDER}", f"--env-store={FOLDER / 'store'}"]
    os.execv(server, [str(server), *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
