"""What uv is asked to resolve, and what its locks become; a program in place of uv notes what it gets."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from naiad.core.errors import ExecutionEnvironmentError
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.declared import resolving
from naiad_building.declared.declaration import read_declaration
from naiad_building.declared.resolving import Resolver, resolved_lock
from naiad_building.uv_program import InstallOptions

BASE = BaseInterpreter(
    executable=Path(sys.executable),
    version="3.12.4",
    prefix=Path("/p"),
    stdlib=Path("/p/lib/python3.12"),
    include=Path("/p/include"),
    cache_tag="cpython-312",
)
PYLOCK = """lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "adder"
version = "1.0"
index = "https://secret.host/simple"
wheels = [{ url = "https://secret.host/files/adder-1.0-py3-none-any.whl", hashes = { sha256 = "ab" } }]
"""
SCRIPT_LOCK = """version = 1
requires-python = ">=3.10"
[[package]]
name = "adder"
version = "1.0"
source = { registry = "/wheels" }
wheels = [
    { path = "adder-1.0-py3-none-any.whl" },
]

[[package]]
name = "other"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://files.pythonhosted.org/other-1.0-py3-none-any.whl", hash = "sha256:cd", size = 3 },
]

[[package]]
name = "third"
version = "1.0"
source = { registry = "https://secret.host/simple" }
dependencies = [
    { name = "adder", source = { registry = "/wheels" } },
]
wheels = [
    { url = "https://secret.host/files/third-1.0-py3-none-any.whl", hash = "sha256:ef", size = 3 },
]
"""


@dataclass
class RecordedUv:
    """Writes a lock where uv would, and keeps the arguments and the texts that it was given."""

    script_lock: str
    calls: list[list[str]]
    texts: list[str]
    fails: Callable[[list[str]], bool]

    def run(
        self,
        arguments: list[str],
        name: str,
        named_in: Path,
        python: Path,
        options: InstallOptions,
    ) -> list[str]:
        del name, named_in, python, options
        self.calls.append(arguments)
        if self.fails(arguments):
            raise ExecutionEnvironmentError("error: No solution found when resolving dependencies")
        if arguments[0] == "lock":
            script = Path(arguments[-1])
            self.texts.append(script.read_text())
            script.with_name(f"{script.name}.lock").write_text(self.script_lock)
        else:
            if arguments[0] != "export":
                self.texts.append(Path(arguments[-1]).read_text())
            Path(arguments[arguments.index("-o") + 1]).write_text(PYLOCK)
        return []


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedUv:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "adder-1.0-py3-none-any.whl").write_bytes(b"wheel")
    recorded = RecordedUv(SCRIPT_LOCK.replace("/wheels", str(tmp_path / "wheels")), [], [], lambda _: False)
    monkeypatch.setattr(resolving, "run_uv", recorded.run)
    return recorded


def script(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "model.py"
    file.write_text("# /// script\n" + "".join(f"# {line}\n" for line in lines) + "# ///\n")
    return file


def resolve(how: Callable[[Resolver], Path], file: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return how(Resolver(read_declaration(file), folder, BASE, InstallOptions()))


def test_the_lock_of_a_script_names_files_and_keeps_entries_of_pypi(tmp_path: Path, uv: RecordedUv) -> None:
    file = script(tmp_path / "m", 'requires-python = ">=3.10"', 'dependencies = ["adder"]')

    lock = resolve(Resolver.resolve, file, tmp_path / "locks")

    text = lock.read_text()
    assert lock.name == "model.py.lock"
    assert text.count('registry = "https://pypi.org/simple"') == 4
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert f'{{ path = "adder-1.0-py3-none-any.whl", hash = "sha256:{digest}" }}' in text
    assert '{ path = "third-1.0-py3-none-any.whl", hash = "sha256:ef", size = 3 }' in text
    assert '{ url = "https://files.pythonhosted.org/other-1.0-py3-none-any.whl", hash = "sha256:cd", size = 3 }' in text
    assert "secret.host" not in text
    assert str(tmp_path) not in text


def test_paths_of_indexes_are_absolute_for_uv(tmp_path: Path, uv: RecordedUv) -> None:
    lines = ('dependencies = ["adder"]', "[tool.uv]", "find-links = ['files', \"https://a/b\"]", 'index-url = "idx"')

    resolve(Resolver.resolve, script(tmp_path / "m", *lines), tmp_path / "locks")

    assert f'# find-links = ["{tmp_path}/m/files", "https://a/b"]\n' in uv.texts[0]
    assert f'# index-url = "{tmp_path}/m/idx"\n' in uv.texts[0]


def test_a_script_is_resolved_for_one_python_alone(tmp_path: Path, uv: RecordedUv) -> None:
    bounded = script(tmp_path / "m", 'requires-python = ">=3.10"', 'dependencies = ["adder"]')
    unbounded = script(tmp_path / "n", 'dependencies = ["adder"]')

    for file in (bounded, unbounded):
        resolve(Resolver.resolve_for_one, file, tmp_path / "locks")

    assert [text.count('requires-python = "==3.12.*"') for text in uv.texts] == [1, 1]
    assert ">=3.10" not in uv.texts[0]


def test_requirements_are_resolved_for_all_pythons_with_their_limits(tmp_path: Path, uv: RecordedUv) -> None:
    (tmp_path / "m").mkdir()
    project = tmp_path / "m" / "pyproject.toml"
    project.write_text(
        '[project]\nname = "p"\nversion = "1"\ndependencies = ["adder"]\n[tool.uv]\n'
        'constraint-dependencies = ["numpy<2"]\noverride-dependencies = ["six==1"]\n'
    )

    lock = resolve(Resolver.resolve, project, tmp_path / "locks")

    assert "--universal" in uv.calls[0]
    limits = {argument.partition("=")[0]: Path(argument.partition("=")[2]).read_text() for argument in uv.calls[0] if argument.startswith(("--constraint", "--override"))}  # fmt: skip
    assert limits == {"--constraint": "numpy<2\n", "--override": "six==1\n"}
    assert "secret.host" not in lock.read_text()
    assert 'path = "adder-1.0-py3-none-any.whl"' in lock.read_text()
    assert json.loads(lock.read_text().partition("requirements = ")[2].replace(",\n]", "]")) == ["adder"]
    uv.calls.clear()
    project.write_text(project.read_text().partition("[tool.uv]")[0])
    resolve(Resolver.resolve, project, tmp_path / "others")
    assert not [argument for argument in uv.calls[0] if argument.startswith(("--constraint", "--override"))]


def test_requirements_for_one_python_keep_the_versions_of_a_lock_as_long_as_they_fit(
    tmp_path: Path, uv: RecordedUv
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "locks").mkdir()
    file, known = tmp_path / "m" / "requirements.txt", tmp_path / "locks" / "pylock.toml"
    file.write_text("adder\n")
    known.write_text(PYLOCK)

    lock = resolve(Resolver.resolve_for_one, file, tmp_path / "locks")

    assert '# constraint-dependencies = ["adder==1.0"]\n' in uv.texts[0]
    assert [call[0] for call in uv.calls] == ["lock", "export"]
    known.write_text(PYLOCK)
    uv.fails = lambda arguments: arguments[0] == "lock" and "adder==1.0" in Path(arguments[-1]).read_text()
    assert resolve(Resolver.resolve_for_one, file, tmp_path / "locks") == lock
    assert "# constraint-dependencies = []\n" in uv.texts[-1]
    assert "[tool.naiad]" in lock.read_text()


@pytest.mark.parametrize("is_upgrade", [False, True])
def test_a_lock_that_suits_all_pythons_is_tried_first(tmp_path: Path, uv: RecordedUv, is_upgrade: bool) -> None:
    file = script(tmp_path / "m", 'requires-python = ">=3.10"', 'dependencies = ["adder"]')
    file.with_name("model.py.lock").write_text("old")
    uv.fails = lambda arguments: ">=3.10" in Path(arguments[-1]).read_text()
    told: list[str] = []
    declaration = read_declaration(file)
    options = InstallOptions(progress=told.append)
    given = (declaration, declaration.requires_python, BASE, options)

    with resolved_lock(*given, is_upgrade=is_upgrade) as lock:
        assert "adder" in lock.read_text()

    assert told[-1] == "the lock is for Python 3.12 alone: nothing suits all of >=3.10"
    assert file.with_name("model.py.lock").read_text() == "old"
    assert len(uv.calls) == 2
    with resolved_lock(declaration, SpecifierSet("==3.12.*"), BASE, options):
        assert len(uv.calls) == 3
    uv.fails = lambda _: True
    with pytest.raises(ExecutionEnvironmentError), resolved_lock(*given):
        pytest.fail("there is no lock")


def test_a_declaration_that_cannot_be_locked_is_not_given_to_uv(tmp_path: Path, uv: RecordedUv) -> None:
    file = tmp_path / "requirements.in"
    file.write_text("adder @ file:///tmp/adder.whl\n")

    with pytest.raises(
        ExecutionEnvironmentError, match=r"cannot lock .*: it takes 'adder' from file:///tmp/adder\.whl"
    ):
        resolve(Resolver.resolve, file, tmp_path / "locks")

    assert not uv.calls
