"""What is found in repositories, and which versions are served."""

from __future__ import annotations

import logging

import pytest

from naiad.config.model.model_config import All, Latest, Specific
from naiad.core.errors import Code, RepositoryError
from naiad.models.repository.layout import ModelFiles, available_versions, version_number, versions_to_load
from naiad.models.repository.repositories import LocalRepository, Repositories


@pytest.fixture
def make(tmp_path):
    """Make directories below a repository and give the repository."""

    def make_repository(*directories, name="models"):
        repository = tmp_path / name
        repository.mkdir(exist_ok=True)
        for directory in directories:
            (repository / directory).mkdir(parents=True)
        return repository

    return make_repository


def scan(directories):
    return Repositories(map(LocalRepository, directories)).scan()


def model(repository, name="m"):
    return ModelFiles(name=name, repository=repository, directory=repository / name)


def test_every_directory_with_a_part_of_a_model_is_a_model_and_no_file_is(make):
    repository = make("b/1", "a", "c.x/1")
    (repository / "a" / "config.pbtxt").touch()
    (repository / "README.md").touch()

    found = scan([repository])

    assert list(found.models) == ["a", "b", "c.x"]
    assert found.models["b"] == model(repository, "b")
    assert not found.duplicates


@pytest.mark.parametrize(
    "part", ["1", "01", "1abc", "config.pbtxt", "configs/x.pbtxt", "model.py", "model.onnx", "v1/model.py", "m/config.pbtxt",
             "models/m/config.pbtxt"],
)  # fmt: skip
def test_a_directory_that_resembles_a_model_is_one_so_that_its_load_names_the_fault(make, part):
    repository = make("a")
    path = repository / "a" / part
    if path.suffix:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        path.mkdir()
    assert list(scan([repository]).models) == ["a"]


def test_a_directory_that_cannot_be_a_model_is_skipped_with_one_line(make, caplog):
    """In the reference, each of these ends the start."""
    caplog.set_level(logging.INFO)
    repository = make("m/1", "lost+found", "docs/images", "__pycache__", ".git/objects", "empty")
    (repository / "docs" / "README.md").touch()
    repositories = Repositories([LocalRepository(repository)])
    for _ in range(2):
        assert list(repositories.scan().models) == ["m"]
    lacks = "it has no version folder, configuration or model file"
    assert caplog.messages == [
        f"skip '{repository}/__pycache__', which is not a model: it has bytecode of Python",
        f"skip '{repository}/docs', which is not a model: {lacks}",
        f"skip '{repository}/empty', which is not a model: {lacks}",
        f"skip '{repository}/lost+found', which is not a model: it belongs to the file system",
    ]
    (repository / "docs" / "1").mkdir()
    assert list(repositories.scan().models) == ["docs", "m"]


def test_a_directory_stays_a_model_while_its_files_are_replaced(make):
    """Otherwise polling would unload it between the deletion and the copy."""
    repository = make("m/1")
    repositories = Repositories([LocalRepository(repository)])
    assert list(repositories.scan().models) == ["m"]
    (repository / "m" / "1").rmdir()
    assert list(repositories.scan().models) == ["m"]
    (repository / "m").rmdir()
    assert not repositories.scan().models


def test_hidden_directories_are_no_models(make):
    assert not scan([make(".git/objects", ".ipynb_checkpoints", "..data")]).models


def test_a_link_to_a_directory_is_a_model(make):
    elsewhere = make("real/1", name="elsewhere")
    repository = make()
    (repository / "linked").symlink_to(elsewhere / "real")

    assert list(scan([repository]).models) == ["linked"]


def test_models_of_several_repositories_are_served_together(make):
    first, second = make("b/1", name="first"), make("a/1", name="second")

    found = scan([first, second])

    assert {name: files.repository for name, files in found.models.items()} == {"a": second, "b": first}


def test_a_name_in_two_repositories_is_no_model_and_is_logged(make, caplog):
    first, second = make("m/1", "a/1", name="first"), make("m/1", name="second")

    found = scan([first, second])

    assert list(found.models) == ["a"]
    assert found.duplicates == {"m": (model(first), model(second))}
    said = f"failed to poll model 'm': not unique across all model repositories (it is in {first}/m, {second}/m)"
    assert caplog.record_tuples == [("naiad.repository", logging.ERROR, said)]


def test_a_repository_named_twice_is_scanned_once(make):
    repository = make("m/1")

    assert list(scan([repository, repository]).models) == ["m"]


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_repository_must_be_a_directory(tmp_path, name):
    (tmp_path / "file").touch()

    with pytest.raises(RepositoryError) as caught:
        scan([tmp_path / name])

    assert caught.value.message == f"repository path is not a valid directory: {tmp_path / name}"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("1", 1),
        ("0", 0),
        ("12", 12),
        ("2abc", 2),
        ("7.5", 7),
        (" 5", 5),
        ("+6", 6),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("01", None),
        ("00", None),
        ("-4", None),
        ("abc", None),
        (".1", None),
        ("", None),
        ("٣", None),
    ],
)
def test_a_version_is_the_number_at_the_start_of_a_name(name, number):
    assert version_number(name) == number


def test_version_directories_are_found_in_the_order_of_numbers(make):
    repository = make("m/10", "m/9", "m/0", "m/2abc", "m/configs", "m/warmup", "m/initial_state")
    (repository / "m" / "7").touch()

    assert available_versions(model(repository)) == {
        0: repository / "m" / "0",
        2: repository / "m" / "2abc",
        9: repository / "m" / "9",
        10: repository / "m" / "10",
    }


def test_the_plain_number_is_the_version_where_two_names_mean_it(make):
    repository = make("m/2", "m/+2", "m/2abc")

    assert available_versions(model(repository)) == {2: repository / "m" / "2"}


def test_directories_that_are_no_versions_are_skipped_with_a_warning(make, caplog):
    repository = make("m/1", "m/01", "m/backup", "m/configs")

    assert list(available_versions(model(repository))) == [1]

    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            f"ignore version directory '01' which contains leading zeros in its directory name: {repository / 'm' / '01'}",
        ),
        (
            logging.WARNING,
            f"ignore version directory 'backup' which fails to convert to integral number: {repository / 'm' / 'backup'}",
        ),
    ]


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (Latest(1), (11,)),
        (Latest(2), (3, 11)),
        (Latest(9), (0, 2, 3, 11)),
        (All(), (0, 2, 3, 11)),
        (Specific((3, 0, 3)), (0, 3)),
    ],
)
def test_a_policy_selects_versions(policy, chosen):
    assert versions_to_load(policy, {3: None, 11: None, 0: None, 2: None}, "m") == chosen


def test_a_wanted_version_that_is_missing_is_logged_and_the_others_are_served(caplog):
    assert versions_to_load(Specific((1, 7)), [1, 2], "m") == (1,)

    assert caplog.messages == ["version 7 is specified for model 'm', but the version directory is not present"]


@pytest.mark.parametrize(
    ("policy", "available", "there"),
    [
        (Latest(1), [], "none of its folders is a version, such as 1/"),
        (All(), [], "none of its folders is a version, such as 1/"),
        (Latest(0), [1], "its versions are: 1"),
        (Specific((7,)), [1, 3], "its versions are: 1, 3"),
        (Specific(()), [1], "its versions are: 1"),
    ],
)
def test_a_model_without_any_version_to_serve_is_refused(policy, available, there):
    with pytest.raises(RepositoryError) as caught:
        versions_to_load(policy, available, "m")

    assert caught.value.message == (
        f"at least one version must be available under the version policy of model 'm' ({there})"
    )
    assert caught.value.code is Code.INVALID_ARG
