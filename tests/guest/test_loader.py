"""Importing models as the reference does. Each import happens in a process of its own, as in a guest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from naiad_stub import api
from naiad_stub.exceptions import TritonModelException

# The part below `STUB` stands in for the process loop, which calls the loader and catches what it raises.
CHILD = """
import json, os, sys
stubs, model_file, version_dir, utils_dir, shared, expression = sys.argv[1:]
sys.path[:0] = [stubs]
from naiad_stub import loader, runtime
del sys.path[0]
STUB = '''
def answer():
    before = len(sys.path)
    runtime.install(runtime.Runtime(model_dir=version_dir))
    try:
        arguments = model_file, version_dir, os.path.dirname(version_dir), utils_dir, shared == "1"
        cls = loader.load_model_class(*arguments)
        names = {"cls": cls, "module": sys.modules[cls.__module__], "added": sys.path[before:]}
        return {"value": eval(expression, names)}
    except BaseException as error:
        return {"error": loader.format_exception(error)[0]}
'''
scope = {**globals(), "__name__": "naiad_stub.child"}
exec(STUB, scope)
print(json.dumps(scope["answer"]()))
"""


@pytest.fixture
def stubs():
    import triton_python_backend_utils

    return Path(triton_python_backend_utils.__file__).parent


@pytest.fixture
def load(stubs, tmp_path):
    """Lay out files below tmp_path, load a model, and evaluate an expression there."""

    def load(files, expression="None", *, model_file="m/1/model.py", utils_dir=None, shared=False):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        arguments = [
            str(stubs),
            str(tmp_path / model_file),
            str(tmp_path / "m/1"),
            str(utils_dir or stubs),
            str(int(shared)),
        ]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments, expression],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return json.loads(done.stdout.splitlines()[-1])

    return load


CLASS = "class TritonPythonModel:\n    pass\n"


def test_a_model_is_imported_as_a_module_of_its_version(load, stubs, tmp_path):
    answer = load({"m/1/model.py": CLASS}, "[module.__name__, module.__package__, module.__file__, added]")

    folder = f"{tmp_path}/m"
    assert answer == {"value": ["1.model", "1", f"{folder}/1/model.py", [f"{folder}/1", folder, str(stubs)]]}


def test_siblings_and_modules_of_the_model_folder_are_found(load):
    files = {
        "m/1/model.py": f"from .sibling import a\nimport sibling, shared_code\nvalue = [a, sibling.a, shared_code.b]\n{CLASS}",
        "m/1/sibling.py": "a = 'sibling'",
        "m/shared_code.py": "b = 'beside the versions'",
    }

    assert load(files, "module.value") == {"value": ["sibling", "sibling", "beside the versions"]}


def test_a_file_of_another_name_is_imported_under_it(load):
    assert load({"m/1/main.py": CLASS}, "module.__name__", model_file="m/1/main.py") == {"value": "1.main"}


def test_a_shared_backend_sees_its_own_folder_only(load, stubs, tmp_path):
    files = {
        "backends/b/model.py": f"import helper\nimport triton_python_backend_utils as u\nvalue = [helper.a, u.get_model_dir()]\n{CLASS}",
        "backends/b/helper.py": "a = 'of the backend'",
        "m/1/helper.py": "a = 'of the model'",
    }

    answer = load(files, "[module.__name__, module.value, added]", model_file="backends/b/model.py", shared=True)

    assert answer == {"value": ["model", ["of the backend", f"{tmp_path}/m/1"], [f"{tmp_path}/backends/b", str(stubs)]]}


def test_modules_beside_the_model_do_not_replace_others_of_their_names(load):
    names = ["types", "json", "wire", "tensor", "api", "enum", "traceback", "ctypes", "struct", "numpy", "naiad_stub"]
    files = {f"m/1/{name}.py": "local = 'mine'" for name in names}
    files["m/1/model.py"] = "\n".join(
        [
            *(f"from . import {name} as my_{name}" for name in names),
            "import json, types, numpy",
            "import triton_python_backend_utils as u",
            f"value = [{', '.join(f'my_{name}.local' for name in names)}, types.__file__ != my_types.__file__]",
            "value += u.Tensor('T', numpy.zeros(1)).shape()",
            "value += [u.InferenceResponse([], parameters={'a': 1}).parameters()]",
            CLASS,
        ]
    )

    assert load(files, "module.value") == {"value": ["mine"] * len(names) + [True, 1, '{"a": 1}']}


def test_a_models_own_wire_module_is_found_by_its_name(load):
    """The stub has modules of that name, but keeps them in its package."""
    files = {"m/1/model.py": f"import wire\nvalue = wire.local\n{CLASS}", "m/1/wire.py": "local = 'mine'"}

    assert load(files, "module.value") == {"value": "mine"}


def test_the_api_is_there_while_the_model_is_imported(load, tmp_path):
    names = (
        "TritonError TritonModelException Tensor InferenceRequest InferenceResponse Logger PreferredMemory MetricFamily "
        "load_model unload_model is_model_ready get_model_dir TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU "
        "ModelConfig serialize_byte_tensor"
    )
    extension = (
        "Metric MetricKind ResponseIterator InferenceResponseSender InferenceTrace MemoryType SharedMemory Tensor"
    )
    model = (
        f"from triton_python_backend_utils import {', '.join(names.split())}\n"
        f"from c_python_backend_utils import {', '.join(extension.split())}\nvalue = get_model_dir()\n{CLASS}"
    )

    assert load({"m/1/model.py": model}, "module.value") == {"value": f"{tmp_path}/m/1"}


def test_a_backends_own_utils_get_the_api_too(load, tmp_path):
    files = {
        "own/triton_python_backend_utils.py": "mine = 'own'",
        "m/1/model.py": f"import triton_python_backend_utils as u\nvalue = [u.mine, u.Tensor('T', [1]).name()]\n{CLASS}",
    }

    assert load(files, "module.value", utils_dir=tmp_path / "own") == {"value": ["own", "T"]}


def test_a_copy_of_the_utils_beside_the_model_is_not_taken(load):
    files = {
        "m/1/triton_python_backend_utils.py": "raise RuntimeError('kept for an editor')",
        "m/1/model.py": f"import triton_python_backend_utils as u\nvalue = u.Tensor('T', [1]).name()\n{CLASS}",
    }

    assert load(files, "module.value") == {"value": "T"}


def test_missing_files_are_named(load, tmp_path):
    assert load({}) == {"error": f"Python model file not found in '{tmp_path}/m/1/model.py'"}
    assert load({"m/1/model.txt": CLASS}, model_file="m/1/model.txt") == {
        "error": "Model name must end with '.py'. Model name is \"model.txt\"."
    }
    assert load({"m/1/model.py": CLASS}, utils_dir=tmp_path) == {
        "error": f"triton_python_backend_utils.py not found in '{tmp_path}'"
    }


def test_a_missing_class_is_named(load):
    assert load({"m/1/model.py": "x = 1"}) == {
        "error": "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"
    }


def test_a_syntax_error_has_file_and_line_and_no_frames(load):
    answer = load({"m/1/model.py": "x = 1\nclass TritonPythonModel\n"})

    assert answer["error"].startswith("SyntaxError: ")
    assert answer["error"].endswith("(model.py, line 2)")


def test_an_error_at_import_names_the_frames_of_model_and_import_system(load, tmp_path):
    files = {
        "m/1/model.py": f"from . import helper\n{CLASS}",
        "m/1/helper.py": "def f():\n    raise ValueError('at import')\nf()\n",
    }

    lines = load(files)["error"].splitlines()

    here = f"  {tmp_path}/m/1"
    assert lines[:3] == ["ValueError: at import", "", "At:"]
    assert [line for line in lines[3:] if "<frozen" not in line] == [
        f"{here}/helper.py(2): f",
        f"{here}/helper.py(3): <module>",
        f"{here}/model.py(1): <module>",
    ]
    assert lines[-1].startswith("  <frozen importlib._bootstrap>(")
    assert lines[-1].endswith("): _find_and_load")


def test_a_module_that_is_missing_is_named(load, tmp_path):
    error = load({"m/1/model.py": f"import nonexistent_thing\n{CLASS}"})["error"]

    assert error.startswith("ModuleNotFoundError: No module named 'nonexistent_thing'\n\nAt:\n")
    assert f"  {tmp_path}/m/1/model.py(1): <module>\n" in error


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: api.MetricFamily("a", "b", api.MetricFamily.GAUGE), "Error when creating MetricFamily: 'a' cannot be"),
        (lambda: api.load_model("x"), "Failed to load model: there is no server here"),
        (
            lambda: api.load_model("x", files=[]),
            "failed to load model 'x', files should be a dictionary of file paths and",
        ),
        (lambda: api.unload_model("x"), "Failed to unload model: there is no server here"),
        (lambda: api.is_model_ready("x"), "Failed to check model readiness: there is no server here"),
    ],
)
def test_functions_that_need_a_server_raise_an_error_without_one(use, message):
    with pytest.raises(TritonModelException) as raised:
        use()

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "arguments", [("a", "b", 3), (None, "b", api.MetricKind.GAUGE), ("a", 1, api.MetricKind.GAUGE)]
)
def test_a_metric_family_takes_two_texts_and_a_kind(arguments):
    with pytest.raises(TypeError, match=r"^MetricFamily takes a name, a description and one of its kinds"):
        api.MetricFamily(*arguments)


@pytest.mark.parametrize("cls", [api.Metric, api.InferenceResponseSender, api.ResponseIterator, api.SharedMemory])
def test_objects_of_the_server_cannot_be_made_by_models(cls):
    with pytest.raises(TypeError, match=rf"^{cls.__name__}: No constructor defined!"):
        cls()
