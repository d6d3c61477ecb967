"""The files that `naiad init` writes: models and shared backends, each with its texts.

A model comes with a configuration, a client and a test, which share example inputs; a backend comes with a model that
uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from naiad.core.errors import ScaffoldError
from naiad.models.repository.saved_files import SavedFile
from naiad.protocol.datatypes import Datatype
from naiad_operations.scaffold.project import Scaffold, check_name, identifier
from naiad_operations.scaffold.signature import (
    UNKNOWN,
    Parameter,
    PythonForm,
    Result,
    Signature,
    TensorType,
    read_signature,
)
from naiad_operations.scaffold.source import FunctionSource, find_function

_EXAMPLE_SIZE = 3  # size of an example input along a dimension of any size

_CLIENT = '''"""Send one request to {name}, and print the response."""

import argparse

import numpy as np
import tritonclient.http as httpclient

INPUTS = {{
{examples}
}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="address of the server's HTTP port")
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
    """The text of a model's config.pbtxt."""
    lines = [f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {max_batch_size}"]
    for one in signature.parameters:
        more = " optional: true" if one.optional else ""
        lines.append(f"input {{ {_entry(one)}{more} }}")
    lines += [f"output {{ {_entry(one)} }}" for one in signature.results]
    if max_batch_size:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def client(name: str, signature: Signature, *, is_batched: bool) -> str:
    """The text of a program that sends one request with example inputs."""
    return _CLIENT.format(
        name=name,
        examples="\n".join(
            f'    "{one.name}": ("{one.tensor.datatype.name}", {_example(one.tensor, is_batched)}),'
            for one in _required(signature)
        ),
    )


def file_of_tests(name: str, repository: str, signature: Signature, *, is_batched: bool, backends: str = "") -> str:
    """The text of a test of the model, with the client's example inputs."""
    names = ", ".join(f'"{name}"' for name in sorted(one.name for one in signature.results))
    return _TEST.format(
        name=name,
        identifier=identifier(name),
        path=f"tests/test_{identifier(name)}.py",
        repository=repository,
        more=f', backend_directories=[PROJECT / "{backends}"]' if backends else "",
        examples="\n".join(f'    "{one.name}": {_example(one.tensor, is_batched)},' for one in _required(signature)),
        names=f"[{names}]",
    )


def _required(signature: Signature) -> Iterable[Parameter]:
    return [one for one in signature.parameters if not one.optional] or signature.parameters[:1]


def _entry(tensor: Parameter | Result) -> str:
    dims = ", ".join(map(str, tensor.tensor.dims))
    return f'name: "{tensor.name}" data_type: {tensor.tensor.datatype.config_name} dims: [ {dims} ]'


def _example(tensor: TensorType, is_batched: bool) -> str:  # noqa: FBT001 - both callers pass a variable of this name
    sizes = [1] * is_batched + [_EXAMPLE_SIZE if size < 0 else size for size in tensor.dims]
    if tensor.datatype is Datatype.BYTES:
        return f'np.full({_shape(sizes)}, "text", dtype=object)'
    kind = "bool_" if tensor.datatype is Datatype.BOOL else tensor.datatype.numpy
    return f"np.full({_shape(sizes)}, 1, dtype=np.{kind})"


def _shape(sizes: list[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


_DOUBLING_MODEL = '''# /// script
# requires-python = ">=3.8"
# dependencies = []
# ///
"""Doubles numbers; replace this with the model's own code."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        # Called once, before any request: load weights from args["model_repository"] here.
        self._factor = 2

    def execute(self, requests):
        # The server may pass several requests; return one response for each, in the same order.
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", numbers * self._factor)])
'''

_FUNCTION_MODEL = '''# /// script
# requires-python = ">=3.8"
# dependencies = []
# ///
"""Serves `{module}.{function}`: each request is one call of it."""

import numpy as np
import triton_python_backend_utils as pb_utils
from {module} import {function}

# Converts the array of an input to the function's parameter.
PARAMETERS = {{
{parameters}
}}


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        # For an optional input that the request does not have, the function uses its default.
        given = {{tensor.name(): PARAMETERS[tensor.name()](tensor.as_numpy()) for tensor in request.inputs()}}
        result = {function}({arguments})
        return pb_utils.InferenceResponse(
            [
{results}
            ]
        )
'''

_CONVERTERS = {
    PythonForm.SCALAR: "lambda array: array.item()",
    PythonForm.TEXT: "lambda array: array.item().decode()",
    PythonForm.LIST: "lambda array: array.tolist()",
    PythonForm.TEXTS: "lambda array: [text.decode() for text in array]",
    PythonForm.ARRAY: "lambda array: array",
}


def _signature_of_one(given: str, result: str, tensor: TensorType) -> Signature:
    return Signature(parameters=(Parameter(name=given, tensor=tensor),), results=(Result(name=result, tensor=tensor),))


def plain_model(name: str, repository: str) -> Scaffold:
    """The files of a model that doubles numbers, in batches."""
    check_name(name, "model")
    signature = _signature_of_one("INPUT", "OUTPUT", UNKNOWN)
    return _scaffold(name, repository, signature, {"1/model.py": _DOUBLING_MODEL}, max_batch_size=8)


def function_model(
    name: str, repository: str, named: str, search: Sequence[str], ask: Callable[[str], int] | None = None
) -> Scaffold:
    """The files of a model that calls `package.module:function`; *ask* returns an array's dimensions, None assumes."""
    check_name(name, "model")
    source = find_function(named, search)
    taken = {"model.py", "triton_python_backend_utils.py"} & set(source.files)
    if taken:
        raise ScaffoldError(
            f"cannot copy {source.path}: {min(taken)} has another meaning beside a model's code; rename it"
        )
    signature = read_signature(source, ask)
    code = {f"1/{file}": content for file, content in source.files.items()}
    notes = [*signature.notes, _origin(source, repository, name)]
    return _scaffold(
        name, repository, signature, {"1/model.py": _function_model_code(source, signature), **code}, notes=notes
    )


def saved_model(name: str, repository: str, file: SavedFile) -> Scaffold:
    """The files of a model that is a file or directory of a framework."""
    check_name(name, "model")
    folder = f"{repository}/{name}"
    allowed = "" if file.has_lock else " --env-build=allowed"
    commands = (
        f"naiad env prefetch --model-repository={repository}{allowed}",
        f"naiad serve --model-repository={repository}",
        f"curl localhost:8000/v2/models/{name}/config",
    )
    return Scaffold(
        files={
            f"{folder}/config.pbtxt": file.config,
            **{f"{folder}/{place}": source for place, source in file.files.items()},
        },
        commands=commands,
        notes=tuple(filter(None, [file.note])),
    )


def _scaffold(
    name: str,
    repository: str,
    signature: Signature,
    code: dict[str, str | bytes],
    *,
    max_batch_size: int = 0,
    notes: Sequence[str] = (),
    backend: str = "python",
    backends: str = "",
) -> Scaffold:
    files: dict[str, str | bytes | Path] = {
        f"{repository}/{name}/config.pbtxt": config(name, signature, max_batch_size, backend),
        **{f"{repository}/{name}/{file}": content for file, content in code.items()},
        f"clients/{identifier(name)}.py": client(name, signature, is_batched=max_batch_size > 0),
        f"tests/test_{identifier(name)}.py": file_of_tests(
            name, repository, signature, is_batched=max_batch_size > 0, backends=backends
        ),
    }
    more = f" --backend-directory={backends}" if backends else ""
    commands = (f"naiad serve --model-repository={repository}{more}", f"python clients/{identifier(name)}.py")
    return Scaffold(files=files, commands=commands, notes=tuple(notes))


def _function_model_code(source: FunctionSource, signature: Signature) -> str:
    positional = [one for one in signature.parameters if one.positional]
    # A positional-only parameter cannot be passed by name, so it is removed from `given` and passed by position.
    arguments = [f'given.pop("{one.name}")' for one in positional if not one.optional]
    if names := " ".join(f'"{one.name}",' for one in positional if one.optional):
        arguments.append(f"*[given.pop(name) for name in ({names}) if name in given]")
    return _FUNCTION_MODEL.format(
        module=source.module,
        function=source.function.name,
        parameters="\n".join(f'    "{one.name}": {_CONVERTERS[one.tensor.form]},' for one in signature.parameters),
        arguments=", ".join([*arguments, "**given"]),
        results="\n".join(f"                {_output_code(one)}," for one in signature.results),
    )


def _output_code(result: Result) -> str:
    value, tensor = f"result{result.part}", result.tensor
    if tensor.form in {PythonForm.SCALAR, PythonForm.TEXT}:
        value = f"[{value}]"
    dtype = "object" if tensor.datatype is Datatype.BYTES else f"np.{tensor.datatype.numpy}"
    dtype = "np.bool_" if dtype == "np.bool" else dtype
    return f'pb_utils.Tensor("{result.name}", np.asarray({value}, dtype={dtype}))'


def _origin(source: FunctionSource, repository: str, name: str) -> str:
    if source.files:
        copied_to = f"{repository}/{name}/1"
        return f"{source.path} and the modules it imports from there were copied into {copied_to}: edit them there"
    return f"'{source.module}' is installed here: the model's environment needs it, too (by default naiad's own)"


_CODE = '''# /// script
# requires-python = ">=3.8"
# dependencies = []
# ///
"""Adds a prefix to texts. All models of this backend share this file; each has a file with its prefix."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        # The inputs and outputs of all its models, so that no config.pbtxt repeats them.
        config.add_input({{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1]}})
        config.add_output({{"name": "ANSWER", "data_type": "TYPE_STRING", "dims": [-1]}})
        return config

    def initialize(self, args):
        # The directory of the model's version; this file is in the backend's directory.
        path = Path(pb_utils.get_model_dir(), "{name}.json")
        if not path.exists():
            raise ValueError(f"a model of {name} needs '{{path}}' with a \\"prefix\\"")
        self._prefix = json.loads(path.read_text(encoding="utf-8"))["prefix"]

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        answers = np.array([self._prefix + text.decode() for text in texts], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", answers)])
'''

_MANIFEST = """# Requirements of all models of this backend; both keys are optional.
requires-python = ">=3.8"
# environment = "env.tar.zst"   # an archive or a directory, relative to this folder, or env://NAME
"""


def backend(name: str, repository: str, backends: str) -> Scaffold:
    """The files of a shared backend, a model that uses it, a client and a test."""
    check_name(name, "backend")
    model = f"{name}_example"
    texts = TensorType(datatype=Datatype.BYTES, dims=(-1,), form=PythonForm.TEXTS)
    signature = _signature_of_one("TEXT", "ANSWER", texts)
    data: dict[str, str | bytes] = {f"1/{name}.json": '{"prefix": "hello "}\n'}
    scaffold = _scaffold(model, repository, signature, data, backend=name, backends=backends)
    own = {f"{backends}/{name}/model.py": _CODE.format(name=name), f"{backends}/{name}/backend.toml": _MANIFEST}
    return replace(scaffold, files={**own, **scaffold.files})


def native_backend(name: str, repository: str, backends: str) -> Scaffold:
    """The files of a backend in C, with the declarations of what it calls, and a model that uses it."""
    check_name(name, "backend")
    folder = resources.files("naiad_operations.scaffold")
    model = f"{name}_example"
    signature = _signature_of_one("IN", "OUT", UNKNOWN)
    library = f"{backends}/{name}/libtriton_{name}.so"
    files: dict[str, str | bytes | Path] = {
        f"src/{name}.c": folder.joinpath("native_backend.c").read_bytes(),
        "src/triton_api.h": folder.joinpath("triton_api.h").read_bytes(),
        f"{repository}/{model}/config.pbtxt": config(model, signature, 8, backend=name),
        f"{repository}/{model}/1/.gitkeep": "",  # the version needs a folder, and git keeps no empty one
    }
    commands = (
        f"mkdir -p {backends}/{name} && cc -shared -fPIC -O2 -g -o {library} src/{name}.c",
        f"naiad run {repository}/{model} --backend-directory={backends} --input 'IN=[[1, 2, 3]]'",
    )
    return Scaffold(files=files, commands=commands)
