"""What the guest's API must do under any interpreter and numpy: run as `python selfcheck.py STUBS`, prints `ok`.

Written for Python 3.8 and numpy 1.17. Exact texts are tested elsewhere; this finds what differs between versions.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import numpy as np
import queries_check
from naiad_stub import api, loader, runtime
from naiad_stub.exceptions import TritonError
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
MODEL = """
import json
import helper
from . import helper as same
import triton_python_backend_utils as pb_utils
from c_python_backend_utils import Tensor
class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() + helper.one)])]
    def fail(self):
        list(self.deep(n) for n in [0])
    def deep(self, n):
        raise ValueError("from the depths")
"""
LENT_AT_EXIT = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from naiad_stub.tensor import Tensor
unused = Tensor("T", np.arange(3)).to_dlpack()
taken = Tensor.from_dlpack("B", Tensor("T", np.arange(3)).to_dlpack()).as_numpy()
if hasattr(np, "from_dlpack"):
    lent = np.from_dlpack(Tensor("T", np.arange(3)))
print(taken.tolist())
"""


def again(tensor):
    code, shape, data, size = tensor._payload()
    assert len(data) == size
    return Tensor._received(tensor.name(), code, shape, memoryview(bytearray(data)))


def check_tensors():
    for dtype in DTYPES:
        for shape in ((), (3,), (2, 0), (2, 3)):
            array = np.ones(shape, dtype)
            for form in (array, array.T, array.astype(array.dtype.newbyteorder(">"))):
                answer = again(Tensor("T", form)).as_numpy()
                assert answer.dtype == array.dtype, (dtype, answer.dtype)
                assert answer.tolist() == form.tolist()
            assert again(Tensor.from_dlpack("T", Tensor("T", array).to_dlpack())).as_numpy().tolist() == array.tolist()
            if hasattr(np, "from_dlpack"):
                assert np.from_dlpack(Tensor("T", array)).tolist() == array.tolist()
                assert Tensor.from_dlpack("T", array).as_numpy().tolist() == array.tolist()
    items = [b"", b"\0a\0", "\u00e9".encode(), b"x" * 100000]
    for strings in (np.array(items, object), np.array(items, object).reshape(2, 2), np.array(items, "S")):
        assert again(Tensor("T", strings)).as_numpy().tolist() == strings.tolist()


def check_printing():
    code = TritonError("x", TritonError.NOT_FOUND).code()
    assert (str(code), f"{code}", f"{code:d}", code) == ("ErrorCode.NOT_FOUND", "ErrorCode.NOT_FOUND", "2", 2)


def check_lent_at_exit():
    done = subprocess.run([sys.executable, "-c", LENT_AT_EXIT, sys.argv[1]], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[0, 1, 2]\n", b""), done


def texts_of(function):
    """What the stub tells of the exception of *function*, caught in code of the stub."""
    scope = {"__name__": "naiad_stub.fake", "format_exception": loader.format_exception}
    exec("def texts_of(f):\n try: f()\n except Exception as e: return format_exception(e)", scope)
    return scope["texts_of"](function)


def load(model_file):
    version = model_file.parent
    runtime.install(runtime.Runtime(model_dir=str(version)))
    return loader.load_model_class(str(model_file), str(version), str(version.parent), sys.argv[1], shared=False)


def check_model(folder):
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    for name, text in (("model.py", MODEL), ("helper.py", "one = 1"), ("types.py", "x"), ("json.py", "x")):
        (version / name).write_text(text)
    model = load(version / "model.py")()
    assert api.get_model_dir() == str(version)
    tensor = Tensor._received("IN", 8, (2,), memoryview(bytearray(8)))
    (response,) = model.execute([InferenceRequest._received("", 0, 0, 0, [tensor], ["OUT"], "", None)])
    assert isinstance(response, InferenceResponse)
    assert response.output_tensors()[0].as_numpy().tolist() == [1, 1]

    text, traceback_text = texts_of(model.fail)
    path = version / "model.py"
    places = f"  {path}(14): deep\n  {path}(12): <genexpr>\n  {path}(12): fail\n"
    assert text == f"ValueError: from the depths\n\nAt:\n{places}", text
    assert traceback_text.startswith(f'Traceback (most recent call last):\n  File "{path}", line 12, in fail\n')


def check_broken_model(folder):
    path = folder / "m" / "1" / "broken.py"
    path.write_text("def f():\n    1 / 0\nf()\n")
    text, _ = texts_of(lambda: load(path))
    places = f"  {path}(2): f\n  {path}(3): <module>\n  <frozen importlib._bootstrap"
    assert text.startswith(f"ZeroDivisionError: division by zero\n\nAt:\n{places}"), text
    assert text.endswith("): _find_and_load\n"), text


if __name__ == "__main__":
    check_tensors()
    check_printing()
    check_lent_at_exit()
    queries_check.check_all()
    with tempfile.TemporaryDirectory() as name:
        check_model(Path(name).resolve())
        check_broken_model(Path(name).resolve())
    print("ok", sys.version.split()[0], np.__version__)
