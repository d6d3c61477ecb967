"""A model `m` of version 1 in /repo, two backend directories, and the default guest: what most tests start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.resolution.fake_files import FakeFiles
from packaging.specifiers import SpecifierSet

from naiad.config.model.model_config import ModelConfig
from naiad.models.resolution.decision import GuestLayout, Resolution
from naiad.models.resolution.resolve import ResolutionSettings, resolve

STUB = "triton_python_backend_stub"
UTILS = "triton_python_backend_utils.py"
GUEST = GuestLayout(
    artifacts_dir=Path("/guest/artifacts"), library_dir=Path("/guest/lib"), requires_python=SpecifierSet(">=3.8,<3.15")
)
GUEST_FILES = {f"/guest/artifacts/{STUB}": "#!python", f"/guest/artifacts/{UTILS}": ""}


def resolve_m(
    files: dict[str, bytes | str] | set[str],
    *,
    backend: str = "python",
    runtime: str = "",
    filename: str = "",
    platform: str = "",
    parameters: dict[str, str] | None = None,
    model_uri: str = "",
    **settings: Any,
) -> Resolution:
    """Resolve model `m` among these files; the guest's are always there."""
    contents = dict(files) if isinstance(files, dict) else dict.fromkeys(files, b"")
    config = ModelConfig(
        name="m",
        backend=backend,
        platform=platform,
        runtime=runtime,
        default_model_filename=filename,
        parameters=parameters or {},
    )
    return resolve(
        config,
        model_dir=Path("/repo/m"),
        version=1,
        settings=ResolutionSettings(
            **{"backend_directories": (Path("/b1"), Path("/b2")), "guest": GUEST, "auto_complete": True, **settings}
        ),
        files=FakeFiles({**GUEST_FILES, **contents}),
        model_uri=model_uri,
    )
