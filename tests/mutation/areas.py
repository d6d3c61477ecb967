"""The parts of the code whose unit tests are judged, with the tests that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.operators import Source

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Area:
    """A part of the code.

    Attributes:
        files: Its files, as patterns below the root of the repository.
        tests: Folders and files of tests.
        without: Names of modules that do not belong to it, whatever the patterns say.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()

    def paths(self) -> list[Path]:
        """Its files."""
        found = sorted({path for pattern in self.files for path in ROOT.glob(pattern)})
        return [path for path in found if path.stem not in self.without]

    def sources(self) -> list[Source]:
        """Its files, parsed."""
        return [Source(path, str(path.relative_to(ROOT)), path.read_text()) for path in self.paths()]


_ENGINE = "platform/naiad/engine"

AREAS = {
    "memory": Area(("platform/naiad/guests/memory/*.py",), ("tests/guests/memory",)),
    "protocol": Area(("platform/naiad/protocol/*.py",), ("tests/protocol",)),
    "guest": Area(
        ("stubs/naiad_stub/*.py",),
        ("tests/guest", "tests/wire"),
        # Tested in processes of their own, by real guests and servers, or on a GPU, where no mutant of this process is.
        without=(
            *("main", "serving", "forkserver", "forked_calls", "calls", "channel", "lifeline", "model_loading", "api"),
            *("dialect_api", "debugging", "process_group", "process_title", "stacks", "dlpack", "loader", "limits"),
            *("descriptors", "later_module"),
        ),
    ),
    "scheduling": Area((f"{_ENGINE}/scheduling/**/*.py",), ("tests/engine/scheduling",)),
    "serving": Area(
        tuple(
            f"{_ENGINE}/serving/{name}.py"
            for name in (
                "dispatch",
                "dormant",
                "handover",
                "pending",
                "rate_limiter",
                "sequence_states",
                "requests_in_flight",
                "version",
            )
        ),
        ("tests/engine/serving", "tests/engine/scheduling"),
    ),
    "request": Area(
        (
            f"{_ENGINE}/open_request.py",
            *(
                f"{_ENGINE}/serving/{name}.py"
                for name in ("admission", "dormant", "forwarding", "replicas", "requests_in_flight")
            ),
            *(f"{_ENGINE}/ensembles/{name}.py" for name in ("execution", "request")),
        ),
        (
            *("tests/engine/serving", "tests/engine/ensembles", "tests/engine/scheduling/ensembles"),
            "tests/simulation/test_processes.py",
        ),
    ),
    "ensembles": Area((f"{_ENGINE}/ensembles/*.py",), ("tests/engine/ensembles", "tests/engine/scheduling/ensembles")),
    "lifecycle": Area((f"{_ENGINE}/lifecycle/*.py",), ("tests/engine/lifecycle",)),
    "loading": Area((f"{_ENGINE}/loading/*.py",), ("tests/engine/loading",)),
    "worker": Area(
        ("platform/naiad/guests/*.py",),
        ("tests/guests", "tests/wire"),
        # They run in processes of their own.
        without=("sweeper_process",),
    ),
    "building": Area(("platform/naiad_building/*.py", "platform/naiad_building/declared/*.py"), ("tests/building",)),
    "processes": Area(
        ("platform/naiad/server/processes/*.py",),
        ("tests/server/processes", "tests/simulation/test_processes.py"),
        # What it does is a process of the system.
        without=("spawned",),
    ),
    "store": Area(("platform/naiad/environments/store/*.py",), ("tests/environments/store",)),
    "http": Area(
        tuple(f"platform/naiad/frontends/{folder}/*.py" for folder in ("http1", "http2", "kserve_http")),
        (
            *("tests/frontends/http1", "tests/frontends/http2", "tests/frontends/kserve_http"),
            *("tests/frontends/test_decompression.py", "tests/frontends/test_late_requests.py"),
            *("tests/frontends/test_open_connections.py", "tests/frontends/test_request_budget.py"),
            "tests/frontends/test_sweep_of_new_connections.py",
        ),
    ),
}


def files_as_area(files: Sequence[str]) -> list[Source]:
    """Single files, parsed, whose names are as given."""
    return [Source(Path(name).resolve(), name, Path(name).read_text()) for name in files]
