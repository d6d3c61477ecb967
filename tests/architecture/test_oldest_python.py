"""The host under the oldest Python it promises to run on; compiling it would not show what importing does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from architecture.sources import HOST, ROOT

OLDEST = "3.10"


def _find_oldest() -> str | None:
    installed = sorted((Path.home() / ".pyenv/versions").glob(f"{OLDEST}.*/bin/python3"))
    return str(installed[0]) if installed else shutil.which(f"python{OLDEST}")


@pytest.mark.server
def test_every_module_can_be_imported_by_the_oldest_python() -> None:
    python = _find_oldest()
    if python is None:
        pytest.skip(f"no Python {OLDEST} here")

    script = Path(__file__).with_name("import_everything.py")
    done = subprocess.run(
        [python, "-I", str(script), str(HOST), str(ROOT / "stubs")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 100
