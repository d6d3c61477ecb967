"""The form of a case: an HTTP request as data, wrong lengths and broken bodies included.

`http_cases` and `http_errors` contain the cases, `expected.json` the responses of Triton 2.51 (see `record.py`), and
`departures` the cases whose expected response is another one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

AUTO = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One request.

    Attributes:
        name: What is wrong (or right) with it.
        headers: Besides Host and Content-Length.
        content_length: AUTO for the actual length, None for no header, else the header's text.
        cut_off: The client ends its side after the last byte.
        only_prefix: Compare an error's text up to here: the rest is the JSON parser's own.
        unordered: Names of which the reference mentions any, by the order of a hash table.
        volatile: Keys of the response whose values differ between runs.
    """

    name: str
    method: str = "POST"
    path: str = "/v2/models/add_sub/infer"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    content_length: str | None = AUTO
    cut_off: bool = False
    only_prefix: str = ""
    unordered: Sequence[str] = ()
    volatile: Sequence[str] = ()

    def wire(self, port: int) -> bytes:
        """The bytes to send."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        if self.content_length is AUTO and (self.body or self.method == "POST"):
            lines.append(f"Content-Length: {len(self.body)}")
        elif self.content_length is not None and self.content_length is not AUTO:
            lines.append(f"Content-Length: {self.content_length}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


def tensor(
    name: str, data: Any, *, datatype: str = "FP32", shape: Sequence[Any] = (4,), **other: Any
) -> dict[str, Any]:
    """An input of a request with its data in JSON."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data, **other}


def binary(name: str, size: Any, *, datatype: str = "FP32", shape: Sequence[Any] = (4,)) -> dict[str, Any]:
    """An input of a request whose data follows the JSON."""
    parameters = {"binary_data_size": size}
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": parameters}


def infer(name: str, content: Any, model: str = "add_sub", *, tail: bytes | None = None, **other: Any) -> Case:
    """An inference request. With `tail`, a header states the length of the JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = dict(other.pop("headers", {}))
    if tail is not None:
        headers.setdefault("Inference-Header-Content-Length", str(len(body)))
        body += tail
    return Case(name=name, path=other.pop("path", f"/v2/models/{model}/infer"), headers=headers, body=body, **other)


def without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The mapping without some keys."""
    return {key: value for key, value in mapping.items() if key not in keys}
