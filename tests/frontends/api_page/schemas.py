"""Checks values against the schemas of an OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema


def errors(document: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value; *schema* may refer to the components of the document."""
    whole = {**schema, "components": document["components"]}
    return [each.message for each in jsonschema.Draft4Validator(whole).iter_errors(value)]


def request_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    """Schema and example of the JSON that a path takes."""
    content: dict[str, Any] = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return content


def answer_of(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of the JSON that a path answers with."""
    schema: dict[str, Any] = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"][
        "schema"
    ]
    return schema
