"""The servers: what each needs, how it is started, and what it is asked."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.reference import SERVER_VERSION, install
from bench.results import OURS, THEIRS
from bench.scaling.load import Request, infer_request
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest

PROGRAMS = Path(__file__).parent / "programs"
REFERENCE = Path(__file__).parents[2] / ".bench" / "reference"
FLOOR = "floor"
ADD_SUB, FOREST, NETWORK = "add_sub", "forest", "network"
BINARY, LONG_JSON, MIDDLE, LARGE, GRPC = "binary", "json-1000", "64KiB", "1MiB", "grpc"
JOBS = (ADD_SUB, FOREST, NETWORK, BINARY, LONG_JSON, MIDDLE, LARGE, GRPC)
SUMS = {ADD_SUB: 16, BINARY: 16, LONG_JSON: 1000, MIDDLE: 1 << 13, LARGE: 1 << 17, GRPC: 16}
"""Jobs that are sums and differences: numbers in each of the two tensors."""
IN_JSON = (ADD_SUB, LONG_JSON)
MOST_ROWS = 32
FEATURES = 20
_JSON = {"Content-Type": "application/json"}
_random = random.Random(0)
_PAIR = [[round(_random.random(), 3) for _ in range(max(SUMS[job] for job in IN_JSON))] for _ in range(2)]
_ROW = [round(_random.uniform(-3, 3), 3) for _ in range(FEATURES)]
_TYPES = {FOREST: "FP64", NETWORK: "FP32"}
_OUTPUTS = {FOREST: "predict_proba", NETWORK: "probabilities"}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a contestant is started.

    Attributes:
        python: The interpreter of its environment.
        model: The file of the model of a job; empty for sums.
        folder: A folder of its own, empty at first.
        port: The port to listen at, on the loopback address.
    """

    python: Path
    model: Path
    folder: Path
    port: int


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A server with its recommended settings.

    Attributes:
        name: Its name in the table.
        packages: What is installed into its environment; none for naiad, which runs from this checkout.
        distribution: The package whose version is printed; empty to print none.
        settings: What is set, for the table.
        command: Its arguments for a job; writes what it needs into the folder.
        request: What it is asked in a job.
        jobs: The jobs that it can do.
        forest: Suffix of the file of the classifier.
        own_environment: Name of the environment, if several contestants share one.
    """

    name: str
    packages: Sequence[str]
    distribution: str
    settings: str
    command: Callable[[str, Place], Sequence[str]]
    request: Callable[[str], Request]
    jobs: Sequence[str] = (ADD_SUB, FOREST, NETWORK)
    forest: str = ".joblib"
    own_environment: str = ""

    @property
    def environment(self) -> str:
        """The folder of its environment."""
        return self.own_environment or self.name


def _plain(job: str) -> Request:
    path, body = "/rows", {"rows": [_ROW]}
    if job == ADD_SUB:
        path, body = "/add_sub", {"a": _PAIR[0][:16], "b": _PAIR[1][:16]}
    return Request(path, json.dumps(body).encode(), _JSON)


def _kserve(job: str) -> Request:
    if job == GRPC:
        return _grpc(SUMS[job])
    if job in SUMS and job not in IN_JSON:
        return infer_request(ADD_SUB, ("INPUT0", "INPUT1"), SUMS[job])
    if job in SUMS:
        count = SUMS[job]
        inputs = [
            {"name": f"INPUT{index}", "datatype": "FP32", "shape": [count], "data": numbers[:count]}
            for index, numbers in enumerate(_PAIR)
        ]
        body: dict[str, Any] = {"inputs": inputs}
        job = ADD_SUB
    else:
        body = {
            "inputs": [{"name": "X", "datatype": _TYPES[job], "shape": [1, FEATURES], "data": _ROW}],
            "outputs": [{"name": _OUTPUTS[job]}],
        }
    return Request(f"/v2/models/{job}/infer", json.dumps(body).encode(), _JSON)


def _grpc(count: int) -> Request:
    """ModelInfer, as Triton's client in C++ writes it: with a parameter."""
    message = ModelInferRequest(model_name=ADD_SUB)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for index in range(2):
        message.inputs.add(name=f"INPUT{index}", datatype="FP32", shape=[count])
        message.outputs.add(name=f"OUTPUT{index}")
        message.raw_input_contents.append(bytes(4 * count))
    content = message.SerializeToString()
    headers = {"Content-Type": "application/grpc", "TE": "trailers"}
    body = struct.pack(">BL", 0, len(content)) + content
    return Request("/inference.GRPCInferenceService/ModelInfer", body, headers)


def _one_port(job: str, port: int) -> list[str]:
    """Flags, of naiad and Triton alike, that serve nothing but the protocol of a job."""
    served, other = ("grpc", "http") if job == GRPC else ("http", "grpc")
    options = {f"{served}-address": "127.0.0.1", f"{served}-port": port, f"allow-{other}": "false"}
    return [f"--{name}={value}" for name, value in options.items()] + ["--allow-metrics=false"]


def _start_naiad(job: str, place: Place) -> Sequence[str]:
    _write_models(job, place)
    return [
        *(str(place.python), "-m", "naiad", "serve", f"--model-repository={place.folder}"),
        *_one_port(job, place.port),
        "--backend-config=sklearn,trusted-types=sklearn.tree._tree.Tree",
    ]


def _start_triton(job: str, place: Place) -> Sequence[str]:
    _write_models(job, place)
    return [
        str(install(REFERENCE).root / "bin" / "tritonserver"),
        f"--model-repository={place.folder}",
        *_one_port(job, place.port),
    ]


def _start_floor(job: str, place: Place) -> Sequence[str]:
    return [str(place.python), str(PROGRAMS / "floor.py"), str(place.port), *(["grpc"] if job == GRPC else [])]


def _write_models(job: str, place: Place) -> None:
    version = place.folder / (ADD_SUB if job in SUMS else job) / "1"
    version.mkdir(parents=True)
    config = version.parent / "config.pbtxt"
    if job in SUMS:
        (version / "model.py").write_text(_ADD_SUB_MODEL)
        config.write_text(_ADD_SUB_CONFIG)
    else:
        (version / f"model{place.model.suffix}").write_bytes(place.model.read_bytes())
        backend = "sklearn" if job == FOREST else "onnxruntime"
        config.write_text(f'backend: "{backend}"\nmax_batch_size: {MOST_ROWS}\ndynamic_batching {{}}\n')


def _start_fastapi(job: str, place: Place) -> Sequence[str]:  # noqa: ARG001 - one program has all jobs
    options = ["--host=127.0.0.1", f"--port={place.port}", "--no-access-log", "--log-level=warning"]
    return [str(place.python), "-m", "uvicorn", f"--app-dir={PROGRAMS}", "fastapi_app:app", *options]


def _start_litserve(job: str, place: Place) -> Sequence[str]:
    return [str(place.python), str(PROGRAMS / "litserve_app.py"), job, str(place.port)]


def _start_bentoml(job: str, place: Place) -> Sequence[str]:  # noqa: ARG001 - one program has all jobs
    options = ["--host=127.0.0.1", f"--port={place.port}", f"--working-dir={PROGRAMS}"]
    return [str(place.python), "-m", "bentoml", "serve", "bentoml_service:Jobs", *options]


def _start_mlserver(job: str, place: Place, workers: int) -> Sequence[str]:
    home = place.folder / job
    home.mkdir()
    model: dict[str, Any] = {"name": job, "implementation": "mlserver_jobs.AddSub"}
    if job != ADD_SUB:
        model["implementation"] = "mlserver_sklearn.SKLearnModel" if job == FOREST else "mlserver_jobs.Network"
        model |= {"parameters": {"uri": str(place.model)}, "max_batch_size": MOST_ROWS, "max_batch_time": 0.001}
    for name in ("mlserver_jobs.py", "predictors.py"):
        (home / name).write_text((PROGRAMS / name).read_text())
    (home / "model-settings.json").write_text(json.dumps(model))
    settings: dict[str, Any] = {"host": "127.0.0.1", "parallel_workers": workers, "debug": False}
    settings |= {"http_port": place.port, "grpc_port": place.port + 1, "metrics_port": place.port + 2}
    (place.folder / "settings.json").write_text(json.dumps(settings))
    return [str(place.python), "-c", "from mlserver.cli import main; main()", "start", str(place.folder)]


def _start_mosec(job: str, place: Place) -> Sequence[str]:
    options = ["--address=127.0.0.1", f"--port={place.port}", "--log-level=warning"]
    return [str(place.python), str(PROGRAMS / "mosec_app.py"), job, *options]


def _start_ray(job: str, place: Place) -> Sequence[str]:
    return [str(place.python), str(PROGRAMS / "ray_app.py"), job, str(place.port)]


_ADD_SUB_MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = (tensor.as_numpy() for tensor in request.inputs())
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
_ADD_SUB_CONFIG = """\
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
input { name: "INPUT1" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: -1 }
"""
_LIBRARIES = ("scikit-learn", "onnxruntime")
# Workers of MLServer 1.7.1 end at once with newer versions of uvloop.
_MLSERVER = ("mlserver", "mlserver-sklearn", "onnxruntime", "uvloop<0.22")

CONTESTANTS = (
    Contestant(
        OURS,
        (),
        "naiad",
        "one process and one guest; dynamic batching",
        _start_naiad,
        _kserve,
        jobs=JOBS,
        forest=".skops",
    ),
    Contestant(
        FLOOR,
        (),
        "",
        "two processes of `programs/floor.py`: no checks, no counts, one model",
        _start_floor,
        _kserve,
        jobs=tuple(SUMS),
    ),
    Contestant(
        THEIRS,
        (),
        "",
        f"version {SERVER_VERSION}, its defaults",
        _start_triton,
        _kserve,
        jobs=tuple(SUMS),
    ),
    Contestant(
        "FastAPI",
        ("fastapi", "uvicorn[standard]", *_LIBRARIES),
        "fastapi",
        "uvicorn, one process: no isolation, no batches",
        _start_fastapi,
        _plain,
    ),
    Contestant(
        "LitServe",
        ("litserve", *_LIBRARIES),
        "litserve",
        "one worker; batches of 32 within 1 ms",
        _start_litserve,
        _plain,
    ),
    Contestant("mosec", ("mosec", *_LIBRARIES), "mosec", "one worker; batches of 32 within 1 ms", _start_mosec, _plain),
    Contestant("BentoML", ("bentoml", *_LIBRARIES), "bentoml", "one worker; adaptive batches", _start_bentoml, _plain),
    Contestant(
        "MLServer",
        _MLSERVER,
        "mlserver",
        "one worker process, its default; batches of 32 within 1 ms",
        lambda job, place: _start_mlserver(job, place, 1),
        _kserve,
        own_environment="MLServer",
    ),
    Contestant(
        "MLServer in one process",
        _MLSERVER,
        "mlserver",
        "`parallel_workers: 0`: no isolation; batches of 32 within 1 ms",
        lambda job, place: _start_mlserver(job, place, 0),
        _kserve,
        own_environment="MLServer",
    ),
    Contestant(
        "Ray Serve", ("ray[serve]", *_LIBRARIES), "ray", "one replica; batches of 32 within 1 ms", _start_ray, _plain
    ),
)
