"""What the parameters of a load request say."""

from __future__ import annotations

import errno
import gc
import json
import os
from pathlib import Path

import pytest

from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.models.repository import override as override_module
from naiad.models.repository.override import check_model_name, parse_override
from naiad.models.repository.read import read_config

CONFIG = '{"backend": "python", "max_batch_size": 2}'


def test_no_parameters_are_no_override():
    assert parse_override("m", {}) is None


def test_a_configuration_alone_leaves_the_files():
    override = parse_override("m", {"config": CONFIG})
    assert override is not None
    assert (override.config.max_batch_size, dict(override.contents)) == (2, {})


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"input": [{}] * 4097}, "'input' has 4097 elements"),
        ({"parameters": {str(number): {} for number in range(4097)}}, "'parameters' has 4097 elements"),
        ({"input": [{"dims": [1] * 5000}]}, "'dims' has 5000 elements"),
        ({str(number): 1 for number in range(4097)}, "the configuration has 4097 elements"),
    ],
)
def test_a_list_or_map_that_no_model_has_is_refused_before_it_is_parsed(fields, name, monkeypatch):
    monkeypatch.setattr(override_module, "parse_mapping", pytest.fail)
    with pytest.raises(
        InvalidRequestError, match=f"{name}, and a list or map of a configuration in a request may have 4096"
    ):
        parse_override("m", {"config": json.dumps(fields)})


def test_a_configuration_that_is_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidRequestError, match="it has 1048577 characters, the limit is 1048576"):
        parse_override("m", {"config": "[" * ((1 << 20) + 1)})


def test_files_are_written_beside_the_configuration_and_deleted_with_the_directory():
    override = parse_override(
        "m",
        {"config": CONFIG, "file:1/model.py": b"code", "file:./1/data/../deep/x": b"\0\xff", "file:labels.txt": b""},
    )
    assert override is not None
    directory = override.make_directory()
    files = directory.files
    found = {str(path.relative_to(files.directory)) for path in files.directory.rglob("*") if path.is_file()}
    assert found == {"config.pbtxt", "1/model.py", "1/deep/x", "labels.txt"}
    assert (files.directory / "1/deep/x").read_bytes() == b"\0\xff"
    assert read_config(files, strict=False).max_batch_size == 2
    root = files.repository
    del directory
    gc.collect()
    assert not root.exists()


@pytest.mark.parametrize("path", ["1/model.py", "/1/model.py", "//1/model.py", "///1/model.py"])
def test_a_path_with_leading_slashes_is_relative_to_the_models_directory(path):
    override = parse_override("m", {"config": CONFIG, f"file:{path}": b"code"})
    assert override is not None
    assert dict(override.contents) == {"1/model.py": b"code"}


@pytest.mark.parametrize(
    "text",
    [
        "{'backend': 'python', 'max_batch_size': 2}",
        '{backend: "python", max_batch_size: 2,}',
        "{ \"backend\": \"python\", 'parameters': {'k': {string_value: 'it\\'s \"quoted\"',},}, maxBatchSize: 2, }",
    ],
)
def test_a_configuration_may_be_in_the_lenient_json_of_protobuf(text):
    override = parse_override("m", {"config": text})
    assert override is not None
    assert (override.config.backend, override.config.max_batch_size) == ("python", 2)
    assert override.config.parameters["k"].string_value == ('it\'s "quoted"' if "quoted" in text else "")


def test_lists_in_lenient_json_may_end_with_a_comma():
    override = parse_override("m", {"config": "{input: [{name: 'IN', data_type: 'TYPE_FP32', dims: [1, -1,],},]}"})
    assert override is not None
    assert list(override.config.input[0].dims) == [1, -1]


@pytest.mark.parametrize(
    "text", ["{'a'}", "{a b}", "{,}", "[,]", "{backend: python}", "{'backend': 'x}", "{a:1,,}", "'"]
)
def test_text_that_is_not_even_lenient_json_is_refused(text):
    with pytest.raises(NaiadError, match=r"Invalid config override:1:.*not JSON"):
        parse_override("m", {"config": text})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"file:1/model.py": b""}, "Load parameter 'config' must be specified for model file override"),
        ({"other": "x"}, "Unrecognized load parameter 'other' with type 'STRING'"),
        ({"other": b"x"}, "Unrecognized load parameter 'other' with type 'BYTES'"),
        ({"file:1/model.py": "text"}, "Unrecognized load parameter 'file:1/model.py' with type 'STRING'"),
        ({"config": "{"}, "Invalid config override:1:2: not JSON"),
        ({"config": '{"nothing": 1}'}, "Invalid config override: ModelConfig has no field 'nothing'"),
        *(
            (
                {"config": "{}", f"file:{path}": b""},
                f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory.",
            )
            for path, normal in (
                ("../x", "../x"),
                ("1/", "1"),
                ("1/../../x", "../x"),
                ("/../x", "../x"),
                ("//", "."),
                ("", "."),
                ("1/..", "."),
                ("..", ".."),
            )
        ),
        (
            {"config": "{}", f"file:1/{'ü' * 128}.bin": b""},
            f"Invalid file path '1/{'ü' * 128}.bin': a name in it may have 255 bytes, and '{'ü' * 20}...' has 260",
        ),
        (
            {"config": "{}", f"file:{'a/' * 2000}model.py": b""},
            f"Invalid file path '{'a/' * 20}...': it has 2000 folders; at most 64 are allowed",
        ),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(NaiadError) as raised:
        parse_override("m", parameters)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("1", "1/model.py"), "cannot use file parameter 'file:1/model.py': '1' is a file of the model"),
        (("1/a/b/c", "1/a"), "cannot use file parameter 'file:1/a/b/c': '1/a' is a file of the model"),
        (("config.pbtxt/x",), "cannot use file parameter 'file:config.pbtxt/x': 'config.pbtxt' is a file of the model"),
    ],
)
def test_a_file_in_the_way_of_another_is_refused(paths, message):
    with pytest.raises(NaiadError) as raised:
        parse_override("m", {"config": CONFIG, **{f"file:{path}": b"" for path in paths}})
    assert raised.value.message == f"{message}, so it cannot be a folder; change one of the paths"


def test_no_path_of_the_server_is_in_the_error_for_files_that_cannot_be_written(monkeypatch):
    def fail(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    override = parse_override("m", {"config": CONFIG, "file:1/model.py": b""})
    monkeypatch.setattr(Path, "write_bytes", fail)

    with pytest.raises(NaiadError) as raised:
        override.make_directory()
    assert raised.value.message == "cannot write the files given for 'm': No space left on device"


@pytest.mark.parametrize("name", ["..", " ..", ".", "a/b", "/a", "../a", "a\0b"])
def test_names_that_lead_out_of_the_repository_are_refused(name):
    with pytest.raises(InvalidRequestError, match=r"^invalid model name '.*', model name must not contain path tra"):
        check_model_name(name)


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_an_empty_name_is_refused(name):
    with pytest.raises(InvalidRequestError, match=r"^Model name cannot be empty\. Please enter a valid name to deploy"):
        check_model_name(name)


@pytest.mark.parametrize("name", ["a", "a.b", "..a", "a b"])
def test_unusual_names_inside_the_repository_are_accepted(name):
    check_model_name(name)
