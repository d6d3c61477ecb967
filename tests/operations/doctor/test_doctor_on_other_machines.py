"""`naiad doctor` on a machine that is not the one that will serve: without its GPU, and with a repository from git."""

from __future__ import annotations

import json

import pytest
from operations.doctor.repository import CODE, IO, ensemble, model, write

from naiad.cli.main import main
from naiad.core import gpus

ON_GPU = f'backend: "python"\n{IO}\ninstance_group {{ kind: KIND_GPU }}\n'


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpus, "_load", lambda: (None, ()))


@pytest.fixture
def examine(tmp_path, capsys):
    """Run the doctor on the repository of the test; its exit code, its findings by code, and its checklist."""

    def run(*flags):
        ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--env-store={tmp_path / 'store'}")
        status = main(["doctor", str(tmp_path / "models"), *ports, "--json", "--from-triton", *flags])
        document = json.loads(capsys.readouterr().out)
        return status, {found["code"]: found for found in document["findings"]}, document["migration"]

    return run


def add_on_gpu(folder, code="import nunpy\n"):
    write(folder / "models" / "m", model(code + CODE, ON_GPU))


def test_a_model_for_a_gpu_is_examined_where_there_is_none(tmp_path, examine):
    add_on_gpu(tmp_path)

    status, found, checklist = examine()

    assert status == 1
    assert found["no-gpu"]["advice"] == (
        "serve it where there is a GPU, and examine it for that with --assume-gpus=1; to try it here on the CPU, start "
        "with --gpu-fallback=cpu"
    )
    assert "missing-import" in found, "its code was examined all the same"
    assert checklist[0]["kind"] == "plain"


@pytest.mark.parametrize("flag", ["--assume-gpus=1", "--gpu-fallback=cpu"])
def test_a_machine_with_gpus_can_be_assumed(flag, tmp_path, examine):
    add_on_gpu(tmp_path, code="")

    status, found, _ = examine(flag)

    assert (status, found) == (0, {})


def test_an_assumed_machine_may_still_have_too_few_gpus(tmp_path, examine):
    add_on_gpu(tmp_path, code="")
    config = tmp_path / "models" / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_GPU gpus: [ 3 ]"))

    status, found, _ = examine("--assume-gpus=2")

    assert status == 1
    assert "specifies invalid or unsupported gpu id 3" in found["config"]["message"]


def test_an_invalid_number_of_gpus_is_rejected(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--assume-gpus=many"]) == 2
    assert "assume-gpus" in capsys.readouterr().err


def test_the_folder_of_an_ensembles_version_which_git_does_not_keep_is_a_command_to_run(tmp_path, examine):
    write(tmp_path / "models" / "m", model())
    write(tmp_path / "models" / "ens", {"config.pbtxt": ensemble("m")["config.pbtxt"]})

    status, found, _ = examine()

    assert status == 1
    assert found["versions"]["advice"] == f"run `mkdir {tmp_path}/models/ens/1`"


def test_what_a_template_has_left_is_named_with_its_place(tmp_path, examine):
    write(tmp_path / "models" / "m", model())
    config = tmp_path / "models" / "m" / "config.pbtxt"
    config.write_text(
        f'{config.read_text()}\n# ${{a_comment}}\nparameters {{ key: "p" value {{ string_value: "${{engine_dir}}" }} }}\n'
    )
    line = len(config.read_text().splitlines())

    status, found, _ = examine()

    assert status == 0
    assert found["placeholder"]["message"] == (
        "'${engine_dir}' is a placeholder of a template, which the model gets as it is"
    )
    assert found["placeholder"]["where"] == f"{config}:{line}"

    config.write_text(config.read_text() + "max_batch_size: ${max_batch_size}\n")
    status, found, _ = examine()
    assert status == 1
    assert "'${max_batch_size}' is a placeholder, and so are ${engine_dir}: fill in" in found["config"]["message"]
