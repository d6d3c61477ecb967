"""The bill of materials: valid CycloneDX, and complete."""

from __future__ import annotations

import json

from models.artifacts.repositories import PACKAGES


def test_the_bill_of_materials_is_valid_and_names_models_environments_and_packages(registry, naiad, models, tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    naiad.push(registry.uri("shop", "1"), models)
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")

    text = (tmp_path / "out" / ".naiad" / "sbom" / "sbom.cdx.json").read_text()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    by_type = {}
    for component in document["components"]:
        by_type.setdefault(component["type"], []).append(component)
    assert [(each["name"], each["version"]) for each in by_type["machine-learning-model"]] == [
        ("packed", "1"), ("plain", "1"), ("shared", "1"),
    ]  # fmt: skip
    (environment,) = by_type["platform"]
    assert [(each["name"], each["version"]) for each in environment["components"]] == [
        (package.name, package.version) for package in PACKAGES
    ]
    assert [each["purl"] for each in environment["components"]] == [
        "pkg:pypi/numpy@2.1.0", "pkg:conda/openssl@3.4.0", "pkg:pypi/scikit-learn@1.5.2",
    ]  # fmt: skip
    depends = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    assert depends == {"model/packed": [environment["bom-ref"]], "model/plain": [], "model/shared": []}
