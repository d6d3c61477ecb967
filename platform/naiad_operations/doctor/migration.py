"""What each kind of model needs that the reference has served: a checklist, from the examination of the models.

The kinds are those by which a person plans a migration. Whether a single model works is said by the findings, which the
checklist counts: an item with a finding is never ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from naiad.config.model.autofill import PYTHON_BACKEND
from naiad.models.resolution.artifacts import is_compiled
from naiad.models.resolution.backend import NATIVE_BACKENDS
from naiad.models.resolution.decision import STUB_FILENAME
from naiad.models.resolution.environment import ENVIRONMENT_PARAMETER
from naiad.models.resolution.files import Files
from naiad_operations.doctor.findings import MigrationItem, MigrationState, Severity
from naiad_operations.doctor.model import ExaminedModel

_LANGUAGE_MODELS = frozenset({"vllm", "vllm_like"})


# What naiad does with the models of each kind, what to do, and the best state that they can reach.
_KINDS = (
    MigrationItem("plain", "models with their own model.py", "served as they are, under the server's Python"),
    MigrationItem("ensemble", "ensembles", "served as they are"),
    MigrationItem(
        "environment",
        "models with a custom environment",
        "EXECUTION_ENV_PATH is used; an archive is unpacked once into a store that all models and servers share",
        "unpack before the first start with `naiad env prefetch --model-repository=...`, and keep the store "
        "(--env-store) between starts",
    ),
    MigrationItem(
        "compiled-stub",
        "models with a compiled stub",
        "triton_python_backend_stub is ignored; its Python version is used if that is installed with numpy",
        "remove the stub, and require the version in config.pbtxt with the parameter PYTHON_VERSION if it matters",
    ),
    MigrationItem(
        "shared-backend",
        "models of a backend written in Python",
        "served as they are; the backend's folder is found by --backend-directory",
    ),
    MigrationItem(
        "saved-model",
        "models in files of a framework that naiad has a backend for",
        "the framework's Python package runs them, in a process for each instance and an environment of the backend's",
        "build the environment before the first start with `naiad env prefetch --model-repository=...`; the page "
        "docs/how-to/serve-a-saved-model.md says what differs from Triton's backends",
    ),
    MigrationItem(
        "native",
        "models of a backend written in C or C++",
        "the library runs in a process of its own for each instance, so a crash ends that instance alone",
        "send it the load that it has today: a library that computes for microseconds is slower than in Triton",
    ),
    MigrationItem(
        "vllm",
        "language models of the vLLM backend",
        "served by the backend vllm_like with the same tensors and the same model.json",
        "give the model an environment with vllm (a requirements.txt that EXECUTION_ENV_PATH names will do), keep one "
        "instance, and try the sampling parameters of its clients: unknown ones are rejected by name",
    ),
    MigrationItem(
        "batching-library",
        "models with a batching library of their own",
        "TRITON_BATCH_STRATEGY_PATH and batchstrategy.so are ignored: batches are formed by dynamic_batching alone",
        "express the strategy by preferred_batch_size and max_queue_delay_microseconds",
        MigrationState.ACTION,
    ),
    MigrationItem(
        "framework",
        "models of a backend that naiad lacks",
        "naiad has no backend for TensorRT, TensorFlow, OpenVINO or DALI files",
        "load the file in a model.py with the framework's Python package, or leave the model on Triton and call it by "
        "the backend `remote`",
        MigrationState.UNSUPPORTED,
    ),
    MigrationItem(
        "repository-agents",
        "models with repository agents",
        "agents are native libraries, which naiad does not load: such a model fails to load",
        "remove model_repository_agents; check files with signatures instead (--env-trust, --require-signature)",
        MigrationState.UNSUPPORTED,
    ),
    MigrationItem(
        "unknown-backend",
        "models of a backend that was not found",
        "no backend directory has it",
        "name its directory with --backend-directory",
        MigrationState.ACTION,
    ),
    MigrationItem(
        "unreadable",
        "models that cannot be examined",
        "their configuration or their versions cannot be read",
        "correct what the findings below name",
        MigrationState.ACTION,
    ),
)


def migration_items(models: Mapping[str, ExaminedModel]) -> tuple[MigrationItem, ...]:
    """The checklist for examined models: an item for each kind that there is."""
    kinds = {key: _kind(model) for key, model in models.items()}
    items = []
    for item in _KINDS:
        names = tuple(key for key, kind in kinds.items() if kind == item.kind)
        has_findings = any(finding.severity is not Severity.NOTE for name in names for finding in models[name].findings)
        state = MigrationState.ACTION if has_findings and item.state is MigrationState.READY else item.state
        items.append(replace(item, state=state, models=names))
    return tuple(item for item in items if item.models)


def _kind(model: ExaminedModel) -> str:
    if any("repository agent" in finding.message for finding in model.findings):
        return "repository-agents"
    if model.message is None or not model.versions:
        return "unreadable"
    if model.message.HasField("ensemble_scheduling"):
        return "ensemble"
    if model.message.backend in _LANGUAGE_MODELS:
        return "vllm"
    resolution = model.resolution
    if resolution is None:
        if model.message.backend in NATIVE_BACKENDS:
            return "framework"
        if model.message.backend != PYTHON_BACKEND:
            return "unknown-backend"
        return "environment" if ENVIRONMENT_PARAMETER in model.message.parameters else "plain"
    if resolution.library is not None:
        return "native"
    if any("batching strategy" in notice for notice in resolution.notices):
        return "batching-library"
    if is_compiled(model.files.directory / STUB_FILENAME, Files()):
        return "compiled-stub"
    if resolution.is_shared and model.message.backend in NATIVE_BACKENDS:
        return "saved-model"
    if resolution.environment is not None:
        return "environment"
    return "shared-backend" if resolution.is_shared else "plain"
