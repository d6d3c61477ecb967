"""`naiad init`: what it writes, and that it replaces nothing."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from naiad.cli.main import main
from naiad.config.model.declared_environment import read_script_block
from naiad.config.model.text import parse_text
from naiad.core.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad_operations.scaffold.signature import PythonForm, of_hint
from naiad_operations.scaffold.templates import function_model


@pytest.fixture
def naiad(tmp_path, monkeypatch, capsys):
    """Runs a command in the folder of the test: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main([*arguments])
        return code, *capsys.readouterr()

    return run


def function(folder: Path, source: str, name: str = "f"):
    (folder / "module.py").write_text(source)
    return function_model("m", "models", f"module:{name}", [str(folder)])


def tensors(scaffold):
    config = parse_text(scaffold.files["models/m/config.pbtxt"], "config.pbtxt")
    found = {one.name: (Datatype(one.data_type).name, list(one.dims), one.optional) for one in config.input}
    return found, {one.name: (Datatype(one.data_type).name, list(one.dims)) for one in config.output}


@pytest.mark.parametrize(
    "arguments", [["model", "plain"], ["model", "quote", "--from", "pricing:quote"], ["backend", "greet"]]
)
def test_a_file_that_is_written_imports_what_it_uses_and_nothing_else(naiad, tmp_path, arguments):
    (tmp_path / "pricing.py").write_text("def quote(amount: float) -> float:\n    return amount\n")
    code, out, err = naiad("init", *arguments)
    assert (code, err) == (0, "")
    unused, unknown = [], []
    for name in [line.removeprefix("wrote ") for line in out.splitlines() if line.endswith(".py")]:
        if not (tmp_path / name).exists():  # a command to run next
            continue
        text = (tmp_path / name).read_text()
        block = read_script_block(text, name)
        assert block is None or "3.8.0" in block.requires_python, "guests may have the oldest Python that is supported"
        nodes = list(ast.walk(ast.parse(text)))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        arguments_of_functions = {node.arg for node in nodes if isinstance(node, ast.arg)}
        unused += [(name, each) for each in imported - used]
        known = imported | stored | defined | arguments_of_functions | {*dir(builtins), "__file__"}
        unknown += [(name, each) for each in used - known]
    assert (unused, unknown) == ([], [])


@pytest.mark.parametrize("kind", ["model", "backend"])
def test_existing_files_are_never_replaced_and_no_file_is_half_written(naiad, tmp_path, kind):
    assert naiad("init", kind, "mine")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    lost = min(before)
    lost.unlink()

    code, out, err = naiad("init", kind, "mine")

    assert (code, out) == (1, "")
    assert "cannot write: these files exist: " in err
    assert not lost.exists()
    assert all(path.read_bytes() == content for path, content in before.items() if path != lost)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "-x", "m\n"])
def test_names_that_folders_of_a_repository_cannot_have_are_refused(naiad, tmp_path, name):
    code, _, err = naiad("init", "model", "--", name)

    assert code == 1
    assert f"cannot create a model named '{name}': a name has" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("int", (Datatype.INT64, (1,), PythonForm.SCALAR)),
        ("float", (Datatype.FP64, (1,), PythonForm.SCALAR)),
        ("bool", (Datatype.BOOL, (1,), PythonForm.SCALAR)),
        ("str", (Datatype.BYTES, (1,), PythonForm.TEXT)),
        ("bytes", (Datatype.BYTES, (1,), PythonForm.SCALAR)),
        ("Optional[str]", (Datatype.BYTES, (1,), PythonForm.TEXT)),
        ("int | None", (Datatype.INT64, (1,), PythonForm.SCALAR)),
        ("'list[float]'", (Datatype.FP64, (-1,), PythonForm.LIST)),
        ("typing.List[str]", (Datatype.BYTES, (-1,), PythonForm.TEXTS)),
        ("Sequence[Sequence[int]]", (Datatype.INT64, (-1, -1), PythonForm.LIST)),
        ("tuple[int, ...]", (Datatype.INT64, (-1,), PythonForm.LIST)),
        ("np.ndarray", (Datatype.FP32, (-1,), PythonForm.ARRAY)),
        ("NDArray[np.int16]", (Datatype.INT16, (-1,), PythonForm.ARRAY)),
        ("np.ndarray[Any, np.dtype[np.uint8]]", (Datatype.UINT8, (-1,), PythonForm.ARRAY)),
        ("npt.NDArray[np.bool_]", (Datatype.BOOL, (-1,), PythonForm.ARRAY)),
        ("np.float32", (Datatype.FP32, (1,), PythonForm.SCALAR)),
        ("Annotated[float, 'm']", (Datatype.FP64, (1,), PythonForm.SCALAR)),
        ("dict[str, int]", None),
        ("tuple[int, str]", None),
        ("Frame", None),
        ("int | str", None),
        ("None", None),
    ],
)
def test_hints_say_what_a_tensor_is(hint, expected):
    found = of_hint(ast.parse(hint, mode="eval").body)

    assert (found and (found.datatype, found.dims, found.form)) == expected


def test_a_parameter_without_a_hint_is_an_array_and_a_note_says_so(tmp_path):
    scaffold = function(tmp_path, "def f(x, n=3, *, deep=False) -> float:\n    return 1.0\n")

    assert tensors(scaffold) == (
        {"x": ("FP32", [-1], False), "n": ("INT64", [1], True), "deep": ("BOOL", [1], True)},
        {"result": ("FP64", [1])},
    )
    assert "'x' has no type hint: assumed an array of float32, see config.pbtxt" in scaffold.notes


def test_an_array_is_assumed_to_have_one_dimension_and_a_note_says_so(tmp_path):
    source = "import numpy as np\n\ndef f(x: np.ndarray, n: int) -> np.ndarray:\n    return x\n"

    scaffold = function(tmp_path, source)

    (note,) = [note for note in scaffold.notes if "dimensions" in note]
    assert note == (
        "the number of dimensions of 'x', 'result' is assumed to be one: if it is another, write dims: [ -1, -1 ] or "
        "the like in config.pbtxt"
    )
    assert tensors(scaffold)[0] == {"x": ("FP32", [-1], False), "n": ("INT64", [1], False)}


@pytest.mark.parametrize(
    ("record", "result"),
    [
        ("class Out(TypedDict):", "{'low': 1, 'names': ['a']}"),
        ("class Out(NamedTuple):", "Out(1, ['a'])"),
        ("@dataclass\nclass Out:", "Out(1, ['a'])"),
    ],
)
def test_fields_of_a_record_are_outputs_of_their_names(tmp_path, record, result):
    source = (
        "from dataclasses import dataclass\nfrom typing import NamedTuple, TypedDict\n\n\n"
        f"{record}\n    low: int\n    names: list[str]\n\n\ndef f(x: int, /, y: int = 2) -> Out:\n    return {result}\n"
    )

    scaffold = function(tmp_path, source)

    assert tensors(scaffold)[1] == {"low": ("INT64", [1]), "names": ("BYTES", [-1])}
    for name, content in scaffold.files.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    # The scaffolded test, as its user would run it.
    runpy.run_path(str(tmp_path / "out" / "tests" / "test_m.py"))["test_m_answers"]()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def g(x: int): ...", "its functions are: g"),
        ("async def f(x: int): ...", "'f' is async; name a plain function that calls it"),
        ("def f(x: int):\n    yield x", "'f' is a generator, and a request has one response"),
        ("class f: ...", "'f' is a class; name a function that uses it"),
        ("from other import f", "'f' is imported there; name it as other:f"),
        ("def f(): ...", "'f': it has no parameters, and a request has at least one input"),
        ("def f(*x: int): ...", "'f': *x has no name for an input; use a parameter with a list"),
        ("def f(x: Frame): ...", "'f': 'x: Frame' is not a tensor; supported types are int, float"),
        ("def f(x: int) -> dict: ...", "'f': it returns 'dict', which is not a tensor; supported types are int"),
        ("def f(x: int", "cannot read module 'module' from"),
    ],
)
def test_a_function_that_no_request_can_call_is_refused_with_its_place(tmp_path, source, message):
    with pytest.raises(ScaffoldError) as refused:
        function(tmp_path, source)

    assert message in refused.value.message
    assert str(tmp_path / "module.py") in refused.value.message


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("pricing", "cannot read --from 'pricing': expected package.module:function, such as pricing:FUNCTION"),
        ("pricing:", "cannot read --from 'pricing:': expected package.module:function, such as pricing:FUNCTION"),
        ("pricing.py", "expected package.module:function, such as pricing:FUNCTION"),
        ("pricing.py:quote", "expected package.module:function, such as pricing:quote"),
        ("./src/pricing.py:quote()", "expected package.module:function, such as src.pricing:quote"),
        ("/src/pricing.py:quote", "function, with a function at the top level of a module that can be imported here"),
        ("pricing:Prices.quote", "function, with a function at the top level of a module that can be imported here"),
        ("nowhere.at:all", "cannot find module 'nowhere': no 'nowhere' in "),
        ("itertools:chain", "cannot find module 'itertools'"),
    ],
)
def test_a_function_that_is_not_there_is_refused(tmp_path, named, message):
    with pytest.raises(ScaffoldError) as refused:
        function_model("m", "models", named, [str(tmp_path)])

    assert message in refused.value.message


def test_an_installed_function_is_imported_and_not_copied():
    scaffold = function_model("m", "models", "posixpath:basename", sys.path)

    assert [name for name in scaffold.files if name.startswith("models/m/1/")] == ["models/m/1/model.py"]
    assert any("is installed here: the model's environment needs it, too" in note for note in scaffold.notes)


def test_the_code_of_a_function_is_found_without_running_it(tmp_path):
    source = "raise SystemExit('imported')\ndef f(x: int) -> int:\n    return x\n"

    assert tensors(function(tmp_path, source))[0] == {"x": ("INT64", [1], False)}


@pytest.mark.parametrize("is_installed", [False, True])
def test_a_client_that_lacks_its_package_is_told_how_to_get_it(naiad, monkeypatch, is_installed):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: is_installed or None if name == "tritonclient" else found(name)
    )
    _, printed, _ = naiad("init", "model", "double")
    assert (
        "note: clients/double.py needs tritonclient: pip install 'tritonclient[http]'" in printed
    ) is not is_installed


def test_a_saved_file_becomes_a_model_of_its_name(naiad, tmp_path):
    (tmp_path / "digits.onnx").write_bytes(b"graph")

    code, printed, _ = naiad("init", "--from", "digits.onnx")

    model = tmp_path / "models" / "digits"
    assert code == 0
    assert printed == (
        "wrote models/digits/config.pbtxt\nwrote models/digits/1/model.onnx\nnext:\n"
        "    naiad env prefetch --model-repository=models\n    naiad serve --model-repository=models\n"
        "    curl localhost:8000/v2/models/digits/config\n"
    )
    assert (model / "1" / "model.onnx").read_bytes() == b"graph"
    assert not (model / "1" / "model.onnx").is_symlink()
    assert 'backend: "onnxruntime"' in (model / "config.pbtxt").read_text()


def test_a_saved_file_may_be_linked_and_have_another_name(naiad, tmp_path):
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "MLmodel").write_text("flavors: {}")

    code, printed, _ = naiad("init", "model", "prices", "--from", "mlflow", "--link")

    assert code == 0
    assert "naiad env prefetch --model-repository=models --env-build=allowed" in printed
    assert (tmp_path / "models" / "prices" / "1").resolve() == tmp_path / "mlflow"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--from", "digits.onnx", "--name", "taken"],
            "cannot write: these files exist: models/taken/config.pbtxt; choose",
        ),
        (["--from", "nothing.onnx"], "nothing.onnx': it does not exist; correct the path"),
        (["--from", "weights.h5"], "no backend is known for files that end in '.h5'; known are"),
        (["--from", "digits.onnx", "--name", "-x"], "cannot create a model named '-x'"),
        (["model", "m", "--from", "nothing"], "nothing': it does not exist; correct the path"),
        (["--from", "digits.onnx", "model", "m"], "--from is written after 'model' and its NAME"),
        (["model", "m", "--from", "./code.py:f"], "cannot read --from './code.py:f': expected package.module:function"),
        (["model", "m", "--from", "code:K.f"], "cannot read --from 'code:K.f': expected package.module:function"),
        (
            ["model", "m", "--from", "code"],
            "cannot read --from 'code': expected package.module:function, such as code:",
        ),
        (["--from", "code:f"], "for a function, use `naiad init model NAME --from MODULE:FUNCTION`"),
    ],
)
def test_a_file_that_cannot_become_a_model_is_refused_with_the_reason(naiad, tmp_path, arguments, message):
    (tmp_path / "digits.onnx").write_bytes(b"graph")
    (tmp_path / "weights.h5").write_bytes(b"")
    (tmp_path / "code.py").write_text("")
    (tmp_path / "models" / "taken").mkdir(parents=True)
    (tmp_path / "models" / "taken" / "config.pbtxt").write_text("")

    code, _, printed = naiad("init", *arguments)

    assert code in {1, 2}
    assert message in printed
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["taken"]
