"""Manifests of registries are refused in one sentence, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from naiad.core.errors import RegistryError
from naiad.models.artifacts.manifest import ARTIFACT_TYPE, parse_artifact
from naiad.sources.registry.references import parse_reference

DIGEST = "sha256:" + "0" * 64


def manifest(*others: dict[str, str], **annotations: Any) -> bytes:
    known = {"naiad.kind": "model", "naiad.name": "m", "naiad.uses": "[]", **annotations}
    layers = [{"annotations": each, "digest": DIGEST, "size": 1, "mediaType": "x"} for each in (known, *others)]
    return json.dumps({"artifactType": ARTIFACT_TYPE, "layers": layers}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 3_000_000,
        b"7",
        b"1" * 5000,
        manifest(**{"naiad.uses": "[" * 100_000}),
        manifest(**{"naiad.name": "a\0b"}),
        manifest(**{"naiad.name": "\ud800"}),
        manifest(**{"naiad.name": ""}),
        manifest(**{"naiad.name": 7}),
    ],
)
def test_a_malformed_manifest_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(RegistryError) as raised:
        parse_artifact(parse_reference("oci://localhost:5000/models:1"), DIGEST, data)

    assert raised.value.message.startswith("cannot read the manifest of ")
    assert raised.value.message.endswith("; push it again")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (manifest({"naiad.kind": "model", "naiad.name": "m"}), "it has model 'm' twice; push it again"),
        (
            manifest(*[{"naiad.kind": "model", "naiad.name": "m", "naiad.file": "1/a"}] * 2),
            "it has model 'm' (1/a) twice; push it again",
        ),
        (
            manifest(**{"naiad.uses": '["environment/e.tar.gz"]'}),
            "model 'm' uses environment/e.tar.gz, which it does not have; push it again",
        ),
    ],
)
def test_a_manifest_whose_layers_do_not_fit_together_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RegistryError) as raised:
        parse_artifact(parse_reference("oci://localhost:5000/models:1"), DIGEST, data).layers_of("m")

    assert raised.value.message == (f"cannot use oci://localhost:5000/models:1@{DIGEST} as a model repository: {why}")


def test_layers_of_one_model_with_other_files_and_of_what_it_uses_are_read() -> None:
    others = [
        {"naiad.kind": "model", "naiad.name": "m", "naiad.file": "1/weights"},
        {"naiad.kind": "environment", "naiad.name": "e.tar.gz"},
    ]
    data = manifest(*others, **{"naiad.uses": '["environment/e.tar.gz"]'})

    artifact = parse_artifact(parse_reference("oci://localhost:5000/models:1"), DIGEST, data)

    assert [str(layer) for layer in artifact.layers_of("m")] == [
        "model 'm'",
        "model 'm' (1/weights)",
        "environment 'e.tar.gz'",
    ]
