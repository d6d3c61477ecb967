"""Configuration, client and test of a model, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from naiad.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad.scaffold.project import Scaffold, check_name, identifier
from naiad.scaffold.signature import Form, Parameter, Result, Signature, Tensor, read_signature
from naiad.scaffold.source import Found, find_function

__all__ = ["backend", "function_model", "plain_model", "recipe"]

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


_PLAIN = '''"""Doubles numbers: the place for a model's own work."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        # Once, before any request: load weights from args["model_repository"] here.
        self._factor = 2

    def execute(self, requests):
        # Several requests may come at once; each gets one response, in their order.
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", numbers * self._factor)])
'''

_CALLING = '''"""Serves `{module}.{function}`: each request is one call of it."""

import numpy as np
import triton_python_backend_utils as pb_utils
from {module} import {function}

# From an input's array to what the function takes.
PARAMETERS = {{
{parameters}
}}


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        # An optional input that a request leaves out is left to the function's default.
        given = {{tensor.name(): PARAMETERS[tensor.name()](tensor.as_numpy()) for tensor in request.inputs()}}
        result = {function}({arguments})
        return pb_utils.InferenceResponse(
            [
{results}
            ]
        )
'''

_READ = {
    Form.SCALAR: "lambda array: array.item()",
    Form.TEXT: "lambda array: array.item().decode()",
    Form.LIST: "lambda array: array.tolist()",
    Form.TEXTS: "lambda array: [text.decode() for text in array]",
    Form.ARRAY: "lambda array: array",
}


def plain_model(name: str, repository: str) -> Scaffold:
    """A model that doubles numbers, in batches."""
    check_name(name, "model")
    numbers = Tensor(datatype=Datatype.FP32, dims=(-1,), form=Form.ARRAY)
    signature = Signature(
        parameters=(Parameter(name="INPUT", tensor=numbers),), results=(Result(name="OUTPUT", tensor=numbers),)
    )
    return _scaffold(name, repository, signature, {"1/model.py": _PLAIN}, max_batch_size=8)


def function_model(name: str, repository: str, named: str, search: Sequence[str]) -> Scaffold:
    """A model that calls `package.module:function`.

    Raises:
        ScaffoldError: If there is no such function, or it cannot be called by requests.
    """
    check_name(name, "model")
    found = find_function(named, search)
    taken = {"model.py", "triton_python_backend_utils.py"} & set(found.files)
    if taken:
        raise ScaffoldError(f"{found.path}: beside a model's code, {min(taken)} is something else; rename it")
    signature = read_signature(found)
    code = {f"1/{file}": content for file, content in found.files.items()}
    notes = [*signature.notes, _origin(found, repository, name)]
    return _scaffold(name, repository, signature, {"1/model.py": _calling(found, signature), **code}, notes=notes)


def _scaffold(
    name: str,
    repository: str,
    signature: Signature,
    code: dict[str, str | bytes],
    *,
    max_batch_size: int = 0,
    notes: Sequence[str] = (),
) -> Scaffold:
    files = {
        f"{repository}/{name}/config.pbtxt": config(name, signature, max_batch_size),
        **{f"{repository}/{name}/{file}": content for file, content in code.items()},
        f"clients/{identifier(name)}.py": client(name, signature, is_batched=max_batch_size > 0),
        f"tests/test_{identifier(name)}.py": file_of_tests(
            name, repository, signature, is_batched=max_batch_size > 0, identifier=identifier(name)
        ),
    }
    commands = (f"naiad serve --model-repository={repository}", f"python clients/{identifier(name)}.py")
    return Scaffold(files=files, commands=commands, notes=tuple(notes))


def _calling(found: Found, signature: Signature) -> str:
    positional = [one for one in signature.parameters if one.positional]
    # Taken out of `given`, as names of theirs the function does not know.
    arguments = [f'given.pop("{one.name}")' for one in positional if not one.optional]
    if any(one.optional for one in positional):
        arguments.append(
            "*[given.pop(name) for name in ("
            + " ".join(f'"{one.name}",' for one in positional if one.optional)
            + ") if name in given]"
        )
    return _CALLING.format(
        module=found.module,
        function=found.function.name,
        parameters="\n".join(f'    "{one.name}": {_READ[one.tensor.form]},' for one in signature.parameters),
        arguments=", ".join([*arguments, "**given"]),
        results="\n".join(f"                {_written(one)}," for one in signature.results),
    )


def _written(result: Result) -> str:
    value, tensor = f"result{result.part}", result.tensor
    if tensor.form in {Form.SCALAR, Form.TEXT}:
        value = f"[{value}]"
    dtype = "object" if tensor.datatype is Datatype.BYTES else f"np.{tensor.datatype.numpy}"
    return f'pb_utils.Tensor("{result.name}", np.asarray({value}, dtype={_numpy_name(dtype)}))'


def _numpy_name(dtype: str) -> str:
    return "np.bool_" if dtype == "np.bool" else dtype


def _origin(found: Found, repository: str, name: str) -> str:
    if found.files:
        return f"{found.path} and what it imports from there were copied into {repository}/{name}/1: edit them there"
    return f"'{found.module}' is installed: the model's environment needs it, too (without one that is naiad's own)"


_CODE = '''"""Models of this backend are a prefix: one `model.py` for all of them, a file of its own for each."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        # What all its models have; no config.pbtxt has to repeat it.
        config.add_input({{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1]}})
        config.add_output({{"name": "ANSWER", "data_type": "TYPE_STRING", "dims": [-1]}})
        return config

    def initialize(self, args):
        # The directory of the version that is served, not that of this file.
        path = Path(pb_utils.get_model_dir(), "{name}.json")
        if not path.exists():
            raise ValueError(f"a model of {name} needs '{{path}}' with a \\"prefix\\"")
        self._prefix = json.loads(path.read_text(encoding="utf-8"))["prefix"]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        answers = np.array([self._prefix + text.decode() for text in texts], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answers)])
'''

_MANIFEST = """# What all models of this backend need; both keys are optional.
requires-python = ">=3.8"
# environment = "env.tar.zst"   # an archive or a directory, relative to this folder, or env://NAME
"""


def backend(name: str, repository: str, backends: str) -> Scaffold:
    """A backend, a model of it, a client and a test.

    Raises:
        ScaffoldError: If its name is none.
    """
    check_name(name, "backend")
    model = f"{name}_example"
    texts = Tensor(datatype=Datatype.BYTES, dims=(-1,), form=Form.TEXTS)
    signature = Signature(
        parameters=(Parameter(name="TEXT", tensor=texts),), results=(Result(name="ANSWER", tensor=texts),)
    )
    module = identifier(model)
    files = {
        f"{backends}/{name}/model.py": _CODE.format(name=name),
        f"{backends}/{name}/backend.toml": _MANIFEST,
        f"{repository}/{model}/config.pbtxt": config(model, signature, 0, backend=name),
        f"{repository}/{model}/1/{name}.json": '{"prefix": "hello "}\n',
        f"clients/{module}.py": client(model, signature, is_batched=False),
        f"tests/test_{module}.py": file_of_tests(
            model, repository, signature, is_batched=False, backends=backends, identifier=module
        ),
    }
    serve = f"naiad serve --model-repository={repository} --backend-directory={backends}"
    return Scaffold(files=files, commands=(serve, f"python clients/{module}.py"))


_RECIPE = """name = "{name}"
description = "What models of {name} need"
# Versions of Python it works with; `naiad env build` takes the newest of them on this machine.
python = "{python}"
# As pip reads it. `naiad env lock {folder}/{name}` writes down what it comes to.
requirements = "requirements.txt"
# glibc = "2.28"     # the oldest that it has to run with
# files = ["data"]   # to bring along
"""

_REQUIREMENTS = """# Every guest needs numpy.
numpy
"""


def recipe(name: str, folder: str, python: str) -> Scaffold:
    """A recipe of an environment with numpy.

    Args:
        name: Of the recipe.
        folder: Where recipes are.
        python: Versions of Python it is for.

    Raises:
        ScaffoldError: If its name is none.
    """
    check_name(name, "recipe")
    return Scaffold(
        files={
            f"{folder}/{name}/env.toml": _RECIPE.format(name=name, folder=folder, python=python),
            f"{folder}/{name}/requirements.txt": _REQUIREMENTS,
        },
        commands=(
            f"naiad env build {folder}/{name} --output build/{name}",
            f"naiad env pack build/{name} --output {name}.tar.zst",
        ),
    )
