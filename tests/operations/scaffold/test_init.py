"""`naiad init`: what it writes runs, and it replaces nothing."""

from __future__ import annotations

import ast
import contextlib
import os
import pty
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from support.server import ServerProcess

from naiad.config.model.text import parse_text
from naiad.core.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad_operations.scaffold.project import Scaffold
from naiad_operations.scaffold.signature import PythonForm, of_hint
from naiad_operations.scaffold.templates import function_model

NAIAD = Path(sys.executable).with_name("naiad")

PRICING = '''
import numpy as np
import numpy.typing as npt
from helpers.scale import scale


def quote(
    amounts: npt.NDArray[np.float64], currency: str, tags: list[str], rate: float = 2.0, *, exact: bool = False
) -> tuple[npt.NDArray[np.float64], str, int]:
    """Price it."""
    return scale(amounts) * rate, currency.upper() + "".join(tags), len(tags)
'''


def naiad(*arguments, cwd):
    done = subprocess.run([NAIAD, *arguments], cwd=cwd, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout, done.stderr


def function(folder: Path, source: str, name: str = "f"):
    (folder / "module.py").write_text(source)
    return function_model("m", "models", f"module:{name}", [str(folder)])


def tensors(scaffold):
    config = parse_text(scaffold.files["models/m/config.pbtxt"], "config.pbtxt")
    found = {one.name: (Datatype(one.data_type).name, list(one.dims), one.optional) for one in config.input}
    return found, {one.name: (Datatype(one.data_type).name, list(one.dims)) for one in config.output}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_written_is_served_as_it_is_and_passes_its_own_tests(tmp_path):
    (tmp_path / "pricing.py").write_text(PRICING)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").touch()
    (tmp_path / "helpers" / "scale.py").write_text("def scale(x):\n    return x * 10\n")
    for arguments in (["model", "quote", "--from", "pricing:quote"], ["model", "plain"], ["backend", "greet"]):
        code, out, err = naiad("init", *arguments, cwd=tmp_path)
        assert (code, err) == (0, "")
        assert len(out.split("next:\n")[1].splitlines()) == 2
    # Nothing of the project but the repository and the backends is needed from here on.
    (tmp_path / "pricing.py").unlink()

    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout

    options = [f"--backend-directory={tmp_path / 'backends'}"]
    with ServerProcess(tmp_path / "models", *options, work=tmp_path / "work", timeout=60) as server:
        with httpclient.InferenceServerClient(server.http_url) as client:
            answered = client.infer("quote", inputs(client, "quote", amounts=np.ones(2), currency="eur", tags="a"))
            assert answered.as_numpy("result_0").tolist() == [20, 20]
            assert answered.as_numpy("result_1").tolist() == [b"EURa"]
            assert answered.as_numpy("result_2").tolist() == [1]
        for name in ("quote", "plain", "greet_example"):
            asked = subprocess.run(
                [sys.executable, f"clients/{name}.py", "--url", server.http_url],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
            )
            assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("ANSWER [b'hello text'")


@pytest.mark.parametrize(
    "arguments", [["model", "plain"], ["model", "quote", "--from", "pricing:quote"], ["backend", "greet"]]
)
def test_no_file_that_is_written_imports_a_module_it_does_not_use(tmp_path, arguments):
    (tmp_path / "pricing.py").write_text("def quote(amount: float) -> float:\n    return amount\n")
    code, out, err = naiad("init", *arguments, cwd=tmp_path)
    assert (code, err) == (0, "")
    unused = []
    for name in [line.removeprefix("wrote ") for line in out.splitlines() if line.endswith(".py")]:
        if not (tmp_path / name).exists():  # a command to run next
            continue
        nodes = list(ast.walk(ast.parse((tmp_path / name).read_text())))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        bound = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        unused += [(name, each) for each in bound - used]
    assert unused == []


def inputs(client, model, **values):
    metadata = {one["name"]: one for one in client.get_model_metadata(model)["inputs"]}
    made = []
    for name, value in values.items():
        array = np.array([value], dtype=object) if isinstance(value, str) else value
        made.append(
            httpclient.InferInput(name, list(array.shape), metadata[name]["datatype"]).set_data_from_numpy(array)
        )
    return made


@pytest.mark.parametrize("kind", ["model", "backend"])
def test_existing_files_are_never_replaced_and_no_file_is_half_written(tmp_path, kind):
    assert naiad("init", kind, "mine", cwd=tmp_path)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    lost = min(before)
    lost.unlink()

    code, out, err = naiad("init", kind, "mine", cwd=tmp_path)

    assert (code, out) == (1, "")
    assert "cannot write: these files exist: " in err
    assert not lost.exists()
    assert all(path.read_bytes() == content for path, content in before.items() if path != lost)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "-x", "m\n"])
def test_names_that_folders_of_a_repository_cannot_have_are_refused(tmp_path, name):
    code, _, err = naiad("init", "model", "--", name, cwd=tmp_path)

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


def test_at_a_terminal_a_shape_that_no_hint_gives_is_asked_for(tmp_path):
    (tmp_path / "module.py").write_text(
        "import numpy as np\n\ndef f(x: np.ndarray, n: int) -> np.ndarray:\n    return x\n"
    )

    shown = at_a_terminal([NAIAD, "init", "model", "m", "--from=module:f"], tmp_path, b"2\nmany\n3\n")

    assert "number of dimensions of 'x' [1]: " in shown
    assert "number of dimensions of 'result' [1]: " in shown
    assert "note: the number of dimensions" not in shown
    text = (tmp_path / "models" / "m" / "config.pbtxt").read_text()
    scaffold = Scaffold(files={"models/m/config.pbtxt": text}, commands=(), notes=())
    assert tensors(scaffold) == (
        {"x": ("FP32", [-1, -1], False), "n": ("INT64", [1], False)},
        {"result": ("FP32", [-1, -1, -1])},
    )


def at_a_terminal(command, folder, typed):
    """What a command prints at a terminal where *typed* is entered; it must succeed."""
    ours, its = pty.openpty()
    os.write(ours, typed)
    with subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 4096):
                shown += data
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


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
        ("pricing", "cannot read --from 'pricing': expected package.module:function"),
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


def test_a_saved_file_becomes_a_model_of_its_name(tmp_path):
    (tmp_path / "digits.onnx").write_bytes(b"graph")

    code, printed, _ = naiad("init", "--from", "digits.onnx", cwd=tmp_path)

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


def test_a_saved_file_may_be_linked_and_have_another_name(tmp_path):
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "MLmodel").write_text("flavors: {}")

    code, printed, _ = naiad("init", "model", "prices", "--from", "mlflow", "--link", cwd=tmp_path)

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
    ],
)
def test_a_file_that_cannot_become_a_model_is_refused_with_the_reason(tmp_path, arguments, message):
    (tmp_path / "digits.onnx").write_bytes(b"graph")
    (tmp_path / "weights.h5").write_bytes(b"")
    (tmp_path / "models" / "taken").mkdir(parents=True)
    (tmp_path / "models" / "taken" / "config.pbtxt").write_text("")

    code, _, printed = naiad("init", *arguments, cwd=tmp_path)

    assert code in {1, 2}
    assert message in printed
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["taken"]


def test_a_backend_in_c_needs_no_other_header_than_the_one_it_comes_with_and_runs(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: install gcc or clang")
    made = subprocess.run(
        [NAIAD, "init", "backend", "custom", "--native"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    compiling, running = [line.strip() for line in made.stdout.splitlines() if line.startswith("    ")]

    compiling = compiling.replace("cc ", f"{compiler} -Wall -Wextra -Werror ", 1)
    subprocess.run(["bash", "-e", "-c", compiling], cwd=tmp_path, check=True)
    environ = {
        **os.environ,
        "NAIAD_STORE": str(tmp_path / "store"),
        "PATH": f"{NAIAD.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", running], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "OUT  FP32 [1, 3]  [[1., 2., 3.]]" in done.stdout
