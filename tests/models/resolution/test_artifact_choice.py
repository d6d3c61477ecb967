"""Which stub and utils serve a model: section 1.2 of the reference's behaviour."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from models.resolution.fake_files import FakeFiles
from models.resolution.makers import GUEST, STUB, UTILS, resolve_m

from naiad.core.errors import ExecutionEnvironmentError, ResolutionError
from naiad.models.resolution.artifacts import choose_artifacts
from naiad.models.resolution.preparation import check_interpreter

SHARED = "/b1/x/model.py"
SCRIPT = b"#!/usr/bin/env python3\n"
DEFAULT = (f"/guest/artifacts/{STUB}", "/guest/artifacts")


def chosen(files, **options):
    found = resolve_m({SHARED: "", "/repo/m/1/model.py": "", **files}, **{"backend": "x", **options})
    return (str(found.stub), str(found.utils_dir))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, DEFAULT),
        ({f"/b1/x/{STUB}": SCRIPT, f"/b1/x/{UTILS}": ""}, (f"/b1/x/{STUB}", "/b1/x")),
        ({f"/b1/x/{STUB}": SCRIPT}, DEFAULT),
        ({f"/b1/x/{UTILS}": ""}, DEFAULT),
        ({f"/b2/python/{STUB}": SCRIPT, f"/b2/python/{UTILS}": ""}, (f"/b2/python/{STUB}", "/b2/python")),
        # Half a pair of the backend's own does not hide the whole pair of backend `python`.
        (
            {f"/b1/x/{STUB}": SCRIPT, f"/b1/python/{STUB}": SCRIPT, f"/b1/python/{UTILS}": ""},
            (f"/b1/python/{STUB}", "/b1/python"),
        ),
        # The model's own stub replaces the stub alone.
        ({f"/repo/m/{STUB}": SCRIPT}, (f"/repo/m/{STUB}", "/guest/artifacts")),
        (
            {f"/repo/m/{STUB}": SCRIPT, f"/b1/x/{STUB}": SCRIPT, f"/b1/x/{UTILS}": ""},
            (f"/repo/m/{STUB}", "/b1/x"),
        ),
        # One in the version's directory is no stub, nor are utils in the model's.
        ({f"/repo/m/1/{STUB}": SCRIPT, f"/repo/m/{UTILS}": ""}, DEFAULT),
        # A directory of that name is none either.
        ({f"/repo/m/{STUB}/file": ""}, DEFAULT),
    ],
)
def test_stub_and_utils_of_a_directory_are_used_together_or_not_at_all(files, expected):
    assert chosen(files) == expected


def test_the_versions_of_a_stubs_manifest_choose_the_interpreter():
    files = {"/repo/m/1/model.py": "", f"/repo/m/{STUB}": SCRIPT, "/repo/m/stub.toml": 'requires-python = "==3.9.*"'}
    found = resolve_m(files)
    assert (str(found.python), found.python_origin) == ("==3.9.*", "/repo/m/stub.toml")
    own = resolve_m(files, parameters={"PYTHON_VERSION": "3.9.18"})
    assert str(own.python) == "==3.9.18"
    assert resolve_m({**files, "/e": ""}, parameters={"EXECUTION_ENV_PATH": "/e"}).python is None


def test_a_compiled_stub_names_the_python_that_it_is_linked_to(monkeypatch):
    monkeypatch.setattr(
        "naiad.models.resolution.artifacts.read_shared_object",
        lambda content: SimpleNamespace(needed=("libpthread.so.0", "libpython3.10.so.1.0")),
    )
    (notice,) = resolve_m({"/repo/m/1/model.py": "", f"/repo/m/{STUB}": b"\x7fELF"}).notices
    assert "It is linked to Python 3.10" in notice


def linked_stubs(monkeypatch, versions: dict[bytes, str]) -> None:
    """Let compiled stubs with this content be linked to these versions."""
    monkeypatch.setattr(
        "naiad.models.resolution.artifacts.read_shared_object",
        lambda content: SimpleNamespace(needed=(f"libpython{versions[content]}.so.1.0",)),
    )


def test_the_python_of_a_compiled_stub_is_required_where_nothing_else_chooses_one(monkeypatch):
    linked_stubs(monkeypatch, {b"\x7fELF": "3.10"})
    files = {"/repo/m/1/model.py": "", f"/repo/m/{STUB}": b"\x7fELF", "/e": ""}
    found = resolve_m(files)
    assert (str(found.python), found.python_origin) == ("==3.10.*", f"the compiled stub /repo/m/{STUB}")
    assert f"python: Python 3.10 (the compiled stub /repo/m/{STUB} is linked to it)" in "".join(map(str, found.steps))
    assert str(resolve_m(files, parameters={"PYTHON_VERSION": "3.9"}).python) == "==3.9.*"
    assert resolve_m(files, parameters={"EXECUTION_ENV_PATH": "/e"}).python is None


def test_a_models_own_compiled_stub_is_preferred_to_that_of_the_backend(monkeypatch):
    linked_stubs(monkeypatch, {b"\x7fELF1": "3.10", b"\x7fELF2": "3.9"})
    backend = {f"/b1/python/{STUB}": b"\x7fELF2", f"/b1/python/{UTILS}": "", "/repo/m/1/model.py": ""}
    assert str(resolve_m(backend).python) == "==3.9.*"
    assert str(resolve_m({**backend, f"/repo/m/{STUB}": b"\x7fELF1"}).python) == "==3.10.*"


def test_a_python_model_may_bring_its_own_stub_too():
    assert chosen({f"/repo/m/{STUB}": SCRIPT}, backend="python")[0] == f"/repo/m/{STUB}"


@pytest.mark.parametrize("magic", [b"\x7fELF\x02\x01", b"\xcf\xfa\xed\xfe\x07", b"\xca\xfe\xba\xbe", b"MZ\x90\x00"])
@pytest.mark.parametrize("place", ["/repo/m", "/b1/x"])
def test_a_compiled_stub_is_not_used_and_one_line_says_so(magic, place):
    found = resolve_m({SHARED: "", f"{place}/{STUB}": magic, f"{place}/{UTILS}": ""}, backend="x")
    assert (str(found.stub), str(found.utils_dir)) == DEFAULT
    assert found.notices == (
        (
            f"'{place}/{STUB}' is a compiled stub of another implementation and is not used: naiad's own stub runs under "
            "any interpreter it supports and needs no compiling"
        ),
    )


def test_a_missing_stub_has_the_text_of_the_reference():
    with pytest.raises(ResolutionError) as caught:
        choose_artifacts(
            model_dir=Path("/repo/m"),
            backend_dir=Path("/b1/x"),
            python_dirs=(Path("/b1/python"),),
            default=GUEST,
            files=FakeFiles(),
        )
    assert caught.value.message == (
        "triton_python_backend_stub is not found. Searched paths: /guest/artifacts and /b1/x and /b1/python"
    )


def test_a_half_pair_is_explained():
    found = resolve_m({SHARED: "", f"/b1/x/{STUB}": SCRIPT}, backend="x")
    why = next(step.reason for step in found.steps if step.subject == "utils")
    assert "/b1/x has only one of them, and they are used together or not at all" in why


def test_a_stub_says_which_interpreters_it_runs_under():
    files = {f"/repo/m/{STUB}": SCRIPT, "/repo/m/stub.toml": 'protocol = 1\nrequires-python = ">=3.12"'}
    found = resolve_m({SHARED: "", **files}, backend="x")
    check_interpreter(found, (3, 12, 1))
    with pytest.raises(ExecutionEnvironmentError) as caught:
        check_interpreter(found, (3, 11, 7))
    assert caught.value.message == (
        f"model 'm' would run under Python 3.11.7, but the stub '/repo/m/{STUB}' needs Python >=3.12; give the model "
        "another environment or a stub of its own"
    )


def test_a_stub_without_a_manifest_is_taken_to_need_what_the_default_needs():
    assert resolve_m({SHARED: "", f"/repo/m/{STUB}": SCRIPT}, backend="x").stub_requires == GUEST.requires_python


def test_a_stub_of_another_protocol_is_refused():
    files = {f"/repo/m/{STUB}": SCRIPT, "/repo/m/stub.toml": "protocol = 2"}
    with pytest.raises(ResolutionError, match=r"/repo/m/stub\.toml: the stub speaks protocol 2, this server 1"):
        resolve_m({SHARED: "", **files}, backend="x")
