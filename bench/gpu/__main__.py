"""Tensors in GPU memory, tried on this machine's GPU: `make gpu-check` prints one table, in less than four minutes.

    python -m bench.gpu [--json FILE] [--python INTERPRETER] [--seconds N]

Needs no network. INTERPRETER (`python3` unless named) is one with PyTorch and JAX; rows of frameworks that it lacks say
so. The server is this checkout's, run by the interpreter that runs this program, which needs naiad's dependencies.
Where NAIAD_BENCH_REFERENCE, or /opt/naiad-bundle/peer, is an installed Triton, the figures stand beside Triton's.

Without NVIDIA's driver, the stand-in of the tests takes its place, and the table says so: then the rows show that the
code works, and the figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import machine_rows
from bench.gpu.client import Connection, median
from bench.gpu.driver_facts import used_memory
from bench.servers import HOST, free_ports

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).parent / "models"
STAND_IN = ROOT / "tests" / "support" / "cuda_driver.c"
FRAMEWORKS = ("torch", "jax", "cupy")
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
LARGE_CALL = 1 << 20
_SMALL_BYTES = 64 << 10
"""Tensors of up to so many bytes go through the CPU."""
_START_SECONDS = 60
_REQUEST_SECONDS = 40
_STOP_SECONDS = 15
_LEAST_SECONDS = 20
"""With less left, no further server is started."""


GRPC_PORTS: dict[int, int] = {}
"""Ports for gRPC by those for HTTP, of the servers that were started."""


@dataclasses.dataclass
class Row:
    """One line of the table."""

    section: str
    name: str
    outcome: str
    detail: Any
    seconds: float


class Table:
    """The rows so far; each is printed as soon as it is known.

    Attributes:
        deadline: When the whole check must have ended (monotonic seconds).
    """

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.rows: list[Row] = []
        self._hung: set[str] = set()

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def try_out(self, section: str, name: str, work: Callable[[], Any]) -> Any:
        """Run *work* and print its result; what it raises is the row's failure, and None is returned."""
        began = time.monotonic()
        result = None
        if self.remaining <= 0 and section != "end":
            outcome, detail = "no time", ""
        elif section in self._hung:
            outcome, detail = "skipped", "an earlier row of this section did not end in time"
        else:
            try:
                result = detail = work()
                outcome = "ok" if is_right(detail) else "WRONG"
            except Exception as error:  # noqa: BLE001 - one row fails, the others go on
                outcome, detail = "FAILED", f"{type(error).__name__}: {error}"
                if isinstance(error, TimeoutError):
                    self._hung.add(section)
        row = Row(section, name, outcome, detail, round(time.monotonic() - began, 1))
        self.rows.append(row)
        print(f"{row.section:10} {row.name:44} {row.outcome:7} {row.seconds:5.1f} s  {_short(detail)}", flush=True)
        return result

    def note(self, section: str, name: str, text: str) -> None:
        """A row that was not tried, and why."""
        self.rows.append(Row(section, name, "none", text, 0.0))
        print(f"{section:10} {name:44} {'none':7}          {text}", flush=True)


def is_right(detail: Any) -> bool:
    """Whether nothing below *detail* is False."""
    if isinstance(detail, Mapping):
        return all(is_right(each) for key, each in detail.items() if key not in ("is_cpu", "range is the array"))
    if isinstance(detail, (list, tuple)):
        return all(map(is_right, detail))
    return detail is not False


def _short(detail: Any) -> str:
    text = detail if isinstance(detail, str) else json.dumps(detail)
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join([lines[0], *lines[-2:]] if len(lines) > 3 else lines)[:1500]


# -- servers ----------------------------------------------------------------------------------------------------------


def naiad_command() -> list[str]:
    """This checkout's server, by this interpreter."""
    return [
        sys.executable,
        "-c",
        "import sys; from naiad.cli.main import main_tritonserver; sys.exit(main_tritonserver())",
    ]


@contextlib.contextmanager
def running(
    command: Sequence[str], repository: Path, work: Path, table: Table, *options: str, **environ: str
) -> Iterator[int]:
    """A ready server; its HTTP port, to which the one of gRPC is next in `GRPC_PORTS`."""
    http_port, grpc_port, metrics_port = free_ports(3)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NAIAD_"))}
    log = work / f"server-{http_port}.log"
    places = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    addresses = [f"--http-address={HOST}", f"--grpc-address={HOST}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--model-repository={repository}", *places, *addresses, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, "XDG_CACHE_HOME": str(work / "cache"), **environ},
            start_new_session=True,
        )
    try:
        _wait_ready(process, http_port, min(_START_SECONDS, table.remaining), log)
        GRPC_PORTS[http_port] = grpc_port
        yield http_port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            table.note("end", Path(command[0]).name, f"did not end within {_STOP_SECONDS} s; killed")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float, log: Path) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            code, _ = _get(port, "/v2/health/ready")
            if code == 200:
                return
        time.sleep(0.05)
    end = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
    what = "is not ready in time" if process.poll() is None else f"ended with {process.returncode}"
    raise RuntimeError(f"the server {what}:\n{end}")


def _get(port: int, path: str) -> tuple[int, bytes]:
    import http.client

    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def make_repository(folder: Path, frameworks: Sequence[str], stages: Sequence[str] = ()) -> Path:
    """The models, with one that doubles and one that probes for each framework, and a chain of *stages*."""
    for name in ("echo", "echo_cpu", "streams"):
        shutil.copytree(MODELS / name, folder / name)
    for framework in frameworks:
        for name in ("probe", "doubles"):
            made = folder / f"{name}_{framework}"
            shutil.copytree(MODELS / name, made)
            for module in ("probes.py", "device_arrays.py"):
                shutil.copy(MODELS / module, made / "1")
            with (made / "config.pbtxt").open("a") as file:
                file.write(f'parameters {{ key: "framework" value {{ string_value: "{framework}" }} }}\n')
    if stages:
        _write_chain(folder / "chain", stages)
    return folder


def _write_chain(folder: Path, stages: Sequence[str]) -> None:
    (folder / "1").mkdir(parents=True)
    steps = ""
    for index, stage in enumerate(stages):
        given = "IN" if index == 0 else f"between_{index}"
        left = "OUT" if index == len(stages) - 1 else f"between_{index + 1}"
        maps = f'input_map {{ key: "IN" value: "{given}" }} output_map {{ key: "OUT" value: "{left}" }}'
        steps += f'step {{ model_name: "{stage}" model_version: -1 {maps} }}\n'
    tensors = "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}\n'
        for kind, name in (("input", "IN"), ("output", "OUT"))
    )
    (folder / "config.pbtxt").write_text(f'platform: "ensemble"\n{tensors}ensemble_scheduling {{\n{steps}}}\n')


# -- rows -------------------------------------------------------------------------------------------------------------


def try_frameworks(table: Table, work: Path, prefix: str | None, versions: Mapping[str, str]) -> None:
    """Rows of a server whose models run under the interpreter with the frameworks."""
    present = [name for name in FRAMEWORKS if not versions.get(name, "none").startswith("none")]
    for name in FRAMEWORKS:
        if name not in present:
            table.note(name, "all rows", f"the interpreter has {versions.get(name, 'none')}")
    if not present:
        present = ["arrays"]
    stages = [f"doubles_{present[index % len(present)]}" for index in range(3)]
    repository = make_repository(work / "frameworks", present, stages)
    options = [f"--backend-config=python,execution-env-path={prefix}"] if prefix else []
    environ = {**_checkout(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with (
        running(naiad_command(), repository, work, table, *options, **environ) as port,
        Connection(port, _REQUEST_SECONDS) as client,
    ):
        for framework in present:
            _try_framework(table, client, framework)
        table.try_out("chain", f"three models: {', '.join(stages)}", lambda: _chain(client))


def _try_framework(table: Table, client: Connection, framework: str) -> None:
    def probe(name: str, function: str, **arguments: Any) -> None:
        table.try_out(framework, name, lambda: client.probe(f"probe_{framework}", function, **arguments))

    probe("Tensor over the framework's array", "tensor_api", framework=framework)
    for form in ("object", "capsule", "part", *(["stream"] if framework == "torch" else [])):
        table.try_out(
            framework, f"output to HTTP: {form}", lambda form=form: _outputs(client, f"doubles_{framework}", form)
        )  # type: ignore[misc]
    for name, size in SIZES.items():
        arguments = {"model": "echo", "framework": framework, "size": size, "count": 30}
        probe(f"call of echo, {name}", "call", **arguments, where="gpu", expected="GPU")
        place = "GPU" if size > _SMALL_BYTES else "CPU"
        probe(f"call of echo without a preference, {name}", "call", **arguments, where="", expected=place)
    probe(
        "call of echo with inputs on the CPU",
        "call",
        model="echo_cpu",
        framework=framework,
        size=1 << 20,
        count=5,
        where="",
    )
    probe(
        "call of echo_cpu, output wanted on the GPU",
        "call",
        model="echo_cpu",
        framework=framework,
        size=1 << 20,
        count=5,
        where="gpu",
        expected="GPU",
    )
    probe(
        "call of echo, output wanted on the CPU",
        "call",
        model="echo",
        framework=framework,
        size=1 << 20,
        count=5,
        where="cpu",
        expected="CPU",
    )
    probe("eight calls by async_exec", "call_async", model="echo", framework=framework, size=1 << 20, count=8)
    probe("a call with three responses", "call_decoupled", model="streams", framework=framework, size=1 << 20)
    if framework == "torch":
        probe("expandable segments", "expandable_segments", size=1 << 22)
    probe("too little device memory", "out_of_memory", framework=framework)


def _outputs(client: Connection, model: str, form: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, size in SIZES.items():
        if form == "stream" and size < 1 << 20:
            continue
        values = np.random.default_rng(3).random(size // 4, np.float32)
        times = []
        right = True
        for _ in range(5):
            began = time.perf_counter()
            answer = client.infer(model, values, {"form": form})
            times.append((time.perf_counter() - began) * 1e6)
            right = right and bool(np.array_equal(answer, values * 2))
        found[name] = {"p50_us": round(median(times)), "right": right}
    return found


def _chain(client: Connection) -> dict[str, Any]:
    found = {}
    for name, size in SIZES.items():
        values = np.random.default_rng(4).random(size // 4, np.float32)
        times = []
        right = True
        for _ in range(8):
            began = time.perf_counter()
            answer = client.infer("chain", values)
            times.append((time.perf_counter() - began) * 1e6)
            right = right and bool(np.array_equal(answer, values * 8))
        found[name] = {"p50_us": round(median(times)), "right": right}
    return found


_WRITE_DOUBLES = """
import json, sys, torch
class Doubles(torch.nn.Module):
    def forward(self, given):
        return given * 2
torch.jit.trace(Doubles(), torch.ones(2)).save(sys.argv[1])
print(json.dumps({"cuda": torch.cuda.is_available()}))
"""
_ON_THE_GPU = """
backend: "pytorch"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { kind: KIND_GPU gpus: [ 0 ] }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""


def try_files(table: Table, work: Path, interpreter: str, versions: Mapping[str, str]) -> None:
    """Rows of the backend `pytorch`: a file on the GPU, alone and as each step of an ensemble."""
    section = "files"
    if str(versions.get("torch", "none")).startswith("none"):
        table.note(section, "backend pytorch", f"the interpreter has {versions.get('torch', 'none')}")
        return
    if table.remaining < _LEAST_SECONDS:
        table.note(section, "backend pytorch", "no time is left")
        return
    repository = work / "files"
    file = repository / "doubles" / "1" / "model.pt"
    file.parent.mkdir(parents=True)
    written = _json_of([interpreter, "-c", _WRITE_DOUBLES, str(file)], table)[0]
    if not written["cuda"]:
        table.note(section, "backend pytorch", "PyTorch finds no GPU that it can use")
        return
    (repository / "doubles" / "config.pbtxt").write_text(_ON_THE_GPU)
    _write_chain(repository / "chain", ["doubles"] * 3)
    options = [f"--backend-config=pytorch,execution-env-path={versions['prefix']}"]
    with (
        running(naiad_command(), repository, work, table, *options, **_checkout()) as port,
        Connection(port, _REQUEST_SECONDS) as client,
    ):
        table.try_out(section, "a model.pt on the GPU", lambda: _outputs(client, "doubles", ""))
        table.try_out(section, "three steps with it", lambda: _chain(client))


def _checkout() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT / 'stubs'}"}


def try_figures(table: Table, work: Path, reference: Path | None, *, has_gpu: bool) -> None:
    """The figures: naiad's beside the reference's, with models that need no framework, in turn."""
    repository = make_repository(work / "figures", ["arrays"], ["echo", "echo", "echo"])
    with contextlib.ExitStack() as stack:
        servers: dict[str, int] = {}

        def start(name: str, command: Sequence[str], environ: Mapping[str, str], *options: str) -> str:
            context = running(command, repository, work, table, *options, **environ)
            servers[name] = stack.enter_context(context)
            return "ready"

        table.try_out(
            "figures", "start of naiad", lambda: start("naiad", naiad_command(), _checkout(), "--allow-client-shm=true")
        )
        if reference is None:
            table.note("figures", "the reference", "no Triton is installed here (NAIAD_BENCH_REFERENCE)")
        elif has_gpu:
            program = str(reference / "bin" / "tritonserver")
            table.try_out("figures", "start of the reference", lambda: start("reference", [program], {}))
        clients = {name: stack.enter_context(Connection(port, _REQUEST_SECONDS)) for name, port in servers.items()}
        calls: dict[str, dict[str, Any]] = {
            f"call with a tensor on the GPU, {name}": {"size": size, "where": "gpu", "start": "gpu"}
            for name, size in SIZES.items()
        }
        calls["call with a tensor on the GPU, 64 KiB"] = {"size": 1 << 16, "where": "gpu", "start": "gpu"}
        largest = next(reversed(SIZES))
        calls[f"call with a tensor on the CPU, {largest}"] = {"size": SIZES[largest], "where": "", "start": "cpu"}
        for name, arguments in calls.items():
            count = 40 if arguments["size"] < 1 << 26 else 12
            table.try_out(
                "figures",
                name,
                lambda a=arguments, n=count: _in_turn(
                    clients,
                    lambda client: client.probe("probe_arrays", "call", model="echo", framework="arrays", count=n, **a),
                ),
            )  # type: ignore[misc]
        table.try_out(
            "figures",
            "output on the GPU to HTTP",
            lambda: _in_turn(clients, lambda client: _outputs(client, "doubles_arrays", "object")),
        )
        _try_regions(table, servers, largest)


def _try_regions(table: Table, servers: Mapping[str, int], largest: str) -> None:
    """Requests whose input and output are a client's GPU memory: to single models, and to steps of an ensemble."""
    rows = [("echo", "http", "64 KiB", 1 << 16), ("echo", "http", "1 MiB", 1 << 20)]
    rows += [(model, "http", largest, SIZES[largest]) for model in ("echo", "echo_cpu", "chain")]
    rows += [("echo", "grpc", "64 KiB", 1 << 16), ("echo", "grpc", largest, SIZES[largest])]
    for model, protocol, name, size in rows:
        _try_region(table, servers, f"client's CUDA region, {model}, {protocol}, {name}", size, model, protocol)


def _try_region(table: Table, servers: Mapping[str, int], name: str, size: int, model: str, protocol: str) -> None:
    if protocol == "grpc" and importlib.util.find_spec("tritonclient") is None:
        table.note("figures", name, "tritonclient is not installed here")
        return
    ports = {each: GRPC_PORTS[port] if protocol == "grpc" else port for each, port in servers.items()}

    def ask(port: int) -> Any:
        return _region(port, size, 20, model, protocol, table)

    table.try_out("figures", name, lambda: _best_of_each(ports, ask, rounds=1))


def _in_turn(clients: Mapping[str, Connection], work: Callable[[Connection], Any]) -> dict[str, Any]:
    return _best_of_each(clients, work)


def _best_of_each(targets: Mapping[str, Any], work: Callable[[Any], Any], rounds: int = 2) -> dict[str, Any]:
    """The best result of each target, which are tried in turn, and their ratio."""
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for name, target in targets.items():
            result = work(target)
            best = found.get(name)
            if best is None or result.get("p50_us", 0) < best.get("p50_us", 0):
                found[name] = {**result, "first_us": (best or result).get("first_us")}
    if {"naiad", "reference"} <= set(found) and "p50_us" in found["naiad"]:
        found["ratio"] = round(found["naiad"]["p50_us"] / found["reference"]["p50_us"], 3)
    return found


def _region(port: int, size: int, count: int, model: str, protocol: str, table: Table) -> Any:
    command = [sys.executable, "-m", "bench.gpu.region", str(port), str(size), str(count), model, protocol]
    return _json_of(command, table)[0]


def _json_of(command: Sequence[str], table: Table) -> list[Any]:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=max(1, min(60, table.remaining)), cwd=ROOT
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{Path(command[1]).name} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return [json.loads(line) for line in lines]


def try_machine(table: Table, work: Path, prefix: str | None, versions: Mapping[str, str]) -> None:
    """Rows about the machine and its limits."""
    if table.remaining < _LEAST_SECONDS:
        table.note("machine", "all rows", "no time is left")
        return
    repository = make_repository(work / "machine", ["arrays"])
    several = machine_rows.device_count() > 1
    if several:
        machine_rows.write_several(repository, MODELS)
    environ = _checkout()
    table.try_out("machine", "naiad doctor", lambda: machine_rows.doctor(table, work, environ))
    with (
        running(naiad_command(), repository, work, table, **environ) as port,
        Connection(port, _REQUEST_SECONDS) as client,
    ):
        table.try_out(
            "machine", "memory registered for copies", lambda: machine_rows.registered(client, "doubles_arrays")
        )
        table.try_out("machine", "memory counted", lambda: machine_rows.counted(table, client, "probe_arrays", environ))
        arguments = {"framework": "arrays", "size": LARGE_CALL, "count": 5, "where": ""}
        for model in ("on_0", "on_1", "sees_1") if several else ():
            table.try_out(
                "several",
                f"a tensor of GPU 0 to {model}",
                lambda m=model: client.probe("probe_arrays", "call", model=m, **arguments),
            )  # type: ignore[misc]
    if not several:
        table.note("several", "all rows", "there is one GPU")
    if table.remaining > _LEAST_SECONDS:
        _try_users(table)
    missing = [name for name in FRAMEWORKS if versions.get(name, "none").startswith("none")]
    if missing:
        table.note("example", "examples/gpu", f"the interpreter has no {', '.join(missing)}")
        return
    if table.remaining < _LEAST_SECONDS:
        table.note("example", "examples/gpu", "no time is left")
        return
    chain = machine_rows.write_example(work / "example")
    options = [f"--backend-config=python,default-python={prefix}"] if prefix else []
    with running(naiad_command(), chain, work, table, *options, **environ) as port, Connection(port, 60) as client:
        table.try_out("example", "examples/gpu", lambda: machine_rows.example(client))


def _try_users(table: Table) -> None:
    """Whether guests of different users can pass tensors on: it depends on the driver, so either answer is right."""
    name = "a tensor between guests of different users"
    if os.geteuid():
        table.note("users", name, "needs root's rights (--guest-user=auto)")
        return
    place = Path(tempfile.mkdtemp(prefix="naiad-gpu-users-", dir="/tmp"))
    place.chmod(0o755)  # the guests' users have to enter it
    try:
        repository = make_repository(place / "models", ["arrays"])
        options = ("--guest-user=auto", f"--env-store={place / 'store'}")
        with (
            running(naiad_command(), repository, place, table, *options, **_checkout()) as port,
            Connection(port, _REQUEST_SECONDS) as client,
        ):
            call = {"model": "echo", "framework": "arrays", "size": LARGE_CALL, "count": 5, "where": "gpu"}
            table.try_out("users", name, lambda: client.probe("probe_arrays", "call", **call))
    except RuntimeError as error:  # the users may not read this checkout, or the interpreter
        lines = str(error).splitlines()
        table.note("users", name, f"not tried: {next((line for line in lines if 'cannot' in line), lines[-1])[:400]}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def try_driver(table: Table, interpreter: str, versions: Mapping[str, str]) -> None:
    """What the driver's calls cost and allow."""
    script = str(Path(__file__).with_name("driver_facts.py"))
    for name in ("costs", "importing", *FRAMEWORKS):
        if name in FRAMEWORKS and versions.get(name, "none").startswith("none"):
            continue
        table.try_out("driver", name, lambda name=name: _json_of([interpreter, script, name], table)[0][name])  # type: ignore[misc]


# -- the whole --------------------------------------------------------------------------------------------------------


def stand_in(folder: Path) -> None:
    """Let this process and its children find the stand-in instead of NVIDIA's driver."""
    folder.mkdir()
    for name, source in {"libcuda.so.1": STAND_IN, "libnvidia-ml.so.1": STAND_IN.with_name("nvml.c")}.items():
        flags = ["-shared", "-fPIC", "-O2", "-pthread", f"-Wl,-soname,{name}"]
        subprocess.run(["cc", *flags, "-o", str(folder / name), str(source), "-ldl"], check=True)
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")


def has_driver() -> bool:
    """Whether NVIDIA's driver finds a device here."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def _versions(interpreter: str, table: Table) -> dict[str, Any]:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import probes; "
        "print(json.dumps({**probes.versions(), 'prefix': sys.prefix, 'python': sys.version.split()[0]}))"
    )
    found: dict[str, Any] = _json_of([interpreter, "-c", code, str(MODELS)], table)[0]
    return found


def main() -> int:
    """Print the table; return 1 if a row failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description="Try tensors in GPU memory on this machine."
    )
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument(
        "--python", default=shutil.which("python3") or sys.executable, help="an interpreter with PyTorch and JAX"
    )
    parser.add_argument("--seconds", type=float, default=220, help="after which no further row is tried")
    options = parser.parse_args()
    table = Table(options.seconds)
    given = Path(os.environ.get("NAIAD_BENCH_REFERENCE", "/opt/naiad-bundle/peer"))
    reference = given if (given / "bin" / "tritonserver").exists() else None
    with tempfile.TemporaryDirectory(prefix="naiad-gpu-") as folder:
        work = Path(folder)
        work.chmod(0o711)  # guests of other users load the stand-in from it
        has_gpu = has_driver()
        if not has_gpu:
            print("no NVIDIA driver with a device here: these rows were tried against the stand-in of the tests")
            stand_in(work / "cuda")
            SIZES["4 MiB"] = SIZES.pop("64 MiB") >> 4  # the stand-in copies through files
        before = used_memory()
        table.try_out("machine", "GPU", _device)
        table.try_out("machine", "processors", lambda: f"{os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
        versions = (
            table.try_out("machine", "interpreter of the frameworks", lambda: _versions(options.python, table)) or {}
        )
        try_driver(table, options.python if versions else sys.executable, versions)
        _guarded(table, "figures", lambda: try_figures(table, work, reference, has_gpu=has_gpu))
        _guarded(table, "frameworks", lambda: try_frameworks(table, work, versions.get("prefix"), versions))
        _guarded(table, "files", lambda: try_files(table, work, options.python, versions))
        _guarded(table, "machine", lambda: try_machine(table, work, versions.get("prefix"), versions))
        table.try_out(
            "end", "device memory in use, MiB: before, after", lambda: _leftovers(before, work, has_gpu=has_gpu)
        )
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in table.rows], indent=1))
    failed = [row for row in table.rows if row.outcome not in ("ok", "none")]
    print(
        f"{len(table.rows)} rows, {len(failed)} of them not ok"
        + "".join(f"\n  {row.section}: {row.name}: {row.outcome}" for row in failed)
    )
    return 1 if failed else 0


def _device() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi here"
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _guarded(table: Table, section: str, work: Callable[[], None]) -> None:
    """Run several rows; what fails between them, such as the start of a server, is a row itself."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - see above
        text = f"{type(error).__name__}: {error}"
        table.rows.append(Row(section, "the rows that follow", "FAILED", text, 0.0))
        print(f"{section:10} {'the rows that follow':44} FAILED           {text}", flush=True)


def _leftovers(before: int | None, work: Path, *, has_gpu: bool) -> Any:
    if not has_gpu:
        marks = [
            path.name for path in (work / "cuda").iterdir() if path.name.startswith(("memory-", "opened-", "pinned-"))
        ]
        alive = [name for name in marks if Path(f"/proc/{name.split('-')[1]}").exists()]
        return {"left": alive, "nothing is left": not alive}
    after = used_memory()
    for _ in range(40):  # the driver frees the memory of processes a little after their end
        if before is None or after is None or after <= before + 16:
            break
        time.sleep(0.25)
        after = used_memory()
    return {
        "before": before,
        "after": after,
        "nothing is left": before is None or after is None or after <= before + 16,
    }


if __name__ == "__main__":
    sys.exit(main())
