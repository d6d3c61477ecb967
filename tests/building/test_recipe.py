"""What a recipe may say, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.core.errors import ConfigError
from naiad_building.base_interpreter import version_preferences
from naiad_building.build import requirements_to_install
from naiad_building.recipe import Preference, Recipe, read_recipe
from naiad_building.uv_program import InstallOptions

_ENVS = Path(__file__).parents[2] / "envs"


def _recipe(folder: Path, text: str) -> Recipe:
    (folder / "env.toml").write_text(text)
    return read_recipe(folder)


def test_a_recipe_is_read_with_all_its_keys(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "data").mkdir()
    recipe = _recipe(
        tmp_path,
        'name = "small"\ndescription = "for a test"\npython = ">=3.9,<3.13"\nprefer = "other-than-host"\n'
        'requirements = "requirements.txt"\nfiles = ["data", "requirements.txt"]\n',
    )
    assert recipe.name == "small"
    assert recipe.description == "for a test"
    assert "3.12.1" in recipe.python
    assert "3.13.0" not in recipe.python
    assert recipe.prefer is Preference.OTHER_THAN_HOST
    assert recipe.requirements == tmp_path / "requirements.txt"
    assert recipe.files == (tmp_path / "data", tmp_path / "requirements.txt")


def test_a_recipe_needs_only_a_name(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, 'name = "bare"')
    assert recipe == Recipe(tmp_path, "bare", recipe.python)
    assert "3.8.0" in recipe.python


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("", "name", 'is missing; write for example name = "text_pipeline"'),
        ("name = 3", "name", "must be a string, not 3"),
        ('name = "../up"', "name", "is '../up'; use letters, digits"),
        ('name = "a"\npython = "3 or so"', "python", "is '3 or so', which is not a version specifier"),
        ('name = "a"\nprefer = "oldest"', "prefer", "is 'oldest'; choose one of 'newest', 'host', 'other-than-host'"),
        ('name = "a"\nrequirement = "r.txt"', "requirement", "is unknown; did you mean 'requirements'?"),
        ('name = "a"\nxyz = 1', "xyz", "is unknown; known keys are name, description, python"),
        ('name = "a"\nrequirements = "r.txt"', "requirements", "names 'r.txt', but there is no such file in"),
        ('name = "a"\nrequirements = "/etc/passwd"', "requirements", "the path must be inside the recipe's folder"),
        ('name = "a"\nfiles = ["../other"]', "files", "the path must be inside the recipe's folder"),
        ('name = "a"\nfiles = ["missing"]', "files", "names 'missing', but there is no such file or folder in"),
        ('name = "a"\nfiles = [1]', "files", "must be a list of strings"),
        ('name = "a"\nfiles = "one"', "files", "must be a list of strings, not 'one'"),
        ('name = "a"\nrequirements = ["x"]', "requirements", "must be a string, not ['x']"),
        ('name = "a"\nconda = "env.toml"', "conda", "names 'env.toml'; it is environment.yml or pixi.lock"),
        ('name = "a"\nconda = "env.toml"\nrequirements = "env.toml"', "conda", "conflicts with 'requirements'"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _recipe(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'env.toml'}: key '{key}' ")
    assert said in caught.value.message


def test_a_folder_without_recipe_and_broken_toml_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe in .*: it has no env\.toml"):
        read_recipe(tmp_path)
    with pytest.raises(ConfigError, match=r"env\.toml is not valid TOML: .*line 1"):
        _recipe(tmp_path, "name = \npython = 1")


@pytest.mark.parametrize("name", [folder.name for folder in _ENVS.iterdir() if folder.is_dir()])
def test_recipes_that_come_with_naiad_are_named_as_their_folders(name: str) -> None:
    assert read_recipe(_ENVS / name).name == name


@pytest.mark.parametrize(
    ("prefer", "asked", "host", "dearest"),
    [
        ("newest", None, (3, 11), ["3.9.18", "3.11.7", "3.12.1"]),
        ("host", None, (3, 11), ["3.11.7"]),
        ("other-than-host", None, (3, 11), ["3.9.18", "3.12.1"]),
        ("newest", "3.8", (3, 11), ["3.8.18"]),
        ("host", "3.12.1", (3, 11), ["3.12.1"]),
    ],
)
def test_the_preference_decides_which_versions_are_looked_for_first(
    tmp_path: Path, prefer: str, asked: str | None, host: tuple[int, int], dearest: list[str]
) -> None:
    recipe = _recipe(tmp_path, f'name = "a"\npython = ">=3.9,<3.13"\nprefer = "{prefer}"')
    on_machine = ["3.8.18", "3.9.18", "3.11.7", "3.12.1", "3.13.0"]
    asked_for = version_preferences(recipe.prefer, recipe.python, asked, host)
    assert [version for version in on_machine if version in asked_for[0]] == dearest


def test_a_preference_that_cannot_be_met_is_ignored(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, 'name = "a"\npython = ">=3.9"\nprefer = "other-than-host"')
    assert version_preferences(recipe.prefer, recipe.python, None, (3, 11))[-1] == recipe.python


@pytest.mark.parametrize("line", ["-e ../pkg", "--editable=../pkg", "  -e  ../pkg  # ours", "-e '../pkg'"])
def test_an_editable_requirement_is_refused_before_anything_is_built(tmp_path: Path, line: str) -> None:
    """Also in an included file. Packing the environment would refuse it, after minutes of building."""
    (tmp_path / "no more.txt").write_text(f"numpy\n{line}\n")
    (tmp_path / "requirements.txt").write_text("-r 'no more.txt'\n-r requirements.txt\n")
    recipe = _recipe(tmp_path, 'name = "small"\nrequirements = "requirements.txt"')

    with pytest.raises(ConfigError) as refused:
        requirements_to_install(recipe, "3.12.1", InstallOptions())

    assert refused.value.message.startswith(
        f"{tmp_path / 'no more.txt'}:2 requires '{line.strip()}': the code of an editable"
    )
    assert refused.value.message.endswith("; write ../pkg without --editable, which copies it")
