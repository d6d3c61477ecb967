"""From a model's files to its configuration, and what is said of one that cannot be read."""

from __future__ import annotations

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.gpu_placement import GpuPlacement
from naiad.config.model.text import parse_json
from naiad.core.errors import Code, ConfigError
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import config_path, prepare_config, read_config

IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'


@pytest.fixture
def make(tmp_path):
    """Make a model with a `model.py` in version 1 and other files by path."""

    def make_model(name="m", files=None, *, model_py=True):
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True)
        if model_py:
            (directory / "1" / "model.py").touch()
        for path, text in (files or {}).items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, "utf-8")
        return ModelFiles(name=name, repository=tmp_path, directory=directory)

    return make_model


def refused(files, **options):
    with pytest.raises(ConfigError) as caught:
        read_config(files, **{"strict": False} | options)
    return caught.value.message


def test_a_configuration_is_filled_in_normalised_and_named(make):
    message = read_config(make(files={"config.pbtxt": IO}), strict=True)

    assert (message.name, message.backend, message.default_model_filename) == ("m", "python", "model.py")
    assert message.version_policy.latest.num_versions == 1
    assert [(group.name, group.count) for group in message.instance_group] == [("m", 1)]


def test_a_configuration_that_was_not_fetched_says_so(make):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 130\n"
    files = make(files={"config.pbtxt": pointer})
    assert refused(files) == (
        f"cannot read {config_path(files)}: it is a Git LFS pointer instead of the file; run `git lfs pull` in the "
        "repository that it comes from"
    )


@pytest.mark.parametrize("field", ["name", "platform", "backend", "default_model_filename"])
def test_a_name_left_as_a_placeholder_of_a_template_is_refused(make, field):
    files = make(files={"config.pbtxt": f'{field}: "${{model_{field}}}"\n{IO}'})
    assert refused(files) == (
        f"cannot use {config_path(files)}: its {field} is the placeholder '${{model_{field}}}'; fill in the template "
        "and save it under this name"
    )


def test_a_missing_configuration_is_told_from_the_files_and_left_to_the_model(make):
    files = make()

    message = read_config(files, strict=False)

    assert not config_path(files).exists()
    assert (message.backend, len(message.input)) == ("python", 0)


def test_a_missing_configuration_is_refused_where_nothing_may_be_left_to_the_model(make):
    files = make()

    with pytest.raises(ConfigError) as caught:
        read_config(files, strict=True)

    assert caught.value.message == (
        "model configuration is not provided for model 'm': failed to open text file for read "
        f"{files.directory}/config.pbtxt: No such file or directory"
    )
    assert caught.value.code is Code.NOT_FOUND


def test_inputs_and_outputs_are_checked_here_only_if_the_model_will_not_complete_them(make):
    files = make(files={"config.pbtxt": 'input { name: "x" }'})

    assert read_config(files, strict=False).input[0].name == "x"
    assert refused(files, strict=True) == "model input 'x' must specify 'data_type' for m"


def test_a_configuration_can_be_chosen_by_name_and_falls_back(make):
    files = make(files={"config.pbtxt": "max_batch_size: 1", "configs/big.pbtxt": "max_batch_size: 64"})

    assert read_config(files, strict=False).max_batch_size == 1
    assert read_config(files, strict=False, config_name="big").max_batch_size == 64
    assert read_config(files, strict=False, config_name="none").max_batch_size == 1
    assert config_path(files, "big") == files.directory / "configs" / "big.pbtxt"


def test_a_broken_configuration_names_its_place(make):
    files = make(files={"config.pbtxt": 'name: "m"\n\n  max_batchsize: 3\n'})

    assert refused(files) == (
        f"{files.directory}/config.pbtxt:3:3: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"
    )


def test_a_configuration_that_is_not_text_is_refused(make):
    files = make()
    (files.directory / "config.pbtxt").write_bytes(b'name: "\xff"')

    assert refused(files) == f"{files.directory}/config.pbtxt: not UTF-8 text: byte 0xff at 7"


def test_a_configuration_that_cannot_be_opened_is_refused(make):
    files = make()
    (files.directory / "config.pbtxt").mkdir()

    assert refused(files) == f"failed to open text file for read {files.directory}/config.pbtxt: Is a directory"


def test_a_model_must_be_named_as_its_directory(make):
    files = make(files={"config.pbtxt": 'name: "other"'})

    assert refused(files) == "unexpected directory name 'm' for model 'other', directory name must equal model name"


def test_instance_groups_are_checked(make):
    files = make(files={"config.pbtxt": "instance_group { kind: KIND_GPU }"})

    assert refused(files) == (
        "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs: it found none that NVIDIA's "
        "driver reports and CUDA_VISIBLE_DEVICES leaves; use KIND_CPU, or no kind for a GPU where there is one, or start "
        "with --gpu-fallback=cpu, which places such groups on the CPU"
    )


def test_the_name_determines_the_backend_where_no_file_does(make):
    message = read_config(make("sum.my_backend", model_py=False), strict=False)

    assert (message.backend, message.default_model_filename) == ("my_backend", "model.my_backend")


def test_a_model_whose_backend_is_unknown_is_refused(make):
    files = make(model_py=False)
    missing = f" '{files.directory}/1/model.py' does not exist: "

    why = refused(files)

    assert why.startswith("Invalid model name: Could not determine backend for model 'm'")
    assert why.endswith(f"{missing}a model in Python has its code there.")
    (files.directory / "model.py").touch()
    assert refused(files).endswith(f"{missing}move '{files.directory}/model.py' there.")


@pytest.mark.parametrize("folder", ["inner", "models/inner"])
def test_a_folder_that_holds_models_may_be_the_repository_that_was_meant(make, folder):
    files = make(model_py=False, files={f"{folder}/config.pbtxt": ""})

    model = files.directory / folder
    assert refused(files).endswith(f" There is a model in '{model}', so '{model.parent}' may be the model repository.")


def test_a_model_in_the_place_of_the_repository_is_recognised(make):
    model = make(files={"config.pbtxt": ""}).directory

    version = ModelFiles(name="1", repository=model, directory=model / "1")

    assert refused(version).endswith(
        f" '{model}' looks like a model: the folder above it, '{model.parent}', may be the model repository."
    )


@pytest.mark.parametrize("other", [".git", "configs", "00"])
def test_files_are_looked_for_in_a_version_directory_whatever_else_is_there(make, other):
    files = make(files={f"{other}/model.onnx": ""})

    assert read_config(files, strict=False).backend == "python"


def test_the_first_version_by_name_determines_the_backend(make):
    files = make(files={"10/model.onnx": "", "2/model.plan": ""})

    assert read_config(files, strict=False).backend == "python"
    (files.directory / "1" / "model.py").unlink()
    (files.directory / "1").rmdir()
    assert read_config(files, strict=False).backend == "onnxruntime"


def test_an_override_is_prepared_as_a_file_is(make):
    files = make(files={"config.pbtxt": "max_batch_size: 1"})

    message = prepare_config(parse_json('{"max_batch_size": 8}', "config override"), files, strict=False)

    assert (message.name, message.backend, message.max_batch_size) == ("m", "python", 8)


def test_groups_for_gpus_are_placed_on_the_cpu_where_there_is_none_if_that_is_asked_for(make):
    files = make(files={"config.pbtxt": "instance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }"})

    (group,) = read_config(files, strict=False, gpus=GpuPlacement(lambda: 0, falls_back=True)).instance_group
    assert (group.kind, group.count, list(group.gpus)) == (pb.ModelInstanceGroup.KIND_CPU, 2, [])

    (group,) = read_config(files, strict=False, gpus=GpuPlacement(lambda: 1, falls_back=True)).instance_group
    assert (group.kind, list(group.gpus)) == (pb.ModelInstanceGroup.KIND_GPU, [0])
