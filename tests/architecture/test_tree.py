"""What must not be in the tree, whatever it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from architecture.sources import HOST, ROOT, tracked_files

# In pieces, or this file would be the first that is found.
_MACHINE_PATHS = re.compile("|".join(rf"(?<![\w.~$}}-])/{name}/" for name in ("work", "root", r"home/[a-z]\w*")))


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


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if _MACHINE_PATHS.search(line)
    ]

    assert named == []
