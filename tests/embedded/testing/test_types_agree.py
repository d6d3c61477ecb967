"""The type stubs say what the modules are at run time."""

import subprocess
import sys

import pytest

MODULES = ["triton_python_backend_utils", "c_python_backend_utils"]


@pytest.mark.endurance
def test_types_and_runtime_agree(tmp_path):
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    options = ["--mypy-config-file", "mypy.ini", "--concise"]
    stubtest = [sys.executable, "-m", "mypy.stubtest", *options]

    done = subprocess.run([*stubtest, *MODULES], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
