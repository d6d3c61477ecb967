"""`naiad run --debug=debugpy`: an editor attaches to the guest, by the protocol that editors speak."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from embedded.testing.models import write_model
from support.interpreters import make_environment
from support.server import free_ports
from support.waiting import until

NAIAD = Path(sys.executable).with_name("naiad")
DOUBLE = """
def execute(self, requests):
    doubled = requests[0].inputs()[0].as_numpy() * 2
    output = pb_utils.Tensor("OUT", doubled)
    return [pb_utils.InferenceResponse([output])]
"""


class Editor:
    """One end of the Debug Adapter Protocol."""

    def __init__(self, port):
        self._socket = until(lambda: self._connect(port), f"a debugger that listens on port {port}", 60)
        self._socket.settimeout(60)
        self._file = self._socket.makefile("rb")
        self._number = 0

    @staticmethod
    def _connect(port):
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()
        self._socket.close()

    def say(self, command, **arguments):
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def wait(self, name):
        """The body of the next event, or answer, of that name."""
        while True:
            message = self._read()
            if message.get("event", message.get("command")) == name:
                return message.get("body") or {}

    def _read(self):
        size = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        assert size, "the debugger has closed the connection"
        return json.loads(self._file.read(size))


@pytest.fixture
def environment(tmp_path):
    folder = tmp_path / "environment"
    make_environment(folder, sys.version_info[:2], sys.executable, "numpy", "debugpy")
    return folder


@pytest.mark.slow
def test_an_editor_stops_in_execute_and_looks_at_its_variables(environment, tmp_path):
    model = write_model(tmp_path, "double", DOUBLE)
    with (model / "config.pbtxt").open("a") as config:
        config.write(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n')
    code = next(model.rglob("model.py"))
    line = next(number for number, text in enumerate(code.read_text().splitlines(), 1) if "output = " in text)
    [port] = free_ports(1)
    command = [NAIAD, "run", str(model), "--input=IN=[20.5]", f"--debug=debugpy:{port}"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            with Editor(port) as editor:
                editor.say("initialize", adapterID="test", pathFormat="path")
                editor.wait("initialize")
                editor.say("attach", justMyCode=False)
                editor.wait("initialized")
                editor.say("setBreakpoints", source={"path": str(code)}, breakpoints=[{"line": line}])
                assert editor.wait("setBreakpoints")["breakpoints"][0]["verified"]
                editor.say("configurationDone")
                thread = editor.wait("stopped")["threadId"]
                editor.say("stackTrace", threadId=thread)
                [frame, *_] = editor.wait("stackTrace")["stackFrames"]
                assert (frame["name"], frame["line"]) == ("execute", line)
                editor.say("evaluate", expression="doubled.tolist()", frameId=frame["id"])
                assert editor.wait("evaluate")["result"] == "[41.0]"
                editor.say("continue", threadId=thread)
                editor.wait("continue")
            # With the editor gone: debugpy's own helper writes to the same pipe for as long as one is attached.
            printed, _ = running.communicate(timeout=60)
        finally:
            running.kill()

    assert running.returncode == 0, printed
    assert "OUT  FP32 [1]  [41.]" in printed
