"""The first files of a model: code, configuration, client and test."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad.scaffold.hints import Form, Tensor
from naiad.scaffold.locate import Found, find_function
from naiad.scaffold.project import Scaffold, check_name, identifier
from naiad.scaffold.render import client, config, file_of_tests
from naiad.scaffold.signature import Parameter, Result, Signature, read_signature

__all__ = ["function_model", "plain_model"]

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
