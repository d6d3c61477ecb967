"""What resolution decides, with every step on the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.backend_settings import BackendConfigs

__all__ = [
    "MODEL_FILENAME",
    "STUB_FILENAME",
    "UTILS_FILENAME",
    "GuestLayout",
    "Look",
    "Resolution",
    "ResolutionSettings",
    "Step",
    "describe",
]

MODEL_FILENAME = "model.py"
STUB_FILENAME = "triton_python_backend_stub"
UTILS_FILENAME = "triton_python_backend_utils.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLayout:
    """Where the default guest was laid out, apart from everything of the host.

    Attributes:
        artifacts_dir: Folder of the default stub and utils.
        library_dir: Folder that holds `naiad_stub` and nothing else.
        requires_python: Interpreters the default stub runs under.
    """

    artifacts_dir: Path
    library_dir: Path
    requires_python: SpecifierSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionSettings:
    """What resolution takes from the server.

    Attributes:
        backend_directories: Where backends are looked for, in order.
        guest: The default guest.
        backend_configs: Settings of backends as given on the command line.
        auto_complete: Models may complete their configuration.
        environment_directories: Where environments are looked for by name, in order.
    """

    backend_directories: tuple[Path, ...]
    guest: GuestLayout
    backend_configs: BackendConfigs = field(default_factory=lambda: MappingProxyType({}))
    auto_complete: bool = True
    environment_directories: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One place that was looked at."""

    path: Path
    found: bool

    def __str__(self) -> str:
        return f"{self.path} ({'found' if self.found else 'not found'})"


@dataclass(frozen=True, slots=True)
class Step:
    """One decision.

    Attributes:
        subject: What was decided: "backend", "stub", ...
        taken: What was taken.
        why: The rule behind it.
        looked: Where it was looked for, in order.
    """

    subject: str
    taken: str
    why: str
    looked: tuple[Look, ...] = ()

    def __str__(self) -> str:
        looked = f"; {describe(self.looked)}" if self.looked else ""
        return f"{self.subject}: {self.taken} ({self.why}{looked})"


def describe(looks: tuple[Look, ...]) -> str:
    """Places in a row, for the end of an error's text."""
    return "looked at: " + ", ".join(map(str, looks)) if looks else "there was no place to look at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What runs one version of a model.

    Attributes:
        model: The model.
        version: The version.
        model_dir: The model's directory; its version directory is below.
        backend: Name of the backend.
        backend_dir: Directory of a shared backend; None where the model brings its own code.
        runtime: `runtime` of the effective configuration: `model.py` for a shared backend.
        model_file: The code.
        stub: The guest program.
        utils_dir: Folder of `triton_python_backend_utils.py`.
        guest: The default guest, whose library every stub uses.
        stub_requires: Interpreters the stub runs under.
        environment: Directory or archive of the execution environment, or where else it comes from; None for the
            host's interpreter or one found on the machine.
        environment_origin: Who named it.
        python: The version that model or backend require; None if they take any.
        python_origin: Who requires it.
        backend_config: What the backend finds as `cmdline` in its configuration.
        steps: All decisions in order.
        notices: Sentences worth a line of the log, such as about a file that was found and not used.
    """

    model: str
    version: int
    model_dir: Path
    backend: str
    backend_dir: Path | None
    runtime: str
    model_file: Path
    stub: Path
    utils_dir: Path
    guest: GuestLayout
    stub_requires: SpecifierSet
    environment: Path | EnvironmentSource | None
    environment_origin: str
    python: SpecifierSet | None
    python_origin: str
    backend_config: Mapping[str, str]
    steps: tuple[Step, ...] = field(repr=False)
    notices: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether the code is a backend's, shared by many models."""
        return self.backend_dir is not None

    @property
    def library_dir(self) -> Path:
        """Folder of `naiad_stub`, the guest's own library."""
        return self.guest.library_dir

    @property
    def version_dir(self) -> Path:
        """The directory of the version."""
        return self.model_dir / str(self.version)
