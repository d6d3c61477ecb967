"""Models that are broken in one named way each, and what the doctor has to say of each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from httptools.parser import parser as compiled  # any compiled module of this Python
from operations.doctor.repository import CODE, CONFIG, IO, Files, ensemble, environment, model, parameter

FOR_A_NEWER_SYSTEM = Path(compiled.__file__).read_bytes().replace(b"\0GLIBC_2.2.5\0", b"\0GLIBC_2.999\0")


class Broken(NamedTuple):
    """A broken model: its files, and the one finding about it."""

    code: str
    text: str
    files: Files
    where: str = ""


def config(code: str, text: str, config: str, where: str = "config.pbtxt") -> Broken:
    return Broken(code, text, model(config=config), where)


def code(code: str, text: str, code_text: str, where: str = "1/model.py") -> Broken:
    return Broken(code, text, model(code_text), where)


def missing(import_line: str, text: str, **files: str) -> Broken:
    return Broken("missing-import", text, model(import_line + CODE), "1/model.py:1")


CONFIGURATIONS = {
    "unknown_field": config(
        "config", "did you mean 'max_batch_size'?", CONFIG + "max_batchsize: 4", "config.pbtxt:4:1"
    ),
    "unknown_datatype": config("config", "TYPE_FP32", CONFIG.replace("TYPE_FP32", "TYPE_FLOAT32", 1), "config.pbtxt:2"),
    "missing_brace": config("config", "", 'backend: "python"\ninput { name: "X"\n', "config.pbtxt:"),
    "another_name": config("config", "another", 'name: "another"\n' + CONFIG),
    "no_dimensions": config("config", "dims", CONFIG.replace("dims: [ -1 ]", "", 1)),
    "negative_batch_size": config("config", "max_batch_size", CONFIG + "max_batch_size: -1"),
    "preferred_above_maximum": config(
        "config", "preferred", CONFIG + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }"
    ),
    "no_label_file": config("files", "labels.txt", CONFIG.replace("output {", 'output { label_filename: "labels.txt"')),
    "no_warm_up_data": config(
        "files",
        "sample",
        CONFIG
        + 'model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 '
        + 'input_data_file: "sample" } } }',
    ),
    "nonsense_to_prewarm": config("config", "PREWARM", CONFIG + parameter("PREWARM", "numpy; torch")),
    "nonsense_for_demand": config("config", "sometimes", CONFIG + parameter("demand", "sometimes")),
    "nonsense_for_instances": config("config", "max_instances", CONFIG + parameter("max_instances", "many")),
    "no_versions": Broken("versions", "version", {"config.pbtxt": CONFIG, "notes.txt": ""}),
    "unknown_backend": config("backend", "nowhere", f'backend: "nowhere"{IO}', ""),
    "no_code": Broken("backend", "model.py", {"config.pbtxt": CONFIG, "1/code.py": CODE}),
    "impossible_python": config("python", "3.99", CONFIG + parameter("PYTHON_VERSION", "3.99"), ""),
    "nonsense_for_python": config("python", "newest", CONFIG + parameter("PYTHON_VERSION", "the newest"), ""),
    "stub_for_an_older_python": Broken(
        "python",
        "no Python <3.9 on this machine can",
        model() | {"triton_python_backend_stub": "#!/usr/bin/env python3\n", "stub.toml": 'requires-python = "<3.9"\n'},
    ),
}
CODES = {
    "syntax_error": code(
        "syntax", "", CODE.replace("execute(self, requests):", "execute(self, requests)"), "model.py:6"
    ),
    "code_in_latin_1": Broken(
        "unreadable-code",
        "utf-8",
        {"config.pbtxt": CONFIG, "1/model.py": CODE.encode() + "# façade\n".encode("latin-1")},
    ),
    "no_class": code("no-class", "TritonPythonModel", CODE.replace("TritonPythonModel", "TritonPythonModle")),
    "no_execute": code("no-execute", "execute(self, requests)", CODE.replace("execute", "exceute"), "model.py:5"),
    "execute_without_requests": code(
        "arguments", "execute(self, requests)", CODE.replace("self, requests", "self"), ":6"
    ),
    "initialize_without_arguments": code(
        "arguments", "initialize(self, args)", CODE + "\n    def initialize(self):\n        pass\n", ":9"
    ),
    "execute_yields": code("generator", "contains yield", CODE.replace("return", "yield"), ":6"),
    "misspelt_import": missing("import nunpy", "imports nunpy, which is not in the host's interpreter"),
    "missing_package": missing("from no_such_package.parts import part", "imports no_such_package.parts"),
    "missing_module_beside": missing("from .helper import help", "imports .helper, which is not at "),
    "import_in_a_module_beside": Broken(
        "missing-import",
        "imports no_such_package",
        model("import beside\n" + CODE) | {"1/beside.py": "import json\nimport no_such_package\n"},
        "1/beside.py:2",
    ),
    "import_in_a_function": Broken(
        "missing-import",
        "a function imports no_such_package",
        model(CODE.replace("        return", "        import no_such_package\n        return")),
        "1/model.py:7",
    ),
    "compiled_for_another_python": Broken(
        "compiled-for-another-python",
        "fast.cpython-36m-x86_64-linux-gnu.so",
        model() | {"1/fast.cpython-36m-x86_64-linux-gnu.so": b""},
    ),
    "compiled_for_a_newer_system": Broken(
        "missing-symbols",
        "needs GLIBC_2.999",
        model() | {"1/fast.so": FOR_A_NEWER_SYSTEM},
        "1/fast.so",
    ),
}
ENSEMBLES = {
    "step_without_model": Broken("config", "not available or ambiguous: nobody", ensemble("nobody")),
    "step_without_version": Broken("config", "required version 7 is not loaded", ensemble("fine:7")),
    "steps_that_do_not_fit": Broken("config", "TYPE_INT32", ensemble("fine", output="TYPE_INT32")),
    "ring": Broken("config", "circular dependency", ensemble("ring_back")),
    "ring_back": Broken("config", "circular dependency", ensemble("ring")),
}


def environments(folder: Path) -> dict[str, Broken]:
    """Models whose environments are broken; those lie in a folder of their own."""
    (folder / "text.tar.gz").write_text("no archive")
    (folder / "half.tar.gz").write_bytes(b"\x1f\x8b\x08\x00" + bytes(40))
    (folder / "empty").mkdir()
    good = environment(folder / "good")

    def named(text: str, place: object, more: str = "") -> Broken:
        return Broken("environment", text, model(config=CONFIG + parameter("EXECUTION_ENV_PATH", place) + more))

    return {
        "missing_environment": named("nowhere.tar.gz", "$$TRITON_MODEL_DIRECTORY/nowhere.tar.gz"),
        "environment_of_text": named("text.tar.gz", folder / "text.tar.gz"),
        "half_an_environment": named("half.tar.gz", folder / "half.tar.gz"),
        "environment_without_python": named("python", folder / "empty"),
        "environment_of_another_python": named("asks for Python", good, parameter("PYTHON_VERSION", ">=3.13.39,<3.14")),
    }


def write_broken(folder: Path) -> dict[str, Broken]:
    """All of them by name."""
    (folder / "environments").mkdir()
    return {**CONFIGURATIONS, **CODES, **ENSEMBLES, **environments(folder / "environments")}
