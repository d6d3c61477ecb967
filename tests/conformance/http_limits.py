"""Requests at the limits of numbers, depths and sizes, and names that are reserved or paths."""

from __future__ import annotations

import json
from typing import Any

from conformance.cases import Case, binary, infer, without
from conformance.http_cases import BOTH, LEFT, RIGHT

_DEEP = 150
_LOAD = "/v2/repository/models/{}/load"


def _classes(name: str, count: Any) -> Case:
    return infer(name, {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": {"classification": count}}]})


def _region(name: str, **parameters: Any) -> Case:
    given = {"shared_memory_region": "r", **parameters}
    return infer(name, {"inputs": [{**without(LEFT, "data"), "parameters": given}, RIGHT]})


def _output_region(name: str, **parameters: Any) -> Case:
    given = {"shared_memory_region": "r", **parameters}
    return infer(name, {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": given}]})


def _posted(name: str, path: str, content: str) -> Case:
    return Case(name=name, path=path, body=content.encode())


def _nested(depth: int, key: str = "a") -> str:
    return f'{{"{key}":' * depth + "1" + "}" * depth


def _load(name: str, model: str, parameters: Any) -> Case:
    return _posted(name, _LOAD.format(model), json.dumps({"parameters": parameters}))


CASES = [
    _classes("classes beyond 31 bits", 2**31),
    _classes("classes beyond 32 bits", 2**32 + 2),
    _classes("classes beyond 63 bits", 2**63),
    _classes("classes beyond 64 bits", 2**64),
    _classes("classes that are a fraction", 1.5),
    _classes("classes that are a truth value", True),
    infer("a binary size beyond 32 bits", {"inputs": [binary("INPUT0", 2**32 + 16), RIGHT]}),
    infer("a binary size beyond 63 bits", {"inputs": [binary("INPUT0", 2**63), RIGHT]}),
    infer("a binary size beyond 64 bits", {"inputs": [binary("INPUT0", 2**64), RIGHT]}),
    infer(
        "binary sizes that add up beyond 64 bits",
        {"inputs": [binary("INPUT0", 2**64 - 8), binary("INPUT1", 24)]},
        tail=bytes(16),
    ),
    _region("a region's size beyond 64 bits", shared_memory_byte_size=2**64),
    _region("a region's size below zero", shared_memory_byte_size=-1),
    _region("a region's offset below zero", shared_memory_byte_size=16, shared_memory_offset=-1),
    _output_region(
        "an output's region's offset beyond 64 bits", shared_memory_byte_size=16, shared_memory_offset=2**64
    ),
    _posted("an index request nested deeply", "/v2/repository/index", _nested(_DEEP)),
    _posted("an index request whose ready is deep", "/v2/repository/index", f'{{"ready":{_nested(50)}}}'),
    _posted("an index request that is a list", "/v2/repository/index", "[]"),
    infer("a deep parameter", {"inputs": BOTH, "parameters": {"a": {"b": {"c": 1}}}}),
    infer("a deep parameter of an input", {"inputs": [{**LEFT, "parameters": {"a": {"b": 1}}}, RIGHT]}),
    _load("a load of a path", "..%2f..%2fetc", {}),
    _load("a load of a dot", ".", {}),
    _load("a load of a name that begins with a dot", ".hidden", {}),
    Case(name="metadata of a dot", method="GET", path="/v2/models/."),
]
