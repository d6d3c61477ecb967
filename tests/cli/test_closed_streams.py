"""Programs that are started without standard streams, as `<&-`, cron and some service managers do."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from serving.repositories import infer, repository, values
from support.server import TRITONSERVER, ServerProcess

pytestmark = pytest.mark.server

NAIAD = TRITONSERVER.with_name("naiad")
ALL = "<&- >&- 2>&-"
PROGRAMS = {
    "tritonserver": [TRITONSERVER],
    "naiad serve": [NAIAD, "serve"],
    "python -m naiad": [sys.executable, "-m", "naiad", "serve"],
}


def without(streams: str, command: list[str | Path]) -> list[str | Path]:
    return ["sh", "-c", f'exec "$0" "$@" {streams}', *command]


@pytest.mark.parametrize(
    ("program", "streams", "processes"),
    [("tritonserver", ">&- 2>&-", 2), ("naiad serve", ALL, 1), ("python -m naiad", "<&-", 1)],
)
def test_servers_without_standard_streams_serve_and_stop(tmp_path, program, streams, processes):
    """They were aborted by an assertion of libuv, or could not ask whether stdin is a terminal."""
    models, log = repository(tmp_path / "models", ["identity"]), tmp_path / "log"
    options = (f"--log-file={log}", f"--processes={processes}")
    command = without(streams, PROGRAMS[program])
    with ServerProcess(models, *options, work=tmp_path, command=command) as server:
        assert values(infer(server, "identity", 1.0, 2.0)) == [1.0, 2.0]
        for process in server.processes():
            opened = {str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)}
            # A guest has pipes to the server. The last one is the stream that is not closed here.
            assert {name.partition(":")[0] for name in opened} <= {"/dev/null", "pipe", str(server.log_path)}
    assert "Traceback" not in log.read_text()


def test_commands_without_standard_streams_do_their_work(tmp_path):
    made = [NAIAD, "init", "model", "made", "--model-repository=models"]
    done = subprocess.run(without(ALL, made), timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "models" / "made" / "1" / "model.py").exists()
    failed = subprocess.run(without(ALL, [NAIAD, "explain", "missing"]), timeout=100, check=False, cwd=tmp_path)
    assert failed.returncode in {1, 2}


def test_a_program_without_standard_streams_runs_models_in_process(tmp_path):
    """A guest's socket became the guest's stdin."""
    repository(tmp_path / "models", ["identity"])
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, sys
            import numpy as np
            import naiad as tritonserver

            server = tritonserver.Server(model_repository=sys.argv[1], log_file=sys.argv[3])
            server.start(wait_until_ready=True)
            responses = server.model("identity").infer(inputs={"IN": np.array([1, 2], np.float32)})
            found = [np.from_dlpack(response.outputs["OUT"]).tolist() for response in responses]
            server.stop()
            json.dump(found, open(sys.argv[2], "w"))
            """
        )
    )
    result = tmp_path / "result"
    command = [sys.executable, program, tmp_path / "models", result, tmp_path / "log"]
    done = subprocess.run(without(ALL, command), timeout=100, check=False)
    assert (done.returncode, json.loads(result.read_text())) == (0, [[1.0, 2.0]])
