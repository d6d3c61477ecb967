"""Keys to sign with, and a repository that was pushed, signed and pulled into a folder."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.registry import Registry


@dataclass(frozen=True)
class SignedFolder:
    """A pulled repository.

    Attributes:
        folder: The folder.
        trusted: The file of trusted keys.
    """

    folder: Path
    trusted: Path

    @property
    def flags(self) -> list[str]:
        """Flags of a server or a command that requires the signature."""
        return [f"--model-repository={self.folder}", "--require-signature", f"--env-trust={self.trusted}"]


def naiad(*arguments: str | Path) -> str:
    """Run a command in a process of its own; returns what it writes to stdout."""
    run = subprocess.run(
        [sys.executable, "-m", "naiad", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def pull_signed(project: Path, work: Path, *flags: str) -> SignedFolder:
    """Push the models of a project with a new key, and pull them into a folder."""
    private, trusted, store = work / "key.pem", work / "keys.toml", f"--env-store={work / 'pushed'}"
    trusted.write_text(naiad("env", "keygen", private, "--name=build"))
    with Registry() as registry:
        place = registry.uri("shop", "1")
        naiad("push", place, project / "models", f"--key={private}", store, *flags)
        naiad("pull", place, f"--output={work / 'signed'}", store)
    return SignedFolder(work / "signed", trusted)
