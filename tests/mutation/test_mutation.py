"""Mutants of sources, and what becomes of them: the tool that judges the other tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.areas import AREAS, ROOT
from mutation.equivalent import EQUIVALENT
from mutation.operators import Mutant, Source, sample


def mutants(text: str) -> list[Mutant]:
    return Source(Path("/nowhere/sample.py"), "sample.py", text).mutants()


def in_function(*lines: str) -> str:
    return "\n".join(["def f(a, b, c):", *(f"    {line}" for line in lines)])


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a < b", ["a <= b"]),
        ("x = a is None", ["a is not None"]),
        ("x = a and b", ["a or b"]),
        ("x = not a", ["a"]),
        ("x = a + b", ["a - b"]),
        ("a += b", ["a -= b"]),
        ("x = a << b", ["a >> b"]),
        ("x = f(7)", ["f(8)"]),
        ("x = f(True)", ["f(False)"]),
        ("x = min(a, b)", ["max(a, b)"]),
        ("x = any(a)", ["all(a)"]),
        ("if a: pass", ["if not a:"]),
        ("x = b if a() else c", ["b if not a() else c"]),
        ("while a.b: pass", ["while not a.b:"]),
        ("return a", ["return None"]),
        ("f(a)", ["pass"]),
        ("await f(a)", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a[b] = c", ["pass"]),
        ("del a[b]", ["pass"]),
        # What no test should depend on, or what would fail wherever it runs.
        ("return None", []),
        ("x = 'text' + a", []),
        ("x = 'text'", []),
        ("assert a > 1", []),
        ("raise ValueError(f'{a + 1}')", []),
        ("logger.warning('%d', a + 1)", []),
        ("x: Literal[1]", []),
        ("x = zip(a, b, strict=True)", []),
    ],
)
def test_a_line_has_mutants(line: str, changes: list[str]) -> None:
    start = "async " if "await" in line else ""
    assert [each.after for each in mutants(start + in_function(line))] == changes


def test_only_bodies_of_functions_have_mutants() -> None:
    text = "LIMIT = 1 + 1\nclass A:\n    size = 3\n    def f(self, a=4) -> Literal[5]:\n        return self\n"
    text += "    def __repr__(self):\n        return str(self)\n@decorated(6)\ndef g():\n    return LIMIT\n"
    assert [str(each) for each in mutants(text)] == [
        "sample.py:5 A.f: return self  ->  return None",
        "sample.py:10 g: return LIMIT  ->  return None",
    ]


def test_a_constant_is_shown_with_the_expression_around_it() -> None:
    found = [(each.before, each.after) for each in mutants(in_function("x = a > 1 or a > 2"))]
    assert ("a > 1", "a > 2") in found
    assert ("a > 2", "a > 3") in found


def test_the_code_of_a_mutant_replaces_that_of_its_functions() -> None:
    text = "def outer(a):\n    def inner(b):\n        return a + b\n    return inner\n"
    source = Source(Path("/nowhere/sample.py"), "sample.py", text)
    names: dict[str, object] = {}
    exec(compile(text, "/nowhere/sample.py", "exec"), names)
    outer = names["outer"]
    inner = outer(10)
    [mutant] = [each for each in source.mutants() if each.after == "return None" and each.function == "outer.inner"]
    codes = source.code_of(mutant)
    inner.__code__ = codes[mutant.functions[0]]  # it refers to `a` still, or Python refuses it
    assert inner(1) is None
    outer.__code__ = codes[mutant.functions[1]]
    assert outer(10)(1) is None


SAMPLE = """
def limited(value, limit):
    if value > limit:
        return limit
    return value


def unused():
    return limited


def count_down(count):
    while count > 0:
        count -= 1
    return count
"""
TESTS = """
from sample import count_down, limited


def test_limited():
    assert (limited(5, 3), limited(1, 3)) == (3, 1)


def test_count_down():
    assert count_down(3) == 0
"""


def judged(folder: Path, tests: str, *options: str, code: str = SAMPLE) -> tuple[int, list[str]]:
    """The exit code and the output of the tool for a sample and its tests."""
    (folder / "sample.py").write_text(code)
    (folder / "test_sample.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "mutation", "--files", "sample.py", "--tests", "test_sample.py", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{folder}:{ROOT / 'tests'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing all of them takes seconds
        },
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    assert {each.name for each in folder.iterdir()} == {"sample.py", "test_sample.py"}
    return done.returncode, done.stdout.splitlines()


def test_mutants_are_killed_or_listed(tmp_path: Path) -> None:
    code, lines = judged(tmp_path, TESTS, "--grace=1")
    assert "| sample.py | 9 | 7 | 1 | 1 |" in lines  # one of them counts for ever
    assert "survived: sample.py:3 limited: value > limit  ->  value >= limit" in lines
    assert "not reached: sample.py:9 unused: return limited  ->  return None" in lines
    assert (code, lines[-1]) == (1, "fewer than 90% of the mutants were killed in: the files (78%)")


def test_no_mutant_sends_a_signal_to_all_processes(tmp_path: Path) -> None:
    tests = "from sample import ask\n\n\ndef test_ask():\n    ask()\n"
    _, lines = judged(tmp_path, tests, code="import os\n\n\ndef ask():\n    os.kill(0, 0), os.killpg(0, 0)\n")
    assert "| sample.py | 4 | 4 | 0 | 0 |" in lines  # two of them would reach processes that they have not started


def test_a_mutant_that_leaves_a_file_open_is_killed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    tests = "from sample import read\n\n\ndef test_read():\n    read()\n"
    code = "def read():\n    file = open(__file__)\n    cycle = [file]\n    cycle.append(cycle)\n    file.close()\n"
    _, lines = judged(tmp_path, tests, code=code)
    assert "| sample.py | 2 | 1 | 1 | 0 |" in lines  # the end of pytest's process finds the file, and raises


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    every = mutants(SAMPLE)
    chosen = sample(every, 3, 5)
    assert chosen == sample(every, 3, 5)
    assert len(chosen) == 3
    assert chosen == [each for each in every if each in chosen]
    assert any(sample(every, 3, seed) != chosen for seed in range(5))
    assert sample(every, 0, 5) == sample(every, 100, 5) == every


def test_tests_that_fail_without_mutants_judge_nothing(tmp_path: Path) -> None:
    code, lines = judged(tmp_path, TESTS.replace("== 0", "== 1"))
    assert code == 1
    assert "cannot judge the tests of the files: the tests fail without mutants" in lines
    assert any("test_count_down" in line for line in lines)


def test_the_areas_have_files_and_tests() -> None:
    for area in AREAS.values():
        assert area.paths()
        assert all((ROOT / path).exists() for path in area.tests)


def test_equivalent_mutants_are_still_mutants() -> None:
    files = {name for name, *_ in EQUIVALENT}
    known = {each.identity for name in files for each in Source(ROOT / name, name, (ROOT / name).read_text()).mutants()}
    assert EQUIVALENT.keys() - known == set()
