"""What is printed at start-up and by `naiad explain`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from models.resolution.makers import STUB, resolve_m

from naiad.environments.activation import NOT_ACTIVATED, Activation
from naiad.models.resolution.explain import explain_plainly
from naiad.models.resolution.tables import (
    agent_table,
    backend_table,
    failed_models,
    model_table,
    option_table,
    text_table,
)

OWN, SHARED = "/repo/m/1/model.py", "/b1/x/model.py"
CMDLINE = (
    '{"cmdline":{"auto-complete-config":"true","backend-directory":"/b1","min-compute-capability":"6.000000",'
    '"default-max-batch-size":"4"}}'
)


def joined_rows(table: str) -> list[list[str]]:
    """The cells of each row, of which the table breaks long ones into lines."""
    rows: list[list[str]] = []
    for line in table.splitlines()[3:-1]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [before + more for before, more in zip(rows[-1], cells, strict=True)]
    return rows


@dataclasses.dataclass
class Ready:
    prefix: Path = Path("/store/abc")
    python: Path = Path("/store/abc/bin/python")
    version: tuple[int, int, int] = (3, 10, 13)
    numpy_version: str | None = "1.26.4"
    activation: Activation = NOT_ACTIVATED


def test_a_table_looks_as_the_reference_prints_it():
    assert model_table([("m", 1, "READY"), ("bad", None, "")]) == (
        "+-------+---------+----------------------------------------+\n"
        "| Model | Version | Status                                 |\n"
        "+-------+---------+----------------------------------------+\n"
        "| bad   | -       | Not loaded: No model version was found |\n"
        "| m     | 1       | READY                                  |\n"
        "+-------+---------+----------------------------------------+\n"
    )


def test_a_cell_of_several_lines_makes_its_row_higher():
    assert text_table(("A", "B"), [("1", "x\ny"), ("2", "")]).splitlines()[3:] == [
        "| 1 | x |",
        "|   | y |",
        "| 2 |   |",
        "+---+---+",
    ]


def test_a_table_without_rows_has_its_head():
    assert agent_table().splitlines()[1:] == ["| Repository Agent | Path |", *["+------------------+------+"] * 2]


def test_versions_are_ordered_as_numbers():
    table = model_table([("m", 10, "READY"), ("m", 9, "READY")])
    assert table.index("| 9 ") < table.index("| 10 ")


def test_a_shared_backend_brings_a_row_of_its_own_and_one_for_python():
    rows = joined_rows(backend_table([resolve_m({SHARED}, backend="x"), resolve_m({SHARED}, backend="x")]))
    assert rows == [
        ["python", f"/guest/artifacts/{STUB}", CMDLINE],
        ["x", "/b1/x/model.py", CMDLINE],
    ]


def test_models_of_python_alone_have_one_row():
    assert [row[0] for row in joined_rows(backend_table([resolve_m({OWN})]))] == ["python"]


def test_python_is_the_first_backend_with_the_stub_that_runs():
    table = backend_table([resolve_m({"/b1/a/model.py"}, backend="a"), resolve_m({OWN, f"/repo/m/{STUB}"})])
    rows = joined_rows(table)
    assert [row[:2] for row in rows] == [
        ["python", f"/repo/m/{STUB}/guest/artifacts/{STUB}"],
        ["a", "/b1/a/model.py"],
    ]


def test_long_cells_of_the_backends_are_wrapped():
    (line,) = {len(line) for line in backend_table([resolve_m({SHARED}, backend="x")]).splitlines()}
    assert line < 160


def test_a_path_is_never_wrapped():
    """Scripts look for it in the log."""
    deep = "/".join(["", *["folder"] * 30])
    stub, shared = f"{deep}/m/{STUB}", f"{deep}/x/model.py"
    table = backend_table(
        [resolve_m({OWN, f"/repo/m/{STUB}"}), resolve_m({f"/b1/{'x' * 90}/model.py"}, backend="x" * 90)]
    )
    assert f"/b1/{'x' * 90}/model.py" in table
    assert f"UNAVAILABLE: cannot read {shared}" in " ".join(
        cell.split("|")[3].strip()
        for cell in model_table([("m", 1, f"UNAVAILABLE: cannot read {shared}")]).splitlines()[3:-1]
    )
    assert stub in option_table([("model_repository_path[0]", stub)])


def test_the_reason_of_a_model_that_failed_is_wrapped_between_words():
    reason = "UNAVAILABLE: Internal: " + "the file is missing; " * 20
    trace = "UNAVAILABLE: error\n  File model.py\n\n" + "x" * 200
    lines = model_table([("m", 1, reason.strip()), ("n", 2, trace)]).splitlines()
    assert {len(line) for line in lines} == {len("| Model | Version |  |") + 200}
    cells = [line.split("|")[3].strip() for line in lines[3:-1]]
    assert " ".join(cells[: cells.index("UNAVAILABLE: error")]) == reason.strip()
    assert cells[cells.index("UNAVAILABLE: error") :] == [
        "UNAVAILABLE: error", "File model.py", "", "x" * 200
    ]  # fmt: skip
    assert "|   File model.py " in "\n".join(lines)


def test_an_explanation_has_what_activation_does_and_what_is_wrong_with_it():
    activation = Activation(fixed={"A": "1"}, scripts=("gdal.sh",), changes={"B": None}, problems=("gdal.sh failed",))
    text = explain_plainly(resolve_m({SHARED: ""}, backend="x"), Ready(activation=activation))

    assert "  activation  A, B\n              set by gdal.sh\n" in text
    assert text.endswith("  note        gdal.sh failed\n")
    assert "activation" not in explain_plainly(resolve_m({SHARED: ""}, backend="x"), Ready())


def test_an_explanation_has_the_searched_places_the_choice_and_its_reason():
    text = explain_plainly(resolve_m({SHARED: "", f"/repo/m/{STUB}": b"\x7fELF"}, backend="x"), Ready())
    for part in (
        "model 'm' version 1, in /repo/m",
        "  backend     x (shared)",
        "- /repo/m/1/libtriton_x.so (not found)",
        "+ /b1/x/model.py (found)",
        "  model file  /b1/x/model.py",
        f"  utils       {Path('/guest/artifacts')}",
        f"  stub        /guest/artifacts/{STUB}",
        "  environment none",
        "- /b1/x/pb_exec_env_model.py.tar.gz (not found)",
        "  python      any",
        "  interpreter Python 3.10.13: /store/abc/bin/python",
        "in /store/abc, with numpy 1.26.4",
        f"  note        '/repo/m/{STUB}' is a compiled stub of another implementation",
    ):
        assert part in text


def test_a_step_reads_as_one_line_in_the_debug_log():
    step = resolve_m({SHARED}, backend="x").steps[0]
    assert str(step) == (
        "backend: x (shared) (there is no libtriton_x.so, and this is the first model.py; looked at: "
        "/repo/m/1/libtriton_x.so (not found), /repo/m/libtriton_x.so (not found), /b1/x/libtriton_x.so (not found), "
        "/b2/x/libtriton_x.so (not found), /b1/x/model.py (found))"
    )


def test_the_models_that_failed_are_named_with_the_first_line_of_their_reasons():
    rows = [
        ("b", 2, "UNAVAILABLE: Internal: no module 'x'; add it\n\nAt:\n  model.py(1)"),
        ("b", 1, "UNAVAILABLE: Internal: the first version's reason"),
        ("a", 1, "READY"),
        ("d", None, "UNAVAILABLE: it needs 'b'"),
        ("c", 1, f"UNAVAILABLE: Invalid argument: {'long ' * 90}"),
        ("e", 1, "UNAVAILABLE: Internal: e"),
        ("f", None, ""),
    ]
    assert failed_models(rows) == (
        f"4 of 6 models failed: b (the first version's reason), c ({'long ' * 79}...), d (it needs 'b') "
        "and 1 more, see above"
    )
    assert failed_models(rows[:1]) == "1 of 1 models failed: b (no module 'x'; add it)"
    assert failed_models([rows[4]]) == f"1 of 1 models failed: c ({' '.join(['long'] * 90)})"
    assert failed_models([("a", 1, "READY"), ("f", None, "")]) == ""


def test_the_reason_of_a_model_begins_with_the_line_of_its_code():
    crash = "pid 5 was killed by SIGSEGV. Its last lines on stderr:\nFatal Python error"
    places = {
        "OSError: x\n\nAt:\n  /lib/x.py(3): load\n  /r/m/1/model.py(7): f\n  /r/m/1/model.py(9): g\n": "/r/m/1/model.py:7: OSError: x",
        "OSError: x\n\nAt:\n  /lib/x.py(3): load\n": "OSError: x",
        f'{crash}\n  File "/lib/x.py", line 2 in g\n  File "/r/m/1/model.py", line 4 in f\n': "/r/m/1/model.py:4: pid 5 was killed by SIGSEGV.",
        crash: "pid 5 was killed by SIGSEGV.",
    }  # fmt: skip
    for reason, line in places.items():
        assert failed_models([("m", 1, f"UNAVAILABLE: Internal: {reason}")]) == f"1 of 1 models failed: m ({line})"
