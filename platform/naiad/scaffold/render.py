"""Configuration, client and test of a model, as text."""

from __future__ import annotations

from collections.abc import Iterable

from naiad.protocol.datatypes import Datatype
from naiad.scaffold.hints import Tensor
from naiad.scaffold.signature import Parameter, Result, Signature

__all__ = ["client", "config", "file_of_tests"]

_ANY_SIZE = 3
"""How many examples an axis of any size gets."""

_CLIENT = '''"""Ask {name} once, and print what it answers."""

import argparse

import numpy as np
import tritonclient.http as httpclient

INPUTS = {{
{examples}
}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    inputs = [
        httpclient.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)
        for name, (datatype, array) in INPUTS.items()
    ]
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("{name}", inputs)
    for output in result.get_response()["outputs"]:
        print(output["name"], result.as_numpy(output["name"]).tolist())


if __name__ == "__main__":
    main()
'''

_TEST = '''"""Run {name} without a server: `python -m pytest {path}`."""

from pathlib import Path

import numpy as np
from naiad.testing import load

PROJECT = Path(__file__).resolve().parents[1]
INPUTS = {{
{examples}
}}


def test_{identifier}_answers():
    with load(PROJECT / "{repository}" / "{name}"{more}) as model:
        response = model.infer(INPUTS)

    assert sorted(response) == {names}
'''


def config(name: str, signature: Signature, max_batch_size: int, backend: str = "python") -> str:
    """The configuration of a model with these inputs and outputs."""
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {max_batch_size}"]
    for one in signature.parameters:
        more = " optional: true" if one.optional else ""
        lines.append(f"input {{ {_entry(one)}{more} }}")
    lines += [f"output {{ {_entry(one)} }}" for one in signature.results]
    if max_batch_size:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def client(name: str, signature: Signature, *, is_batched: bool) -> str:
    """A program that asks a model once, with examples of its inputs."""
    return _CLIENT.format(
        name=name,
        examples="\n".join(
            f'    "{one.name}": ("{one.tensor.datatype.name}", {_example(one.tensor, is_batched)}),'
            for one in _required(signature)
        ),
    )


def file_of_tests(
    name: str, repository: str, signature: Signature, *, is_batched: bool, backends: str = "", identifier: str = ""
) -> str:
    """A test of a model with the same examples."""
    names = ", ".join(f'"{name}"' for name in sorted(one.name for one in signature.results))
    return _TEST.format(
        name=name,
        identifier=identifier,
        path=f"tests/test_{identifier}.py",
        repository=repository,
        more=f', backend_directories=[PROJECT / "{backends}"]' if backends else "",
        examples="\n".join(f'    "{one.name}": {_example(one.tensor, is_batched)},' for one in _required(signature)),
        names=f"[{names}]",
    )


def _required(signature: Signature) -> Iterable[Parameter]:
    """What a request cannot do without; one input at least."""
    return [one for one in signature.parameters if not one.optional] or signature.parameters[:1]


def _entry(tensor: Parameter | Result) -> str:
    dims = ", ".join(map(str, tensor.tensor.dims))
    return f'name: "{tensor.name}" data_type: {tensor.tensor.datatype.config_name} dims: [ {dims} ]'


def _example(tensor: Tensor, is_batched: bool) -> str:  # noqa: FBT001
    sizes = [1] * is_batched + [_ANY_SIZE if size < 0 else size for size in tensor.dims]
    if tensor.datatype is Datatype.BYTES:
        return f'np.full({_shape(sizes)}, "text", dtype=object)'
    kind = "bool_" if tensor.datatype is Datatype.BOOL else tensor.datatype.numpy
    return f"np.full({_shape(sizes)}, 1, dtype=np.{kind})"


def _shape(sizes: list[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
