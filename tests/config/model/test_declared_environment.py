"""The block of a script (PEP 723): what is read from it, what is added to it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.config.model.declared_environment import (
    add_dependencies,
    is_declaration,
    lock_candidates,
    read_script_block,
    remove_dependencies,
)
from naiad.core.errors import ConfigError

SCRIPT = """#!/usr/bin/env python3
# /// script
# requires-python = ">=3.12"
# # of the training
# dependencies = ["scikit-learn==1.5.*",
#   "numpy",  # for arrays
# ]
#
# [tool.uv]
# exclude-newer = "2026-01-01T00:00:00Z"
# ///
\"\"\"Doc.\"\"\"
import numpy
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_block_gives_dependencies_and_versions_of_python(newline: str) -> None:
    block = read_script_block(SCRIPT.replace("\n", newline), "model.py")

    assert block is not None
    assert block.dependencies == ("scikit-learn==1.5.*", "numpy")
    assert str(block.requires_python) == ">=3.12"


@pytest.mark.parametrize(
    "text", ["import numpy\n", "# /// other\n# x = 1\n# ///\n", "# /// script\nimport numpy\n", 'x = "# /// script"\n']
)
def test_a_script_without_a_block_has_none(text: str) -> None:
    assert read_script_block(text, "model.py") is None


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("dependencies = [", "not valid TOML"),
        ('dependencies = "numpy"', "'dependencies' must be a list of strings"),
        ('dependencies = ["numpy ==> 2"]', "'numpy ==> 2' is not a requirement"),
        ('requires-python = "three"', "requires-python is 'three', which is not a range of versions"),
        ("requires-python = 3.12", "requires-python is 3.12, which is not a range of versions"),
        ("dependencies = []\n# ///\n\n# /// script\n# dependencies = []", "has 2 script blocks"),
        ('dependencies = [\n\n#   "numpy"\n# ]', "begins in line 1 and has no end; begin each of its lines with '#'"),
        ('dependancies = ["numpy"]', "has the unknown key 'dependancies'; did you mean 'dependencies'?"),
        ('requires_python = ">=3.12"', "has the unknown key 'requires_python'; did you mean 'requires-python'?"),
    ],
)
def test_an_invalid_block_is_refused_with_the_file_and_the_key(block: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_script_block(f"# /// script\n# {block}\n# ///\n", "/m/1/model.py")
    assert "/m/1/model.py" in caught.value.message


def test_packages_are_added_and_everything_else_stays() -> None:
    changed = add_dependencies(SCRIPT, ["pandas>=2; python_version < '3.14'", "NumPy>=2"], "model.py")

    block = read_script_block(changed, "model.py")
    assert block is not None
    assert block.dependencies == ("scikit-learn==1.5.*", "NumPy>=2", "pandas>=2; python_version < '3.14'")
    assert changed.startswith('#!/usr/bin/env python3\n# /// script\n# requires-python = ">=3.12"\n# # of the training')
    assert changed.endswith('# exclude-newer = "2026-01-01T00:00:00Z"\n# ///\n"""Doc."""\nimport numpy\n')


def test_a_script_without_a_block_gets_one_after_its_first_lines() -> None:
    changed = add_dependencies("#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\nimport x\n", ["numpy"], "model.py")

    assert changed.startswith("#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n# /// script\n")
    assert changed.endswith("# ///\nimport x\n")


def test_a_block_without_dependencies_gets_them_before_its_tables() -> None:
    changed = add_dependencies("# /// script\n# [tool.uv]\n# ///\n", ["numpy"], "model.py")

    block = read_script_block(changed, "model.py")
    assert block is not None
    assert block.dependencies == ("numpy",)


def test_an_invalid_requirement_is_not_added() -> None:
    with pytest.raises(ConfigError, match=r"cannot add '-e \.\./x' to model\.py"):
        add_dependencies(SCRIPT, ["-e ../x"], "model.py")


@pytest.mark.parametrize(
    ("name", "locks"),
    [
        ("model.py", ["model.py.lock", "pylock.toml"]),
        ("requirements.txt", ["pylock.toml"]),
        ("requirements-gpu.txt", ["pylock.toml"]),
        ("pyproject.toml", ["uv.lock", "pylock.toml"]),
        ("python_env.yaml", ["pylock.toml"]),
        ("conda.yaml", ["pixi.lock"]),
        ("pylock.toml", ["pylock.toml"]),
        ("pylock.gpu.toml", ["pylock.gpu.toml"]),
        *((name, None) for name in ("env.tar.gz", "venv", "other.toml", "notes.txt")),
    ],
)
def test_declarations_and_their_locks_are_known_by_their_names(name: str, locks: list[str] | None) -> None:
    assert is_declaration(Path("/m", name)) is (locks is not None)
    if locks is not None:
        assert [path.name for path in lock_candidates(Path("/m", name))] == locks


def test_packages_are_removed_and_everything_else_stays() -> None:
    text = SCRIPT.replace('"numpy",', '"numpy", "pandas; python_version < \'3.13\'", "Pandas>=2",')

    changed = remove_dependencies(text, ["PANDAS"], "model.py")

    block = read_script_block(changed, "model.py")
    assert block is not None
    assert block.dependencies == ("scikit-learn==1.5.*", "numpy")
    assert add_dependencies(SCRIPT, [], "model.py") == changed


@pytest.mark.parametrize(
    ("text", "packages", "message"),
    [
        (
            SCRIPT,
            ["torch", "numpy"],
            "cannot remove torch from m.py: the packages of its block are: numpy, scikit-learn",
        ),
        ("import numpy\n", ["numpy"], "cannot remove numpy from m.py: the packages of its block are: none"),
        (
            SCRIPT,
            ["numpy", "scikit.learn"],
            "cannot remove numpy, scikit.learn from m.py: its block would require nothing",
        ),
    ],
)
def test_what_cannot_be_removed_is_refused(text: str, packages: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        remove_dependencies(text, packages, "m.py")
    assert caught.value.message.startswith(message)
