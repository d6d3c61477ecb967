"""The bill of materials of a repository: its models, environments and their packages, as CycloneDX JSON.

Format: https://cyclonedx.org/docs/1.6/json/. It has no time and a serial number made of its content, so that equal
repositories have equal documents.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from naiad import __version__
from naiad.environments.archives.manifest import Package

_PURL_TYPES = {"python": "pypi", "conda": "conda"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """What the document says of an environment; texts are empty if unknown."""

    digest: str
    python: str
    platform: str
    glibc: str
    packages: tuple[Package, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EnvironmentFacts:
        return cls(**{**value, "packages": tuple(Package(**each) for each in value["packages"])})


def bill_of_materials(
    models: Mapping[str, Sequence[int]], environments: Mapping[str, EnvironmentFacts], uses: Mapping[str, Iterable[str]]
) -> bytes:
    """The document."""
    components = [_model(name, versions) for name, versions in sorted(models.items())]
    components += [_environment(name, found) for name, found in sorted(environments.items())]
    dependencies = [
        {"ref": _model_ref(name), "dependsOn": [_environment_ref(each) for each in sorted(set(uses.get(name, ())))]}
        for name in sorted(models)
    ]
    content = json.dumps([components, dependencies], sort_keys=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {"tools": {"components": [{"type": "application", "name": "naiad", "version": __version__}]}},
        "components": components,
        "dependencies": dependencies,
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _model(name: str, versions: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": _model_ref(name),
        "name": name,
        "version": ",".join(map(str, versions)),
    }


def _environment(name: str, found: EnvironmentFacts) -> dict[str, Any]:
    facts = {"python": found.python, "platform": found.platform, "glibc": found.glibc}
    return {
        "type": "platform",
        "bom-ref": _environment_ref(name),
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": found.digest}],
        "properties": [{"name": f"naiad:{key}", "value": value} for key, value in facts.items() if value],
        "components": [_package(name, package) for package in found.packages],
    }


def _package(environment: str, package: Package) -> dict[str, Any]:
    kind = _PURL_TYPES.get(package.source, "generic")
    purl = f"pkg:{kind}/{quote(package.name, safe='')}@{quote(package.version, safe='')}"
    component: dict[str, Any] = {
        "type": "library",
        # A package may be in several environments, and a reference must be unique in the document.
        "bom-ref": f"{environment}/{purl}",
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.digest and package.source == "conda":
        component["hashes"] = [{"alg": "SHA-256", "content": package.digest}]
    elif package.digest:
        # Of the list of installed files: the wheel itself is not known any more.
        component["properties"] = [{"name": "naiad:record-sha256", "value": package.digest}]
    return component


def _model_ref(name: str) -> str:
    return f"model/{name}"


def _environment_ref(name: str) -> str:
    return f"environment/{name}"
