"""What the last line of a failed start says of models that are each broken in one way that a newcomer may meet.

The line names the first models with their reasons. One server loads all models; the line is made for each of its own.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field

import pytest
from serving.repositories import index
from support.server import TRITONSERVER, ServerProcess

from naiad.models.resolution.tables import failed_models

HEAD = "import triton_python_backend_utils as pb_utils\n\n"
EXECUTE = "    def execute(self, requests):\n        return []\n"
CODE = f"{HEAD}class TritonPythonModel:\n{EXECUTE}"
CONFIG = 'input { name: "X" data_type: TYPE_FP32 dims: -1 }\noutput { name: "Y" data_type: TYPE_FP32 dims: -1 }\n'
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }\n'
PYTHON = 'parameters { key: "PYTHON_VERSION" value { string_value: "%s" } }\n'
OF_ANY_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
"""What a command begins with that may only read what modes allow, although root runs it."""
UNHEALTHY = "Stub process '{model}_0' is not healthy. Reason: pid PID"
OWN = "(in Python VERSION: INTERPRETER, the server's own interpreter)"
NO_BACKEND = (
    "Invalid model name: Could not determine backend for model '{model}' with no backend in model configuration. "
    "Expected model name of the form 'model.<backend_name>'. 'REPOSITORY/{model}/1/model.py' does not exist: "
)
UNDEFINED = (
    "AttributeError: module '1.model' has no attribute 'TritonPythonModel'; define class TritonPythonModel, with a "
    "method execute(self, requests), in REPOSITORY/{model}/1/model.py"
)
NO_VERSION = "at least one version must be available under the version policy of model '{model}' "


@dataclass(frozen=True)
class Broken:
    """A model, and the reason that the line gives; where the model is `{model}`, its repository `REPOSITORY`."""

    reason: str
    code: str | None = CODE
    config: str = CONFIG
    files: dict[str, bytes] = field(default_factory=dict)


def initialize(statement: str) -> str:
    return f"{HEAD}class TritonPythonModel:\n    def initialize(self, args):\n        {statement}\n{EXECUTE}"


def ensemble(reason: str, step: str, tensors: str = CONFIG) -> Broken:
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    scheduling = f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 {maps} }} }}'
    return Broken(reason, None, f'platform: "ensemble"\n{tensors}{scheduling}', {"1/empty": b""})


MODELS = {
    # its code
    "syntax": Broken("SyntaxError: invalid syntax (model.py, line 6)", f"{CODE}def f(:\n    pass\n"),
    "tabs": Broken(
        "TabError: inconsistent use of tabs and spaces in indentation (model.py, line 3)",
        "class TritonPythonModel:\n    def execute(self, requests):\n\treturn []\n",
    ),
    "module": Broken(
        f"REPOSITORY/{{model}}/1/model.py:1: ModuleNotFoundError: No module named 'nosuch' {OWN}; if it is from a package, "
        "add it with `naiad add REPOSITORY/{model} PACKAGE`, with the package's name, which need not be the module's; if "
        "'nosuch' is code of your own, put it beside model.py, or into a folder of PYTHONPATH for models under the "
        "server's own interpreter",
        f"import nosuch\n{CODE}",
    ),
    "package": Broken(
        f"REPOSITORY/{{model}}/1/model.py:1: ModuleNotFoundError: No module named 'cv2' {OWN}; if 'cv2' is a package, "
        "add it with `naiad add REPOSITORY/{model} opencv-python-headless`",
        f"import cv2\n{CODE}",
    ),
    "name_in_module": Broken(
        "REPOSITORY/{model}/1/model.py:1: ImportError: cannot import name 'nosuch' from 'helper' "
        f"(REPOSITORY/{{model}}/1/helper.py) {OWN}",
        f"from helper import nosuch\n{CODE}",
        files={"1/helper.py": b""},
    ),
    "class": Broken(UNDEFINED, CODE.replace("TritonPythonModel", "MyModel")),
    "empty": Broken(UNDEFINED, ""),
    "folder": Broken(
        "Python model file not found in 'REPOSITORY/{model}/1/model.py'", None, files={"1/model.py/file": b""}
    ),
    "unreadable": Broken("PermissionError: [Errno 13] Permission denied: 'REPOSITORY/{model}/1/model.py'"),
    "exits_at_import": Broken("REPOSITORY/{model}/1/model.py:2: SystemExit: 3", f"import sys\nsys.exit(3)\n{CODE}"),
    "signature": Broken(
        "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given; define it as "
        "initialize(self, args), in REPOSITORY/{model}/1/model.py",
        initialize("pass").replace("self, args", "self"),
    ),
    "raises": Broken(
        "REPOSITORY/{model}/1/model.py:5: ValueError: no weights at /weights", initialize("raise ValueError('no weights at /weights')")
    ),
    "raises_nothing": Broken("REPOSITORY/{model}/1/model.py:5: AssertionError: <EMPTY MESSAGE>", initialize("assert not args")),
    "argument": Broken("REPOSITORY/{model}/1/model.py:5: KeyError: 'model_path'", initialize("args['model_path']")),
    "file": Broken(
        "REPOSITORY/{model}/1/model.py:5: FileNotFoundError: [Errno 2] No such file or directory: '/nosuch/w.bin'",
        initialize("open('/nosuch/w.bin')"),
    ),
    "exits": Broken(f"{UNHEALTHY} exited with status 7 while it started.", initialize("import os; os._exit(7)")),
    "crashes": Broken(
        f"REPOSITORY/{{model}}/1/model.py:5: {UNHEALTHY} was killed by SIGSEGV while it started.",
        initialize("import ctypes; ctypes.string_at(0)"),
    ),
    "killed": Broken(
        f"{UNHEALTHY} was killed by SIGKILL (out of memory?) while it started.",
        initialize("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    ),
    # its configuration
    "other_name": Broken(
        "unexpected directory name '{model}' for model 'other', directory name must equal model name",
        config=f'name: "other"\n{CONFIG}',
    ),
    "datatype": Broken(
        "REPOSITORY/{model}/config.pbtxt:1:30: DataType has no value 'FP32'; did you mean 'TYPE_FP32'?",
        config=CONFIG.replace("TYPE_FP32", "FP32"),
    ),
    "dims": Broken(
        """REPOSITORY/{model}/config.pbtxt:1:46: Couldn't parse integer: "x\"""", config=CONFIG.replace("-1", '"x"')
    ),
    "no_dims": Broken(
        "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {model}",
        config=CONFIG.replace("-1", "0"),
    ),
    "brace": Broken(
        "REPOSITORY/{model}/config.pbtxt:2:1: ModelInput has no field 'output', but the configuration has: is a '}' missing "
        "before it? The '{' of line 1 is still open",
        config=CONFIG.replace("}", "", 1),
    ),
    "field": Broken(
        "REPOSITORY/{model}/config.pbtxt:3:1: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?",
        config=f"{CONFIG}max_batchsize: 4\n",
    ),
    "backend": Broken(
        "unable to find backend library for backend 'onnxx', try specifying runtime on the model configuration. (looked at: ",
        config=f'backend: "onnxx"\n{CONFIG}',
    ),
    "batches": Broken(
        "dynamic batching preferred size must be <= max batch size for {model}",
        config=f"max_batch_size: 4\n{CONFIG}dynamic_batching {{ preferred_batch_size: 8 }}",
    ),
    "schedulers": Broken(
        'REPOSITORY/{model}/config.pbtxt:4:1: Field "sequence_batching" is specified along with field "dynamic_batching", '
        'another member of oneof "scheduling_choice" for message type "ModelConfig".',
        config=f"{CONFIG}dynamic_batching {{ }}\nsequence_batching {{ }}",
    ),
    "gpu": Broken(
        "instance group {model}_0 of model {model} has kind KIND_GPU but server does not support GPUs: it found none that "
        "NVIDIA's driver reports and CUDA_VISIBLE_DEVICES leaves; use KIND_CPU, or no kind for a GPU where there is one, or "
        "start with --gpu-fallback=cpu, which places such groups on the CPU",
        config=f"{CONFIG}instance_group {{ kind: KIND_GPU }}",
    ),
    "labels": Broken(
        "failed to open text file for read REPOSITORY/{model}/labels.txt: No such file or directory",
        config=CONFIG.replace('"Y"', '"Y" label_filename: "labels.txt"'),
    ),
    # its folders
    "no_version": Broken(f"{NO_BACKEND}move 'REPOSITORY/{{model}}/model.py' there.", None, files={"model.py": CODE.encode()}),
    "no_code": Broken(f"{NO_BACKEND}a model in Python has its code there.", None, files={"1/weights.bin": b""}),
    "version_name": Broken(
        f"{NO_VERSION}(none of its folders is a version, such as 1/; git keeps no empty folder, as that of an ensemble is: "
        "`mkdir REPOSITORY/{model}/1` makes one)",
        None,
        files={"v1/model.py": CODE.encode()},
    ),
    "version_policy": Broken(f"{NO_VERSION}(its versions are: 1)", config=f"{CONFIG}version_policy {{ specific {{ versions: 3 }} }}"),
    # its environment
    "no_archive": Broken(
        "parameter EXECUTION_ENV_PATH of model '{model}' names the execution environment 'env.tar.gz', but "
        "'REPOSITORY/{model}/env.tar.gz' does not exist; 'REPOSITORY/{model}' has 1, config.pbtxt; a path may be absolute, ",
        config=CONFIG + ENVIRONMENT % "env.tar.gz",
    ),
    "archive": Broken(
        "cannot unpack the execution environment REPOSITORY/{model}/env.tar.gz: it is not an archive (its first bytes are 6e 6f "
        "6e 65); expected a tar packed with gzip, bzip2, xz or zstd, a plain tar, or a zip, as conda-pack and `naiad env pack` "
        "write them, or a squashfs image",
        config=CONFIG + ENVIRONMENT % "env.tar.gz",
        files={"env.tar.gz": b"none"},
    ),
    "old_python": Broken(
        "models run under Python <3.15,>=3.8 here, which is what the stub 'STUB' supports, but parameter PYTHON_VERSION of "
        "model '{model}' asks for Python ==3.7.*; ask for a version that is supported, or give model '{model}' a stub of its own",
        config=CONFIG + PYTHON % "3.7",
    ),
    "python": Broken(
        "parameter PYTHON_VERSION of model '{model}': 'latest' is not a version of Python: write a version as \"3.10\" or a "
        'range as ">=3.10,<3.12", or the path of an interpreter or environment, as "/opt/conda"',
        config=CONFIG + PYTHON % "latest",
    ),
    "unlocked": Broken(
        "the environment of REPOSITORY/{model}/1/model.py has no lock, and --env-build=locked resolves no requirements: looked for "
        "model.py.lock and pylock.toml in REPOSITORY/{model}/1; write it with `naiad lock REPOSITORY/{model}/1/model.py`, or allow "
        "it with --env-build=allowed",
        f'# /// script\n# dependencies = ["numpy==0.0.99"]\n# ///\n{CODE}',
    ),
    # its steps
    "step": ensemble("ensemble {model} contains models that are not available or ambiguous: nosuch", "nosuch"),
    "circle": ensemble("circular dependency between ensembles: circle -> ... -> circle_back -> circle", "circle_back"),
    "circle_back": ensemble("circular dependency between ensembles: circle_back -> ... -> circle -> circle_back", "circle"),
    "step_type": ensemble(
        "in ensemble {model}, ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model {model} while "
        "TYPE_FP32 is inferred from model good",
        "good",
        CONFIG.replace("FP32", "INT32"),
    ),
}  # fmt: skip
"""Reasons whose end is left out here have the places that were looked at."""
SERVED = {
    "signature_of_execute": Broken("", CODE.replace("self, requests", "self")),
    "no_execute": Broken("", CODE.replace("execute", "predict")),
    "two_outputs": Broken("", config=f"{CONFIG}{CONFIG.splitlines()[1]}\n"),
    "good": Broken(""),
}
"""Models that are loaded all the same, as the reference loads them."""


@pytest.fixture(scope="module")
def server(work):
    for name, model in {**MODELS, **SERVED}.items():
        files = {"config.pbtxt": model.config.encode(), **model.files}
        if model.code is not None:
            files["1/model.py"] = model.code.encode()
        for path, content in files.items():
            file = work / "models" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    (work / "models" / "unreadable" / "1" / "model.py").chmod(0)
    command = [*(OF_ANY_USER if os.geteuid() == 0 and shutil.which("setpriv") else ()), TRITONSERVER]
    with ServerProcess(work / "models", "--exit-on-error=false", work=work, command=command, wait="loaded") as running:
        running.wait_for(
            lambda: all(entry.get("state") in {"READY", "UNAVAILABLE"} for entry in index(running).values()),
            "every model to be loaded or refused",
        )
        yield running


@pytest.mark.parametrize("name", MODELS)
def test_the_last_line_says_what_is_wrong_and_where(server, name):
    if name == "unreadable" and os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root reads every file, and there is no setpriv (util-linux)")
    entry = index(server)[name]

    line = failed_models([(name, int(entry.get("version") or 1), f"{entry['state']}: {entry['reason']}")])

    line = line.replace(str(server.work / "models"), "REPOSITORY")
    line = re.sub(r"\bpid \d+", "pid PID", line)
    line = re.sub(r"\(in Python [\d.]+: [^,]+,", "(in Python VERSION: INTERPRETER,", line)
    line = re.sub(r"'[^']*/triton_python_backend_stub'", "'STUB'", line)
    reason = MODELS[name].reason.replace("{model}", name)
    expected = f"1 of 1 models failed: {name} ({reason}"
    if reason.endswith((": ", ", ")):
        assert line.startswith(expected)
    else:
        assert line == f"{expected})"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("signature_of_execute", "TypeError: TritonPythonModel.execute() takes 1 positional argument but 2 were given"),
        ("no_execute", "does not implement `execute` method"),
    ],
)
def test_a_model_that_loads_without_an_execute_says_so_to_its_first_request(server, name, error):
    reply = server.post(
        f"/v2/models/{name}/infer", {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
    )
    assert reply.status == 500
    assert error in reply.error


def test_an_output_that_is_declared_twice_is_warned_of(server):
    assert "'two_outputs': it has several outputs named 'Y'; only the last one is used" in server.log
