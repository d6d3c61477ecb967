"""Installing packages into a prefix with uv, where it is there: several times faster, from the same places as pip."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ["find_uv", "uv_command", "uv_environ", "uv_resolve_command"]


def find_uv() -> Path | None:
    """The uv on PATH, or the one installed beside naiad."""
    found = shutil.which("uv")
    if found is not None:
        return Path(found)
    try:
        return Path(importlib.import_module("uv").find_uv_bin())
    except (ImportError, AttributeError, FileNotFoundError):
        return None


def uv_command(uv: Path, python: Path, settings: Mapping[str, list[str]]) -> list[str]:
    """How it installs what pip would install with these settings."""
    return [
        *(str(uv), "pip", "install", "--python", str(python), "--break-system-packages"),
        # Linked files would be written to in uv's cache when prefixes are mended.
        *("--link-mode", "copy"),
        *_as_pip(settings),
    ]


def uv_resolve_command(uv: Path, minor: str, settings: Mapping[str, list[str]]) -> list[str]:
    """How it tells what would be installed under a Python that need not be here."""
    return [
        *(str(uv), "pip", "compile", "--python-version", minor, "--only-binary", ":all:", "--quiet"),
        *("--generate-hashes", "--no-header", "--no-annotate"),
        *_as_pip(settings),
    ]


def _as_pip(settings: Mapping[str, list[str]]) -> list[str]:
    indexes = [f"--default-index={url}" for url in settings.get("index-url", ())]
    indexes += [f"--index={url}" for url in settings.get("extra-index-url", ())]
    indexes += [f"--find-links={place}" for place in settings.get("find-links", ())]
    indexes += [f"--allow-insecure-host={host}" for host in settings.get("trusted-host", ())]
    if settings.get("no-index", ["0"])[-1].lower() in {"1", "true", "yes", "on"}:
        indexes.append("--no-index")
    # pip looks into all indexes for the best version.
    quiet = ("--no-config", "--no-progress", "--color", "never", "--no-python-downloads")
    return [*quiet, "--index-strategy", "unsafe-best-match", *indexes]


def uv_environ(environ: Mapping[str, str], settings: Mapping[str, list[str]]) -> dict[str, str]:
    """Its variables, with pip's certificates."""
    certificates = settings.get("cert")
    kept = {name: value for name, value in environ.items() if name not in {"VIRTUAL_ENV", "CONDA_PREFIX"}}
    return {**kept, "SSL_CERT_FILE": certificates[-1]} if certificates else kept
