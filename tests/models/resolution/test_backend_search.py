"""Which code runs a model: sections 1.1 of the reference's behaviour."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from models.resolution.fake_files import FakeFiles
from models.resolution.makers import resolve_m
from naiad_stub.native.elf import write_library

from naiad.core.errors import ResolutionError
from naiad.models.resolution.native_library import examine_library

OWN = "/repo/m/1/model.py"
SHARED = "/b2/x/model.py"


def test_a_model_of_backend_python_runs_the_file_in_its_version_directory():
    found = resolve_m({OWN})
    assert (str(found.model_file), found.is_shared, found.runtime) == (OWN, False, "")


def test_default_model_filename_renames_the_file_of_a_python_model():
    assert str(resolve_m({"/repo/m/1/other.py", OWN}, filename="other.py").model_file) == "/repo/m/1/other.py"


def test_default_model_filename_does_not_rename_the_file_of_a_shared_backend():
    assert str(resolve_m({SHARED, "/b2/x/other.py"}, backend="x", filename="other.py").model_file) == SHARED


def test_a_shared_backend_ignores_the_code_in_the_models_directories():
    found = resolve_m({OWN, "/repo/m/model.py", SHARED}, backend="x")
    assert (str(found.model_file), found.is_shared, found.runtime) == (SHARED, True, "model.py")
    assert str(found.backend_dir) == "/b2/x"


def test_the_first_backend_directory_that_has_the_backend_wins():
    assert str(resolve_m({"/b1/x/model.py", SHARED}, backend="x").model_file) == "/b1/x/model.py"


def test_runtime_model_py_names_the_shared_backend_in_spite_of_a_library():
    found = resolve_m({SHARED, "/repo/m/libtriton_x.so"}, backend="x", runtime="model.py")
    assert str(found.model_file) == SHARED


@pytest.mark.parametrize("place", ["/repo/m/1", "/repo/m", "/b1/x", "/b2/x"])
def test_a_native_library_anywhere_takes_precedence_over_a_shared_backend(place):
    found = resolve_m({f"{place}/libtriton_x.so", SHARED}, backend="x")
    assert found.library is not None
    assert str(found.library.path) == str(found.model_file) == f"{place}/libtriton_x.so"
    assert (found.is_shared, found.runtime, found.environment) == (False, "", None)
    (notice,) = found.notices
    assert notice == (
        f"'/b2/x/model.py' is not used: the native library '{place}/libtriton_x.so' takes precedence; runtime: "
        '"model.py" in the configuration chooses the code in Python'
    )


def test_the_version_directory_is_searched_first_then_the_models_then_the_backends():
    everywhere = {f"{place}/libtriton_x.so" for place in ("/repo/m/1", "/repo/m", "/b1/x")}
    for place in ("/repo/m/1", "/repo/m", "/b1/x"):
        assert str(resolve_m(everywhere, backend="x").model_file) == f"{place}/libtriton_x.so"
        everywhere.discard(f"{place}/libtriton_x.so")


@pytest.mark.parametrize("place", ["/repo/m/1", "/repo/m", "/b1/x", "a parameter"])
def test_a_batching_strategy_is_reported_as_not_used(place):
    named = {"TRITON_BATCH_STRATEGY_PATH": "/elsewhere/own.so"} if place == "a parameter" else {}
    path = named.get("TRITON_BATCH_STRATEGY_PATH", f"{place}/batchstrategy.so")
    found = resolve_m({"/repo/m/libtriton_x.so", path}, backend="x", parameters=named)
    assert found.notices == (
        f"the batching strategy '{path}' is not used: batches are formed by the configuration alone (dynamic_batching)",
    )


def test_runtime_names_another_library():
    found = resolve_m({"/repo/m/own.so", "/repo/m/libtriton_x.so", SHARED}, backend="x", runtime="own.so")
    assert str(found.model_file) == "/repo/m/own.so"


def test_a_native_backend_reads_its_own_settings_and_the_directory_it_is_in():
    configs = {"": {"everywhere": "1"}, "x": {"own": "2"}, "python": {"other": "3"}}
    found = resolve_m({"/b2/x/libtriton_x.so"}, backend="x", backend_configs=configs)
    assert found.backend_config["backend-directory"] == "/b2"
    assert found.backend_config["own"] == "2"
    assert "other" not in found.backend_config


def test_another_implementation_of_backend_python_runs_where_runtime_names_its_library():
    library = "/b2/python/libtriton_python.so"
    assert str(resolve_m({OWN, library}, runtime="libtriton_python.so").model_file) == library
    assert str(resolve_m({OWN}, runtime="libtriton_python.so").model_file) == OWN
    assert str(resolve_m({OWN, library}).model_file) == OWN


def test_the_decision_says_what_the_library_needs_and_what_is_missing():
    machine = platform.machine()
    needy = Path(sys.modules["_ctypes"].__file__).read_bytes()
    found = resolve_m({"/repo/m/libtriton_x.so": needy}, backend="x")
    (step,) = [step for step in found.steps if step.subject == "library"]
    assert step.choice == "/repo/m/libtriton_x.so"
    assert step.reason == "is not a backend: it does not export TRITONBACKEND_ModelInstanceExecute"
    assert found.library is not None
    libc = next(name for name in found.library.needed if name.startswith("libc.so"))
    assert libc in found.library.missing  # this file system has no libraries
    there = resolve_m({"/repo/m/libtriton_x.so": needy, f"/usr/lib/{machine}-linux-gnu/{libc}": ""}, backend="x")
    assert there.library is not None
    assert libc not in there.library.missing
    made = write_library(["TRITONBACKEND_ModelInstanceExecute"], "x", machine)
    assert examine_library(Path("/x.so"), FakeFiles({"/x.so": made})).describe() == "needs no other library"
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert examine_library(Path("/x.so"), FakeFiles({"/x.so": write_library(["a"], "x", other)})).describe() == (
        f"cannot be loaded: it is compiled for {other}, and this machine is {machine}"
    )
    assert examine_library(Path("/x.so"), FakeFiles({"/x.so": b"text"})).describe() == (
        "cannot be loaded: not a 64-bit little-endian ELF file"
    )


def test_the_python_library_of_another_implementation_is_not_used_and_said_so():
    found = resolve_m({OWN, "/repo/m/libtriton_python.so"})
    assert found.notices == (
        "'/repo/m/libtriton_python.so' belongs to another implementation of the Python backend and is not used",
    )


def test_a_platform_of_torch_has_no_effect_and_a_notice_says_so():
    (said,) = resolve_m({OWN}, platform="pytorch").notices
    assert said == (
        "platform 'pytorch' of model 'm' has no effect: '/repo/m/1/model.py' must define a TritonPythonModel, which may "
        "make the torch.nn.Module in `initialize` and call it in `execute`"
    )
    assert resolve_m({OWN}, platform="mine").notices == ()


@pytest.mark.parametrize(
    ("backend", "end"),
    [
        ("pyhton", "(not found)); did you mean 'python'?"),
        (
            "openvino",
            "; 'openvino' is a native backend: put its libtriton_openvino.so into one of these directories, or import the library in a model.py of backend 'python'",
        ),
        (
            "find_words",
            "(not found)); name the folder that has a folder 'find_words' with --backend-directory",
        ),
        ("vlm", "(not found)); did you mean 'vllm'?"),
        ("onnxruntim", "(not found)); did you mean 'onnxruntime'?"),
    ],
)
def test_the_error_about_a_backend_that_is_not_there_ends_with_what_may_have_been_meant(backend, end):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({"/b1/vllm/model.py", "/b2/other/model.py"}, backend=backend)
    assert caught.value.message.endswith(end)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": ""}, "must specify 'backend' for 'm'"),
        (
            {"backend": "x"},
            (
                "unable to find backend library for backend 'x', try specifying runtime on the model configuration. (looked "
                "at: /repo/m/1/libtriton_x.so (not found), /repo/m/libtriton_x.so (not found), /b1/x/libtriton_x.so (not "
                "found), /b2/x/libtriton_x.so (not found), /b1/x/model.py (not found), /b2/x/model.py (not found)); name "
                "the folder that has a folder 'x' with --backend-directory"
            ),
        ),
        (
            {"backend": "x", "runtime": "model.py"},
            (
                "unable to find Python backend based backend library 'model.py' for model 'm', searched: "
                "'/b1/x/model.py' '/b2/x/model.py'"
            ),
        ),
        (
            {"backend": "x", "runtime": "own.so"},
            "unable to find backend library 'own.so' for model 'm', searched: '/repo/m/1' '/repo/m' '/b1/x' '/b2/x'",
        ),
        (
            {"backend": "x", "runtime": "../../own.so"},
            (
                "backend library name '../../own.so' escapes backend directory '/repo/m/1', for model 'm', check model "
                "config runtime field."
            ),
        ),
        (
            {"backend": "x", "runtime": "/own.so"},
            (
                "backend library name '/own.so' escapes backend directory '/repo/m/1', for model 'm', check model "
                "config runtime field."
            ),
        ),
        ({"filename": "model.txt"}, "Model name must end with '.py'. Model name is \"model.txt\"."),
        ({}, "Failed to preinitialize Python stub: Python model file not found in '/repo/m/1/model.py'"),
        (
            {"backend": "../x"},
            "backend '../x' of model 'm' must be the name of a directory in a backend directory, not a path",
        ),
    ],
)
def test_a_missing_file_has_the_text_of_the_reference(options, text):
    with pytest.raises(ResolutionError) as caught:
        resolve_m(set(), **options)
    assert caught.value.message == text


def test_a_shared_backend_is_run_with_the_settings_of_python_and_its_code_reads_its_own():
    found = resolve_m(
        {SHARED},
        backend="x",
        backend_configs={"": {"k": "all", "g": "1"}, "python": {"k": "python"}, "x": {"k": "x", "own": "1"}},
        auto_complete=False,
    )
    assert dict(found.backend_config) == {
        "auto-complete-config": "false",
        "backend-directory": "/b2",
        "min-compute-capability": "6.000000",
        "k": "python",
        "g": "1",
        "default-max-batch-size": "4",
    }
    assert list(found.backend_config)[-1] == "default-max-batch-size"
    assert found.steps[-1].reason.endswith("; the code of 'x' reads its own: k=x, own=1")
    assert dict(found.settings) == {"k": "x", "g": "1", "own": "1"}


def test_a_given_default_max_batch_size_replaces_the_injected_one():
    found = resolve_m({OWN}, backend_configs={"": {"default-max-batch-size": "16"}})
    assert found.backend_config["default-max-batch-size"] == "16"


def test_a_folder_of_a_backend_without_library_or_code_is_no_misspelt_name():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN, "/b1/custom/README.md"}, backend="custom")
    assert caught.value.message.endswith(
        "(not found)); the folder '/b1/custom' has neither libtriton_custom.so nor model.py"
    )
