"""Labels of classes are read from the model's directory and nowhere else."""

from __future__ import annotations

import pytest

from naiad.config.model.model_config import ModelConfig, TensorConfig
from naiad.core.errors import Code, RepositoryError
from naiad.models.repository.read import read_labels
from naiad.protocol.datatypes import Datatype


def config(**labels):
    return ModelConfig(
        name="m",
        outputs=tuple(
            TensorConfig(name=name, datatype=Datatype.FP32, dims=(4,), label_filename=file)
            for name, file in labels.items()
        ),
    )


def refused(labels, directory):
    with pytest.raises(RepositoryError) as caught:
        read_labels(config(OUT=labels), directory)
    return caught.value


def test_every_line_is_a_label(tmp_path):
    (tmp_path / "a.txt").write_text("cat\ndog\n\nträd", "utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("one\r\ntwo\r\n", "utf-8")

    labels = read_labels(config(A="a.txt", B="sub/b.txt", C=""), tmp_path)

    assert labels == {"A": ("cat", "dog", "", "träd"), "B": ("one", "two")}


def test_a_missing_file_is_refused(tmp_path):
    error = refused("none.txt", tmp_path)

    assert error.message == f"failed to open text file for read {tmp_path}/none.txt: No such file or directory"
    assert error.code is Code.INTERNAL


@pytest.mark.parametrize("path", ["../secret.txt", "sub/../../secret.txt", "/etc/hostname", "link.txt"])
def test_a_file_outside_the_models_directory_is_refused(tmp_path, path):
    directory = tmp_path / "m"
    directory.mkdir()
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (directory / "link.txt").symlink_to(tmp_path / "secret.txt")

    error = refused(path, directory)

    assert (
        error.message
        == f"label file path '{directory / path}' for output 'OUT' in model 'm' is outside model directory"
    )
    assert error.code is Code.UNSUPPORTED


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"\xff")

    assert refused("labels.txt", tmp_path).message == (
        f"label file {tmp_path}/labels.txt for output 'OUT' in model 'm' is not UTF-8 text"
    )
