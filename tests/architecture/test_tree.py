"""Files and paths that must not be in the tree."""

from __future__ import annotations

import os
import subprocess
import sys

from architecture import rules
from architecture.sources import HOST, ROOT, tracked_files


def test_platform_is_a_source_root_and_no_package() -> None:
    """With an `__init__.py` it would take the place of the standard library's `platform` in every Python started here."""
    assert not (HOST / "__init__.py").exists()


def test_the_standard_librarys_platform_is_found_at_the_root() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    found = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.system(), platform.__file__)"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert found.returncode == 0, found.stderr
    assert str(HOST) not in found.stdout


def test_no_file_names_a_path_of_its_authors_machine() -> None:
    named = [
        line
        for path in tracked_files()
        for line in rules.machine_paths(
            path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace")
        )
    ]

    assert named == []
