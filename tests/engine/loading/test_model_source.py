"""What a load request names: models of the repositories, or one that it sends itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.core.errors import Code, InvalidRequestError, NaiadError
from naiad.engine.loading.model_source import find_sources
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.repositories import LocalRepository, Repositories

CONFIG = json.dumps({"backend": "python", "max_batch_size": 3, "parameters": {"HANG_SECONDS": {"string_value": "7"}}})
WRONG = json.dumps({"backend": "python", "max_batch_size": -1})


class Fetched(Repositories):
    """Repositories that know which models were fetched."""

    def __init__(self, *places: LocalRepository) -> None:
        super().__init__(places)
        self.fetched: list[str] = []

    def fetch(self, files: ModelFiles) -> None:
        self.fetched.append(files.key)


@pytest.fixture
def repositories(tmp_path: Path) -> Fetched:
    """Two: the first has `one`, which tells its limit itself, and two folders that are not models; the second `two`."""
    for name in ("a/one/1", "b/two/1", "a/docs", "a/doc/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "one" / "config.pbtxt").write_text(
        'backend: "python" parameters { key: "HANG_SECONDS" value { string_value: "5" } }'
    )
    return Fetched(LocalRepository(tmp_path / "a"), LocalRepository(tmp_path / "b"))


@pytest.mark.parametrize(
    ("parameters", "folder", "max_batch_size", "seconds"),
    [
        ({}, "a/one", 0, 5.0),
        ({"config": CONFIG}, "a/one", 3, 7.0),
        ({"config": CONFIG, "file:1/model.py": b"x"}, "", 3, 7.0),
    ],
    ids=["of the repository", "with another configuration", "with its own files"],
)
def test_a_model_is_read_from_where_it_is(tmp_path, repositories, parameters, folder, max_batch_size, seconds):
    (source,) = find_sources("one", parameters, repositories, strict=False)
    assert source.files.name == "one"
    assert repositories.fetched == ["one"] * bool(parameters), "the configuration is checked with its files"
    assert (source.files.directory == tmp_path / folder) is bool(folder)
    assert (source.files.directory / "1").is_dir()
    assert (source.directory is None) is bool(folder)
    message = source.read_config(strict=False, config_name="")
    assert message.max_batch_size == max_batch_size
    assert source.parameters(message, config_name="").hang_seconds == seconds


@pytest.mark.parametrize(
    ("name", "parameters", "why"),
    [
        ("x", {}, "looked in '{0}/a', '{0}/b'"),
        ("on", {}, "looked in '{0}/a', '{0}/b'; did you mean 'one'?"),
        (
            "docs",
            {},
            (
                "looked in '{0}/a', '{0}/b'; '{0}/a/docs' is not a model: it has no version folder, configuration or "
                "model file"
            ),
        ),
        ("x", {"config": CONFIG}, "looked in '{0}/a', '{0}/b'"),
        ("one", {"config": WRONG}, "'max_batch_size' must be non-negative value for one"),
        (
            "new",
            {"config": WRONG, "file:1/x": b""},
            "'max_batch_size' must be non-negative value for new",
        ),
        ("one", {"file:1/x": b""}, "Load parameter 'config' must be specified for model file override"),
    ],
)
def test_a_load_that_names_no_model_or_sends_an_invalid_one_says_why(tmp_path, repositories, name, parameters, why):
    with pytest.raises(NaiadError) as caught:
        find_sources(name, parameters, repositories, strict=False)
    why = why.format(tmp_path)
    assert caught.value.message == f"failed to load '{name}', failed to poll from model repository ({why})"
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("name", ["", "..", "one/1", "../b/two"])
def test_a_name_that_leads_elsewhere_is_invalid(repositories, name):
    with pytest.raises(InvalidRequestError, match=r"^(invalid model name|Model name cannot be empty)"):
        find_sources(name, {}, repositories, strict=False)


@pytest.mark.parametrize("parameters", [{"config": CONFIG}, {"config": CONFIG, "file:1/x": b""}])
def test_nothing_is_sent_to_a_server_that_requires_signatures(repositories, parameters):
    repositories.requires_signatures = True
    what = "files" if len(parameters) > 1 else "configuration"
    with pytest.raises(NaiadError, match=f"its {what} came with a load request"):
        find_sources("one", parameters, repositories, strict=False)
