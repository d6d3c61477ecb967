"""The JSON of a configuration is what the reference printed for the same model; `data/README.md` tells the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.config.model.auto_complete import merge_auto_completed
from naiad.config.model.render import to_json
from naiad.config.model.text import parse_json
from naiad.config.model.validate import validate
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import read_config

DATA = Path(__file__).parent / "data"
ALL = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir())
COMPLETED = sorted(file.parent.name for file in DATA.glob("*/completed.json"))
WITH_ARGS = sorted(file.parent.name for file in DATA.glob("*/args.json"))
# Recorded before the reference had the field; and it learns from an ensemble's steps whether that is decoupled.
ENSEMBLE = "pipeline"


@pytest.fixture
def read(tmp_path):
    """Read a recorded model as the server would, before it is asked to complete its configuration."""

    def read_recorded(name):
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True)
        (directory / "1" / ("other.py" if name == "other_filename" else "model.py")).touch()
        if (DATA / name / "config.pbtxt").exists():
            (directory / "config.pbtxt").write_text((DATA / name / "config.pbtxt").read_text("utf-8"), "utf-8")
        return read_config(ModelFiles(name=name, repository=tmp_path, directory=directory), strict=False)

    return read_recorded


@pytest.fixture
def effective(read):
    """The configuration after the model completed it, if it does."""

    def complete(name):
        message = read(name)
        if name in COMPLETED:
            message = merge_auto_completed(message, json.loads((DATA / name / "completed.json").read_text("utf-8")))
        validate(message, with_io=True)
        return message

    return complete


def recorded(name, file):
    return (DATA / name / file).read_text("utf-8").rstrip("\n")


def as_text(fields):
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("name", [name for name in ALL if name != ENSEMBLE])
def test_config_is_printed_byte_for_byte_as_the_reference_does(name, effective):
    assert as_text(to_json(effective(name))) == recorded(name, "config.json")


def test_an_ensemble_is_printed_as_the_reference_does_but_for_what_its_steps_tell(effective):
    expected = json.loads(recorded(ENSEMBLE, "config.json"))
    assert expected.pop("model_transaction_policy") == {"decoupled": False}
    expected["ensemble_scheduling"]["max_inflight_requests"] = 0

    assert to_json(effective(ENSEMBLE)) == expected


@pytest.mark.parametrize("name", COMPLETED)
def test_a_model_is_given_what_the_reference_gives_to_be_completed(name, read):
    assert to_json(read(name)) == json.loads(recorded(name, "given.json"))


@pytest.mark.parametrize("name", WITH_ARGS)
def test_a_model_finds_in_its_args_what_clients_are_told(name, effective):
    assert as_text(to_json(effective(name))) == recorded(name, "args.json")


@pytest.mark.parametrize("name", [name for name in ALL if name != ENSEMBLE])
def test_printed_json_reads_back_as_the_same_configuration(name, effective):
    message = effective(name)

    again = parse_json(as_text(to_json(message)), "round trip")

    assert to_json(again) == to_json(message)
