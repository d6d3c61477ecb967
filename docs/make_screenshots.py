"""Makes the screenshots of the page at `/ui` for the documentation: `.venv/bin/python docs/make_screenshots.py`.

Needs chromium, chromedriver and the packages of the group `dev`. A server is started with small models that this file
writes into a temporary folder; some of them fail on purpose. The pictures are stored in docs/images.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

IMAGES = Path(__file__).parent / "images"
DESKTOP, PHONE = (1280, 800), (390, 844)
_LOAD_SECONDS = 45
_REPLACE_TEXT = """
const [found, shown] = arguments;
const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (nodes.nextNode()) nodes.currentNode.data = nodes.currentNode.data.replaceAll(found, shown);
"""
_READ_PIXELS = """
const [encoded, done] = arguments;
const picture = new Image();
picture.onload = () => {
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, picture.width, picture.height).data;
  let text = "";
  for (let at = 0; at < pixels.length; at += 32768) text += String.fromCharCode(...pixels.subarray(at, at + 32768));
  done([picture.width, picture.height, btoa(text)]);
};
picture.src = `data:image/png;base64,${encoded}`;
"""

_CLASSIFIER = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("loaded weights of " + args["model_name"])
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(0.004 + 0.003 * np.random.rand())
            array = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            scores = np.abs(np.array([array.mean(), array.std(), array.max()], np.float32))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores)]))
        return responses
"""
_ROUTER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE")
            names = ["classifier", "detector"][: 1 + int(np.random.rand() < 0.4)]
            for name in names:
                call = pb_utils.InferenceRequest(model_name=name, inputs=[image], requested_output_names=["SCORES"])
                answer = call.exec()
            responses.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return responses
"""
_ASSISTANT = '''
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

ANSWER = """A **model process** runs one instance of a model, in its own Python:

1. the server copies the inputs into *shared memory*,
2. the process calls `execute`,
3. the outputs travel back the same way.

```python
def execute(self, requests):
    return [respond(request) for request in requests]
```
"""

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            embedding = pb_utils.get_input_tensor_by_name(request, "embedding_request")
            if embedding is not None:
                text = json.loads(embedding.as_numpy().ravel()[0])["input"]
                vector = [float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz "]
                sender.send(self.response(json.dumps(vector), 0))
            else:
                time.sleep(0.12)
                for piece in ANSWER.split(" "):
                    sender.send(self.response(piece + " ", 1))
                    time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def response(self, text, tokens):
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("text_output", np.array([text.encode()], object)),
            pb_utils.Tensor("num_output_tokens", np.array([tokens], np.uint32)),
        ])
'''
_IMAGES_IN = 'input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]'
_SCORES_OUT = 'output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] } ]'
_TEXTS = """
model_transaction_policy { decoupled: true }
input [
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "embedding_request" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
]
"""
_PIPELINE = """
platform: "ensemble"
input [ { name: "PHOTO" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
output [ { name: "LABELS" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [
  { model_name: "normalizer" model_version: -1 input_map { key: "IMAGE" value: "PHOTO" } output_map { key: "IMAGE_OUT" value: "clean" } },
  { model_name: "router" model_version: -1 input_map { key: "IMAGE" value: "clean" } output_map { key: "SCORES" value: "LABELS" } }
] }
"""
_NORMALIZER = _CLASSIFIER.replace('"SCORES", scores', '"IMAGE_OUT", (array - array.mean()).astype(np.float32)')
_HEALTHY = {
    "classifier": (_CLASSIFIER, f"{_IMAGES_IN}\n{_SCORES_OUT}\ninstance_group [ {{ count: 2 kind: KIND_CPU }} ]"),
    "detector": (_CLASSIFIER, f"{_IMAGES_IN}\n{_SCORES_OUT}"),
    "normalizer": (
        _NORMALIZER,
        f"{_IMAGES_IN}\n{_SCORES_OUT.replace('SCORES', 'IMAGE_OUT').replace('[ 3 ]', '[ 3, -1 ]')}",
    ),
    "router": (_ROUTER, f"{_IMAGES_IN}\n{_SCORES_OUT}"),
    "assistant": (_ASSISTANT, _TEXTS),
    "photo_pipeline": (None, _PIPELINE),
}
_FAILING = {
    "speech_to_text": ("import whisper_large\n\nclass TritonPythonModel:\n    pass\n", f"{_IMAGES_IN}\n{_SCORES_OUT}"),
    "translator": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        open('/models/translator/vocabulary.txt')\n",
        f"{_IMAGES_IN}\n{_SCORES_OUT}",
    ),
}
_PAGES = {
    "console": ("#/", DESKTOP, "light"),
    "console-dark": ("#/", DESKTOP, "dark"),
    "console-phone": ("#/", PHONE, "light"),
    "console-model": ("#/model/classifier/1", DESKTOP, "light"),
    "console-request": ("#/model/classifier/1/request", DESKTOP, "light"),
    "console-chat": ("#/model/assistant/1/chat", DESKTOP, "light"),
    "console-graph": ("#/graph", DESKTOP, "dark"),
    "console-failed": ("#/", DESKTOP, "light"),
}


def write_models(repository: Path, models: dict[str, tuple[str | None, str]]) -> None:
    """Write models into a repository: code and configuration by name."""
    for name, (code, configuration) in models.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        backend = "" if code is None else 'backend: "python"\n'
        (repository / name / "config.pbtxt").write_text(f"{backend}{configuration}\n")
        if code is not None:
            (version / "model.py").write_text(code)


@contextmanager
def serving(repository: Path, *flags: str) -> Iterator[str]:
    """A server for *repository*; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "naiad", "serve", f"--model-repository={repository}", "--http-address=127.0.0.1"]
    command += [f"--http-port={port}", "--ui=true", "--allow-grpc=false", "--allow-metrics=false", "--log-info=true"]
    command += [
        "--exit-on-error=false",
        "--strict-readiness=false",
        f"--env-store={repository.parent / 'store'}",
        *flags,
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while not _responds(f"{address}/v2/health/ready"):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}: {' '.join(command)}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return False
    except OSError:
        return False


@contextmanager
def load(address: str, seconds: float) -> Iterator[None]:
    """Requests to the models until the context is closed; returns to its body after *seconds*."""
    is_over = threading.Event()
    image = [{"name": "IMAGE", "datatype": "FP32", "shape": [3, 64], "data": [0.5] * 192}]
    photo = [{**image[0], "name": "PHOTO"}]
    targets = [
        ("classifier", image),
        ("classifier", image),
        ("classifier", image),
        ("detector", image),
        ("photo_pipeline", photo),
    ]
    workers = [threading.Thread(target=_request, args=(address, is_over, *target)) for target in targets]
    for worker in workers:
        worker.start()
    try:
        is_over.wait(seconds)
        yield
    finally:
        is_over.set()
        for worker in workers:
            worker.join()


def _request(address: str, is_over: threading.Event, model: str, inputs: object) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    while not is_over.wait(0.01 + 0.02 * (time.time() % 20 > 10)):
        request = urllib.request.Request(f"{address}/v2/models/{model}/infer", body, method="POST")
        try:
            urllib.request.urlopen(request, timeout=30).read()
        except OSError:
            continue


@contextmanager
def browser(folder: Path) -> Iterator[Chrome]:
    """Chromium without a window."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    found, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if found is None or driver is None:
        raise SystemExit("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = found
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}"):
        options.add_argument(flag)
    started = Chrome(options, Service(driver))
    try:
        yield started
    finally:
        started.quit()


def photograph(page: Chrome, address: str, name: str, target: Path, paths: Mapping[str, str]) -> None:
    """Store the picture of one page, with *paths* of this machine replaced."""
    route, (width, height), theme = _PAGES[name]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = [{"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    page.get("about:blank")
    page.get(f"{address}/ui{route}")
    _wait(page, "return document.querySelector('main').childElementCount > 0")
    if name == "console-chat":
        _wait(page, "return document.querySelector('.composer textarea') !== null")
        page.execute_script(
            "document.querySelector('.composer textarea').value = 'How does naiad run a model?';"
            "document.querySelector('.composer').requestSubmit()"
        )
        _wait(page, "return document.querySelector('.composer button').textContent === 'Send'")
    if name == "console-request":
        _wait(page, "return document.querySelector('.fills button:nth-child(4)') !== null")
        page.execute_script("document.querySelector('.fills button:nth-child(4)').click()")
        page.execute_script("document.querySelector('form').requestSubmit()")
        _wait(page, "return document.getElementById('took').textContent.startsWith('200')")
    if name == "console-failed":
        _wait(page, "return document.querySelector('button.link') !== null")
        page.execute_script("document.querySelector('button.link').click()")
    time.sleep(1.5)
    for found, shown in paths.items():
        page.execute_script(_REPLACE_TEXT, found, shown)
    page.save_screenshot(str(target))


def _wait(page: Chrome, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 60, poll_frequency=0.1).until(lambda _: page.execute_script(script))


def main() -> None:
    """Make all pictures, or those that the command line names."""
    IMAGES.mkdir(exist_ok=True)
    make_pictures(sys.argv[1:] or list(_PAGES), IMAGES, float(os.environ.get("LOAD_SECONDS", _LOAD_SECONDS)))


def make_pictures(names: Sequence[str], target: Path, seconds: float) -> None:
    """Make pictures in a folder, each after *seconds* of load."""
    with tempfile.TemporaryDirectory(prefix="naiad-screenshots-") as folder, browser(Path(folder, "profile")) as page:
        healthy, mixed = Path(folder, "healthy"), Path(folder, "models")
        write_models(healthy, _HEALTHY)
        write_models(mixed, _HEALTHY | _FAILING)
        paths = {sys.prefix: "/opt/naiad", str(IMAGES.parents[1]): "/opt/naiad", folder: "/srv"}
        for repository, chosen in (
            (healthy, set(names) - {"console-failed"}),
            (mixed, set(names) & {"console-failed"}),
        ):
            if chosen:
                with serving(repository) as address, load(address, seconds):
                    for name in sorted(chosen):
                        photograph(page, address, name, target / f"{name}.png", paths)
        page.get("about:blank")
        for name in names:
            compress(page, target / f"{name}.png")


def compress(page: Chrome, path: Path) -> None:
    """Store a picture with a palette: pages have few colors, and this takes a third of the bytes."""
    encoded = base64.b64encode(path.read_bytes()).decode()
    width, height, pixels = page.execute_async_script(_READ_PIXELS, encoded)
    colors = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(-1, 4)[:, :3].astype(np.int32)
    codes = colors @ [1 << 16, 1 << 8, 1]
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    kept = found[np.argsort(counts)[::-1][:256]]
    parts = [np.stack([each >> 16, each >> 8 & 255, each & 255], 1) for each in (found, kept)]
    nearest = np.array([np.abs(parts[1] - color).sum(1).argmin() for color in parts[0]], np.uint8)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = nearest[places].reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", parts[1].astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in (*chunks, (b"IEND", b""))))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


if __name__ == "__main__":
    main()
