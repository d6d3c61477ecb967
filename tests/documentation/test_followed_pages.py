"""Pages of the documentation, followed as their reader would."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from pathlib import Path

import pytest
from support.pages import follow, is_as_shown, languages, steps
from support.registry import Registry
from support.server import ServerProcess  # noqa: F401 - marks these tests as `server`
from support.system_packages import needs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BIN = Path(sys.executable).parent
NO_INDEX = ("No matching distribution", "Could not find a version", "onnection", "No solution found", "cannot lock")
"""Parts of what installers print where no index of packages can be reached."""


@contextlib.contextmanager
def _index_required():
    """Skip a test whose page installs packages where there are none to install."""
    try:
        yield
    except AssertionError as error:
        if any(text in str(error) for text in NO_INDEX):
            pytest.skip("no index of packages can be reached")
        raise


LARGE = [
    "build-an-environment",
    "migrate-from-mlserver",
    "serve-a-saved-model",
    "share-environments",
    "serve-a-thousand-models",
    "from-one-machine-to-many",
]
"""Pages that install packages, pack environments, or start servers of many models or processes."""
PAGES = [
    "README.md",
    "docs/how-to/canary-a-model.md",
    "docs/how-to/custom-metrics.md",
    "docs/how-to/debug-a-model.md",
    "docs/how-to/kserve.md",
    "docs/how-to/look-at-a-server.md",
    "docs/how-to/migrate-from-bentoml.md",
    "docs/how-to/migrate-from-torchserve.md",
    "docs/how-to/migrate-from-triton.md",
    "docs/how-to/production-checklist.md",
    "docs/how-to/roll-out-and-roll-back.md",
    "docs/how-to/start-a-model.md",
    "docs/how-to/tune-performance.md",
    "docs/reference/api-page.md",
    pytest.param("docs/how-to/serve-a-native-backend.md", marks=needs("cc")),
    *(pytest.param(f"docs/how-to/{name}.md", marks=pytest.mark.endurance) for name in LARGE),
]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_typed(page, tmp_path):
    assert list(tmp_path.iterdir()) == []  # a reader may have no checkout
    with _index_required():
        followed = list(follow(ROOT / page, tmp_path, {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}))

    assert sum(step.printed is not None for step, _ in followed) > 0


@pytest.mark.endurance
@pytest.mark.timeout(500)
def test_the_tutorial_works_as_typed(tmp_path):
    page = DOCS / "tutorial" / "first-model.md"
    (tmp_path / "naiad").symlink_to(ROOT)
    # As `. venv/bin/activate` leaves it for the terminals of the reader.
    environ = {"PATH": f"{tmp_path / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    with _index_required():
        followed = list(follow(page, tmp_path, environ))
    assert len(followed) == len(steps(page.read_text(encoding="utf-8"))) > 12


def test_the_page_about_registries_works_as_typed(tmp_path):
    page = DOCS / "how-to" / "registry.md"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    credentials = dict.fromkeys(("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"), str(tmp_path / "none"))
    environ = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **credentials}
    copying = {step.commands for step in steps(page.read_text(encoding="utf-8")) if step.commands.startswith("skopeo ")}
    with Registry() as registry:
        followed = list(follow(page, tmp_path, environ, done=copying, instead={"registry.example": registry.host}))

    assert [step.commands.split()[1] for step, _ in followed] == ["env", "push", "verify", "pull", "serve", "pull"]
    assert [step.printed is not None for step, _ in followed] == [False, True, True, True, True, False]
    assert (tmp_path / "shop" / "add_sub" / "config.pbtxt").exists()


def test_output_on_a_page_follows_the_commands_that_print_it():
    """`steps` takes it for the output of the last commands, whatever is between them."""
    misplaced = []
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        found = languages(page.read_text(encoding="utf-8"))
        pairs = itertools.pairwise(["", *found])
        misplaced += [page.name for before, after in pairs if after == "text" and before != "sh"]
    assert misplaced == []


def test_shown_output_may_leave_parts_out():
    assert is_as_shown("a 1 b\nc\nd\n", "a ... b\n...\nd\n")
    assert is_as_shown("a\n", "a\n")
    assert not is_as_shown("a\nb\n", "a\n")
    assert not is_as_shown("a 1 c\n", "a ... b\n")
    assert not is_as_shown("a.c\n", "abc\n")
