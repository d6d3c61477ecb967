"""What resolution decides for one version of a model, with every decision and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.models.resolution.native_library import NativeLibrary

MODEL_FILENAME = "model.py"
STUB_FILENAME = "triton_python_backend_stub"
UTILS_FILENAME = "triton_python_backend_utils.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLayout:
    """Where the default guest is installed, separate from the host's packages."""

    artifacts_dir: Path  # directory of the default stub and utils
    library_dir: Path  # directory that contains only the package `naiad_stub`
    requires_python: SpecifierSet


@dataclass(frozen=True, slots=True)
class SearchedPath:
    """A path that was searched, and whether it exists."""

    path: Path
    found: bool

    def __str__(self) -> str:
        return f"{self.path} ({'found' if self.found else 'not found'})"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision."""

    subject: str
    choice: str
    reason: str
    searched: tuple[SearchedPath, ...] = ()

    def __str__(self) -> str:
        searched = f"; {describe_searched(self.searched)}" if self.searched else ""
        return f"{self.subject}: {self.choice} ({self.reason}{searched})"


def describe_searched(searched: tuple[SearchedPath, ...]) -> str:
    """Searched paths as text, for the end of an error message."""
    return "looked at: " + ", ".join(map(str, searched)) if searched else "no place was searched"


@dataclass(frozen=True, slots=True)
class LinkedStub:
    """A compiled stub of the reference, and the Python version that it is linked to, such as `3.10`."""

    path: Path
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What runs one version of a model."""

    model: str
    version: int
    model_dir: Path
    backend: str
    backend_dir: Path | None
    runtime: str  # `runtime` of the effective configuration: `model.py` for a shared backend
    model_file: Path
    stub: Path
    utils_dir: Path
    guest: GuestLayout
    stub_requires: SpecifierSet
    # Directory, archive or interpreter of the execution environment, or its remote source; None for the host's
    # interpreter or one found by its version.
    environment: Path | EnvironmentSource | None
    environment_origin: str
    python: SpecifierSet | None
    python_origin: str
    backend_config: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Decision, ...] = field(repr=False)
    notices: tuple[str, ...] = ()
    has_default_environment: bool = False  # whether that is what the operator has set for all models that name none
    skipped_environment: str = ""  # a sentence about the default environment if the model does not use it; else empty
    library: NativeLibrary | None = None

    @property
    def outside_dir(self) -> Path | None:
        if self.library is None:
            return self.backend_dir
        directory = self.library.path.parent
        return None if directory.is_relative_to(self.model_dir) else directory

    @property
    def is_shared(self) -> bool:
        return self.backend_dir is not None

    @property
    def library_dir(self) -> Path:
        return self.guest.library_dir

    @property
    def version_dir(self) -> Path:
        return self.model_dir / str(self.version)
