"""The first files of a backend that models share, with a model that uses it."""

from __future__ import annotations

from naiad.protocol.datatypes import Datatype
from naiad.scaffold.hints import Form, Tensor
from naiad.scaffold.project import Scaffold, check_name, identifier
from naiad.scaffold.render import client, config, file_of_tests
from naiad.scaffold.signature import Parameter, Result, Signature

__all__ = ["backend"]

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
