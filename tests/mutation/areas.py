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
                "tracker",
                "version",
            )
        ),
        ("tests/engine/serving", "tests/engine/scheduling"),
    ),
    "ensembles": Area((f"{_ENGINE}/ensembles/*.py",), ("tests/engine/ensembles", "tests/engine/scheduling/ensembles")),
    "loading": Area(
        (f"{_ENGINE}/loading/load_order.py", f"{_ENGINE}/loading/demand.py", f"{_ENGINE}/lifecycle/*.py"),
        ("tests/engine/test_load_order.py", "tests/engine/test_demand_loads.py", "tests/engine/lifecycle"),
    ),
    "http": Area(
        ("platform/naiad/frontends/http1/request_reader.py", "platform/naiad/frontends/http2/flow_control.py"),
        ("tests/frontends/http1", "tests/frontends/http2"),
    ),
}


def files_as_area(files: Sequence[str]) -> list[Source]:
    """Single files, parsed, whose names are as given."""
    return [Source(Path(name).resolve(), name, Path(name).read_text()) for name in files]
