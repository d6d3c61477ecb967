"""`naiad.testing`: a model in the test's own process behaves, and fails, as it would in a server."""

import builtins
import contextlib
import gc
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from embedded.testing.models import write_model
from naiad_stub.native.elf import write_library
from support.waiting import until

from naiad.testing import ConfigError, InvalidRequestError, LogRecord, ModelError, NaiadError, Request, load

DOUBLE = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 2)], parameters={"n": len(requests)}
            )
            for request in requests
        ]
"""
ECHO = """
    def execute(self, requests):
        (request,) = requests
        self.request = request
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, "f4"))])]
"""


class Double:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy() * 2)]) for r in requests]


def test_a_directory_is_run_with_its_configuration(tmp_path):
    with load(write_model(tmp_path, "double", DOUBLE)) as model:
        response = model.infer({"IN": [1, 2.5]})

    assert dict(response)["OUT"].tolist() == [2, 5]
    assert response["OUT"].dtype == np.float32
    assert response.parameters == {"n": 1}
    assert model.config["name"] == "double"
    assert repr(response) == "<Response OUT: [2]>"


def test_a_class_is_run_without_a_configuration():
    with load(Double) as model:
        assert model.infer({"x": np.array([1, 2])})["y"].tolist() == [2, 4]
        assert model.infer({"x": 1.5})["y"].tolist() == 3


def test_initialize_gets_the_seven_arguments_of_a_server(tmp_path):
    folder = write_model(tmp_path, "m", "def initialize(self, args):\n    self.args = args\n", DOUBLE, batch=4)

    with load(folder, arguments={"model_instance_kind": "GPU"}) as model:
        args = model.instance.args

    config = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "GPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(folder),
        "model_version": "1",
        "model_name": "m",
    }
    assert (config["max_batch_size"], config["input"][0]["data_type"]) == (4, "TYPE_FP32")


def test_a_model_completes_its_configuration(tmp_path):
    complete = """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "A", "data_type": "TYPE_INT64", "dims": [2]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [2]})
        return config
    """
    folder = write_model(tmp_path, "completes", complete, DOUBLE, config="")

    with load(folder) as model:
        assert model.config["max_batch_size"] == 8
        assert model.infer({"A": [[1, 2]]})["OUT"].tolist() == [[2, 4]]
        with pytest.raises(InvalidRequestError, match=r"unexpected shape for input 'A' for model 'completes'"):
            model.infer({"A": [[1, 2, 3]]})


def test_a_wrong_answer_of_auto_complete_config_is_told_in_the_servers_words(tmp_path):
    folder = write_model(tmp_path, "m", "@staticmethod\ndef auto_complete_config(config):\n    return 3\n", DOUBLE)

    with pytest.raises(ModelError) as caught:
        load(folder)

    assert caught.value.message == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
    )


def test_a_contradiction_of_the_configuration_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="'max_batch_size' must be non-negative value for m"):
        load(write_model(tmp_path, "m", DOUBLE, batch=-1))


def test_an_exception_of_initialize_is_told_in_the_servers_words_and_kept(tmp_path):
    folder = write_model(tmp_path, "m", "def initialize(self, args):\n    raise OSError('no weights')\n", DOUBLE)

    with pytest.raises(ModelError) as caught:
        load(folder)

    assert caught.value.message == f"OSError: no weights\n\nAt:\n  {folder}/1/model.py(7): initialize\n"
    assert isinstance(caught.value.__cause__, OSError)


def test_an_exception_of_execute_fails_the_batch_in_the_servers_words(tmp_path):
    folder = write_model(tmp_path, "m", "def execute(self, requests):\n    raise KeyError('k')\n")

    with load(folder) as model:
        (first,), (second,) = model.execute([Request(inputs={"IN": [1]}), Request(inputs={"IN": [2]})])
        with pytest.raises(ModelError) as caught:
            model.infer({"IN": [1]})

    expected = (
        "Failed to process the request(s) for model 'm_0', message: KeyError: 'k'\n\nAt:\n"
        f"  {folder}/1/model.py(7): execute\n"
    )
    assert first.error.message == second.error.message == caught.value.message == expected
    assert isinstance(caught.value.__cause__, KeyError)
    assert [record.level for record in model.logs] == ["ERROR", "ERROR"]


def test_an_error_of_one_request_has_its_code():
    class Refuses:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not me", pb_utils.TritonError.NOT_FOUND))]

    with load(Refuses) as model, pytest.raises(ModelError) as caught:
        model.infer({"x": [1]})

    assert (caught.value.message, caught.value.code.name) == ("not me", "NOT_FOUND")
    assert caught.value.__cause__ is None


def test_the_model_sees_what_the_request_says(tmp_path):
    with load(write_model(tmp_path, "echo", ECHO)) as model:
        model.infer(
            {"IN": [1]},
            request_id="r1",
            correlation_id="s",
            flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            parameters={"p": 1.5, "q": "x"},
            requested_outputs=["OUT"],
            timeout=7,
            is_cancelled=True,
        )
        request = model.instance.request
        told = (request.request_id(), request.correlation_id(), request.flags(), request.timeout())
        assert told == ("r1", "s", 1, 7)
        assert json.loads(request.parameters()) == {"p": 1.5, "q": "x"}
        assert request.requested_output_names() == {"OUT"}
        assert request.is_cancelled()
        model.infer({"IN": [1]})
        assert model.instance.request.requested_output_names() == {"OUT", "MORE"}
        assert not model.instance.request.is_cancelled()


def test_a_request_that_does_not_fit_is_refused_before_the_model_sees_it(tmp_path):
    with load(write_model(tmp_path, "double", DOUBLE)) as model:
        with pytest.raises(InvalidRequestError, match="inference input 'IN' data-type is 'INT64', but model 'double'"):
            model.infer({"IN": np.array([1])})
        with pytest.raises(InvalidRequestError, match="missing required input"):
            model.infer({})
        with pytest.raises(InvalidRequestError, match="unexpected inference output 'NO' for model 'double'"):
            model.infer({"IN": [1]}, requested_outputs=["NO"])
        for value in ("a", [[1], [1, 2]]):
            with pytest.raises(InvalidRequestError, match=r"^'IN' cannot be made an array of float32: "):
                model.infer({"IN": value})


def test_outputs_that_were_not_asked_for_are_left_out(tmp_path):
    both = """
    def execute(self, requests):
        names = ("OUT", "MORE", "UNKNOWN")
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, np.ones(1, "f4")) for name in names])]
    """
    with load(write_model(tmp_path, "both", both)) as model:
        assert list(model.infer({"IN": [1]})) == ["OUT", "MORE"]
        response = model.infer({"IN": [1]}, requested_outputs=["MORE"])

    assert list(response) == ["MORE"]
    with pytest.raises(KeyError, match="no output 'OUT'; there are: MORE"):
        response["OUT"]


def test_text_arrives_as_bytes_and_inputs_may_be_written_to():
    class Shouts:
        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            array[0] = array[0].upper()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)])]

    given = np.array([b"a", b"b"], object)
    with load(Shouts) as model:
        assert model.infer({"x": given})["y"].tolist() == [b"A", b"b"]
        assert model.infer({"x": ["\u00e9", "b"]})["y"].tolist() == ["\u00e9".encode().upper(), b"b"]
    assert given.tolist() == [b"a", b"b"]


def test_a_batch_is_given_to_execute_at_once(tmp_path):
    with load(write_model(tmp_path, "double", DOUBLE)) as model:
        answers = model.execute([Request(inputs={"IN": [number]}) for number in range(3)])

    assert [response["OUT"].tolist() for (response,) in answers] == [[0], [2], [4]]
    assert answers[0][0].parameters == {"n": 3}


def test_logs_are_kept_with_the_models_own_place(tmp_path):
    logs = """
    def execute(self, requests):
        pb_utils.Logger.log_warn("careful")
        pb_utils.Logger.log("more", pb_utils.Logger.VERBOSE)
        return [pb_utils.InferenceResponse([])]
    """
    folder = write_model(tmp_path, "logs", logs)

    with load(folder) as model:
        model.infer({"IN": [1]})

    place = f"{folder}/1/model.py"
    assert model.logs == [LogRecord("WARNING", "careful", place, 7), LogRecord("VERBOSE", "more", place, 8)]


def test_finalize_is_called_once_and_its_exception_is_only_logged():
    class Finalizes:
        count = 0

        def finalize(self):
            self.count += 1
            raise ValueError("late")

    with load(Finalizes) as model:
        pass
    model.close()

    assert model.instance.count == 1
    assert "finalize of 'model" in model.logs[0].message
    assert model.logs[0].level == "INFO"
    with pytest.raises(ValueError, match="'model' is closed"):
        model.infer({})


def test_two_models_with_modules_of_the_same_names_live_side_by_side(tmp_path):
    methods = """
    def execute(self, requests):
        from . import helper as late
        import helper
        assert helper.WHO == helper_at_import.WHO == late.WHO == pb_utils.get_model_dir().split("/")[-2]
        return [pb_utils.InferenceResponse([], parameters={"who": late.WHO})]
    """
    for name in ("first", "second"):
        write_model(tmp_path, name, methods, head="import helper as helper_at_import\n")
        (tmp_path / name / "1" / "helper.py").write_text(f"WHO = {name!r}\n")
    path, modules = list(sys.path), set(sys.modules)

    with load(tmp_path / "first") as first, load(tmp_path / "second") as second:
        for model in (first, second, first):
            assert model.infer({"IN": [1]}).parameters == {"who": model.name}

    assert sys.path == path
    assert not {"1.model", "helper", "1"} & (set(sys.modules) - modules)
    assert not list(tmp_path.rglob("__pycache__"))


FAILURES = {
    "missing package": ("import no_such_package\n", ""),
    "syntax error": ("def broken(:\n", ""),
    "exception": ("raise ValueError('at import')\n", ""),
    "exit": ("import sys\nsys.exit(3)\n", ""),
    "no class": ("TritonPythonModel = None\n", "del TritonPythonModel\n"),
    "initialize": ("", "TritonPythonModel.initialize = lambda self, args: 1 / 0\n"),
    "constructor": ("", "TritonPythonModel.__init__ = lambda self: 1 / 0\n"),
    "configuration": ("", "TritonPythonModel.auto_complete_config = staticmethod(lambda config: None)\n"),
}
CHANGES = """
import builtins, os, sys, types
import helper

os.environ["OF_THE_FAILED_MODEL"] = os.environ["HOME"] = "changed"
os.environ.pop("PATH")
os.chdir("/")
sys.path.insert(0, "/of-the-failed-model")
sys.modules["made_by_hand"] = sys.modules["json"] = types.ModuleType("made_by_hand")


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        assert name != "of_the_failed_model"


sys.meta_path.insert(0, Finder)
sys.meta_path.append(Finder())
builtins.__import__ = lambda *args, import_=builtins.__import__, **named: import_(*args, **named)
"""


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("beside_another", [False, True])
def test_a_model_that_cannot_be_loaded_leaves_nothing_in_the_process(tmp_path, monkeypatch, kind, beside_another):
    head, tail = FAILURES[kind]
    sound = write_model(tmp_path, "sound", DOUBLE, head="from helper import VALUE\n")
    broken = write_model(tmp_path, "broken", DOUBLE.replace("* 2", "* 666"))
    for folder in (sound, broken):
        (folder / "1" / "helper.py").write_text(f"VALUE = {folder.name!r}\n")
    file = broken / "1" / "model.py"
    file.write_text(CHANGES + head + file.read_text() + tail)
    monkeypatch.setenv("HOME", "/home/of-the-test")
    load(
        sound
    ).close()  # what the first model of a process brings along, such as a hook for imports, stays for all others
    with load(sound) if beside_another else contextlib.nullcontext():
        state, files = _state_of_process(), _open_files()

        for _ in range(2):
            with pytest.raises((ModelError, NaiadError, SystemExit)) as failure:
                load(broken)

            del failure
            gc.collect()
            after = _state_of_process()
            for name in after["modules"].keys() - state["modules"].keys():
                if _is_of_library(
                    sys.modules[name], tmp_path
                ):  # imported for the first time, as by the words of an error
                    del after["modules"][name]
            assert {name: after[name] for name in after if after[name] != state[name]} == {}
            until(
                lambda: _open_files() <= files, "the end of all files that were opened"
            )  # other tests' files may end, too
        with load(sound) as model:
            assert model.infer({"IN": [1]})["OUT"].tolist() == [2]
            assert model.module.VALUE == "sound"


def _state_of_process():
    return {
        "path": list(sys.path),
        "modules": {name: id(module) for name, module in sys.modules.items()},
        "hooks": [*sys.meta_path, *sys.path_hooks, builtins.__import__],
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "bytecode": sys.dont_write_bytecode,
    }


def _open_files() -> set[str]:
    found = set()
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile, as the one of the listing
            found.add(str(descriptor.readlink()))
    return found


def _is_of_library(module: types.ModuleType, models: Path) -> bool:
    """Whether a module was imported, and not from the folder of the models."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and not any(place.startswith(str(models)) for place in places)


def test_paths_that_a_model_puts_first_do_not_displace_others(tmp_path):
    folder = write_model(tmp_path, "first", DOUBLE, head="import sys\nsys.path.insert(0, '/of-the-model')\n")
    path = list(sys.path)

    with load(folder), load(write_model(tmp_path, "second", DOUBLE)) as second:
        assert second.infer({"IN": [1]})["OUT"].tolist() == [2]

    assert sys.path == path


def test_a_shared_backends_code_is_found(tmp_path):
    (tmp_path / "backends" / "doubles").mkdir(parents=True)
    folder = write_model(tmp_path, "user", DOUBLE, more='backend: "doubles"')
    (folder / "1" / "model.py").rename(tmp_path / "backends" / "doubles" / "model.py")

    with load(folder, backend_directories=[tmp_path / "backends"]) as model:
        assert model.infer({"IN": [4]})["OUT"].tolist() == [8]
    with pytest.raises(NaiadError, match="doubles"):
        load(folder)


def test_a_shared_backend_is_not_confused_with_another_module_called_model(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text("is_another = True\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    other = types.ModuleType("model")
    monkeypatch.setitem(sys.modules, "model", other)
    (tmp_path / "backends" / "doubles").mkdir(parents=True)
    folder = write_model(tmp_path, "user", DOUBLE, more='backend: "doubles"')
    (folder / "1" / "model.py").rename(tmp_path / "backends" / "doubles" / "model.py")

    with load(folder, backend_directories=[tmp_path / "backends"]) as model:
        assert model.infer({"IN": [4]})["OUT"].tolist() == [8]
    assert sys.modules["model"] is other


def test_a_version_may_be_named(tmp_path):
    folder = write_model(tmp_path, "m", DOUBLE)
    (folder / "3").mkdir()
    (folder / "3" / "model.py").write_text((folder / "1" / "model.py").read_text().replace("* 2", "* 3"))

    with load(folder) as latest, load(folder, version=1) as first:
        assert latest.infer({"IN": [1]})["OUT"].tolist() == [3]
        assert first.infer({"IN": [1]})["OUT"].tolist() == [2]
    with pytest.raises(NaiadError, match="model 'm' has no version 2; it has 1, 3"):
        load(folder, version=2)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(NaiadError, match=f"cannot load a model from '{tmp_path}/none': it does not exist"):
        load(tmp_path / "none")


def test_is_ready_is_asked_of_the_model():
    class Ready:
        answer: object = False

        def is_ready(self):
            return self.answer

    with load(Ready) as model, load(Double) as other:
        assert model.is_ready() is False
        assert other.is_ready() is True
        model.instance.answer = 1
        with pytest.raises(TypeError, match=r"is_ready\(\) must return a boolean value"):
            model.is_ready()


def test_a_failed_test_inside_a_model_is_the_tests_own():
    class Fails:
        def execute(self, requests):
            pytest.fail("seen")

    with load(Fails) as model, pytest.raises(pytest.fail.Exception, match="seen"):
        model.infer({"x": [1]})


def test_a_native_backend_is_refused_with_the_library_and_what_to_do(tmp_path):
    (tmp_path / "backends" / "own").mkdir(parents=True)
    library = tmp_path / "backends" / "own" / "libtriton_own.so"
    library.write_bytes(write_library(["TRITONBACKEND_ModelInstanceExecute"], library.name))
    folder = write_model(tmp_path, "user", DOUBLE, more='backend: "own"')
    (folder / "1" / "model.py").unlink()

    with pytest.raises(NaiadError) as raised:
        load(folder, backend_directories=[tmp_path / "backends"])
    assert raised.value.message == (
        f"cannot test model 'user' in this process: its backend is the native library '{library}'; run it with "
        f"`naiad run {folder}`"
    )


def test_an_ensemble_is_refused_with_what_tests_it(tmp_path):
    folder = write_model(tmp_path, "both", DOUBLE)
    steps = 'step [{ model_name: "a" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }]'
    (folder / "config.pbtxt").write_text(
        f"""platform: "ensemble"
        input [{{ name: "x" data_type: TYPE_FP32 dims: [1] }}]
        output [{{ name: "y" data_type: TYPE_FP32 dims: [1] }}]
        ensemble_scheduling {{ {steps} }}"""
    )

    with pytest.raises(NaiadError) as raised:
        load(folder)
    assert raised.value.message == (
        "cannot test model 'both' in this process: an ensemble has no code; test its models, and run the whole with "
        f"`naiad run {folder}` or `naiad.Server`"
    )
