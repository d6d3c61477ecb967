"""`naiad init`: what it writes is served, and passes its own tests."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient
from examples.running import run_script
from support.server import ServerProcess
from support.system_packages import require

from naiad.cli.main import main
from naiad.config.model.text import parse_text

NAIAD = Path(sys.executable).with_name("naiad")

PRICING = '''
import numpy as np
import numpy.typing as npt
from helpers.scale import scale


def quote(
    amounts: npt.NDArray[np.float64], currency: str, tags: list[str], rate: float = 2.0, *, exact: bool = False
) -> tuple[npt.NDArray[np.float64], str, int]:
    """Price it."""
    return scale(amounts) * rate, currency.upper() + "".join(tags), len(tags)
'''


def inputs(client, model, **values):
    metadata = {one["name"]: one for one in client.get_model_metadata(model)["inputs"]}
    made = []
    for name, value in values.items():
        array = np.array([value], dtype=object) if isinstance(value, str) else value
        made.append(
            httpclient.InferInput(name, list(array.shape), metadata[name]["datatype"]).set_data_from_numpy(array)
        )
    return made


def test_what_is_written_is_served_as_it_is_and_passes_its_own_tests(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pricing.py").write_text(PRICING)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").touch()
    (tmp_path / "helpers" / "scale.py").write_text("def scale(x):\n    return x * 10\n")
    for arguments in (["model", "quote", "--from", "pricing:quote"], ["model", "plain"], ["backend", "greet"]):
        assert main(["init", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert len(out.split("next:\n")[1].splitlines()) == 2
    # Nothing of the project but the repository and the backends is needed from here on.
    (tmp_path / "pricing.py").unlink()

    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout

    options = [f"--backend-directory={tmp_path / 'backends'}"]
    with ServerProcess(tmp_path / "models", *options, work=tmp_path / "work", timeout=60) as server:
        with httpclient.InferenceServerClient(server.http_url) as client:
            answered = client.infer("quote", inputs(client, "quote", amounts=np.ones(2), currency="eur", tags="a"))
            assert answered.as_numpy("result_0").tolist() == [20, 20]
            assert answered.as_numpy("result_1").tolist() == [b"EURa"]
            assert answered.as_numpy("result_2").tolist() == [1]
        for name in ("quote", "plain", "greet_example"):
            asked = run_script(tmp_path / "clients" / f"{name}.py", "--url", server.http_url)
            assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("ANSWER [b'hello text'")


def test_at_a_terminal_a_shape_that_no_hint_gives_is_asked_for(tmp_path):
    (tmp_path / "module.py").write_text(
        "import numpy as np\n\ndef f(x: np.ndarray, n: int) -> np.ndarray:\n    return x\n"
    )

    shown = at_a_terminal([NAIAD, "init", "model", "m", "--from=module:f"], tmp_path, b"2\nmany\n3\n")

    assert "number of dimensions of 'x' [1]: " in shown
    assert "number of dimensions of 'result' [1]: " in shown
    assert "note: the number of dimensions" not in shown
    config = parse_text((tmp_path / "models" / "m" / "config.pbtxt").read_text(), "config.pbtxt")
    assert [list(one.dims) for one in (*config.input, *config.output)] == [[-1, -1], [1], [-1, -1, -1]]


def at_a_terminal(command, folder, typed):
    """What a command prints at a terminal where *typed* is entered; it must succeed."""
    ours, its = pty.openpty()
    os.write(ours, typed)
    with subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 4096):
                shown += data
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def test_a_backend_in_c_needs_no_other_header_than_the_one_it_comes_with_and_runs(tmp_path):
    compiler = require("cc")
    made = subprocess.run(
        [NAIAD, "init", "backend", "custom", "--native"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    compiling, running = [line.strip() for line in made.stdout.splitlines() if line.startswith("    ")]

    compiling = compiling.replace("cc ", f"{compiler} -Wall -Wextra -Werror ", 1)
    subprocess.run(["bash", "-e", "-c", compiling], cwd=tmp_path, check=True)
    environ = {
        **os.environ,
        "NAIAD_STORE": str(tmp_path / "store"),
        "PATH": f"{NAIAD.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", running], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "OUT  FP32 [1, 3]  [[1., 2., 3.]]" in done.stdout
