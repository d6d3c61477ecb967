"""Imports `TritonPythonModel` by the reference's rules, and formats exceptions in its form.

The folders of the model are appended to `sys.path`, never inserted before it: so a `types.py` beside a `model.py` does
not replace the standard library's, and only a relative import finds it.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType
from typing import Any, List, Optional, Tuple

from naiad_stub import api, dialect
from naiad_stub.exceptions import ModelLoadError, TritonModelException

CLASS_NAME = "TritonPythonModel"
_SUFFIX = ".py"


def load_model_class(model_file: str, version_dir: str, model_dir: str, utils_dir: str, shared: bool) -> type:  # noqa: FBT001 - the flag of the LOAD message
    """Import *model_file* and return its class, with `pb_utils` ready for it.

    Args:
        model_file: Path of the `model.py`.
        version_dir: The version's folder, which `pb_utils.get_model_dir()` names.
        model_dir: The model's folder.
        utils_dir: The folder of `triton_python_backend_utils.py`.
        shared: Whether the file is a shared backend's: then it is a top-level module, and finds only its own folder.
    """
    if not os.path.isfile(model_file):
        raise TritonModelException(f"Python model file not found in '{model_file}'")
    folder, filename = os.path.split(model_file)
    if not filename.endswith(_SUFFIX):
        raise TritonModelException(f"Model name must end with '.py'. Model name is \"{filename}\".")
    name = filename[: -len(_SUFFIX)]
    if shared:
        sys.path += [folder, utils_dir]
    else:
        sys.path += [version_dir, model_dir, utils_dir]
        name = os.path.basename(version_dir.rstrip(os.sep)) + "." + name
    api.prepare(utils_dir)
    dialect.enable_for(model_file)
    # With a list of names, `__import__` returns the module itself and not the package it is in.
    module: Any = __import__(name, fromlist=[CLASS_NAME])
    model_class: type = getattr(module, CLASS_NAME)
    debugger = os.environ.pop("NAIAD_STUB_DEBUG", "")
    if debugger:
        from naiad_stub import debugging

        debugging.attach(model_class, debugger)
    return dialect.adapt(model_class)


def format_exception(exc: BaseException) -> Tuple[str, str]:
    """The text of *exc* for clients in the reference's short form, and the whole traceback for the log.

    The short text is `TypeName: message`, then, if any code of the model was running, a blank line, `At:` and a line
    `  file(line): function` for each frame from the innermost outwards. Frames of the stub are left out of both. A
    ModelLoadError is its message alone, and so is a TritonModelException without frames of the model, which the stub
    raised itself.
    """
    chain = _model_traceback(exc.__traceback__)
    if isinstance(exc, ModelLoadError) or (not chain and isinstance(exc, TritonModelException)):
        return str(exc), str(exc)
    text = f"{type(exc).__name__}: {_message(exc)}"
    lines = [f"  {file}({line}): {function}\n" for file, line, function in _places(chain)]
    if lines:
        text += "\n\nAt:\n" + "".join(lines)
    return text, _full_text(exc, chain)


def place(exc: BaseException) -> Tuple[str, int]:
    """File and line of the model's innermost frame; "model.py" and 0 if no code of the model was running."""
    places = _places(_model_traceback(exc.__traceback__))
    return places[0][:2] if places else ("model.py", 0)


def _message(exc: BaseException) -> str:
    """The exception's own text and its notes, also if their `__str__` raises."""
    text = _printed(exc)
    notes = getattr(exc, "__notes__", None)
    if isinstance(notes, list) and notes:
        text += f"\n__notes__ (len={len(notes)}):" + "".join(f"\n{_printed(note)}" for note in notes)
    # A lone surrogate cannot be sent as UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8") or "<EMPTY MESSAGE>"


def _printed(value: object) -> str:
    """The text of *value*, of a class of the model's."""
    try:
        return str(value)
    except BaseException as error:  # noqa: BLE001 - `__str__` may raise anything, SystemExit included
        return f"<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION> ({type(error).__name__} in __str__)"


def _is_stub(frame: FrameType) -> bool:
    """Whether the frame is the stub's, or that of `naiad.testing`, which replaces it in tests."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(("naiad_stub.", "naiad_embedded.testing."))


def _model_traceback(traceback: Optional[TracebackType]) -> List[TracebackType]:
    """The entries from the first one after the stub called the model, outermost first."""
    chain = []
    while traceback is not None:
        chain.append(traceback)
        traceback = traceback.tb_next
    start = 0
    while start < len(chain) and _is_stub(chain[start].tb_frame):
        start += 1
    return chain[start:]


def _places(chain: List[TracebackType]) -> List[Tuple[str, int, str]]:
    """File, line and function of each frame that is not the stub's, innermost first.

    The reference follows the frames and not the traceback: frames include those of the import system. But the frame of
    a finished generator or coroutine has no caller any more; there the traceback continues.
    """
    places = []
    entered = False
    remaining = list(chain)
    while remaining:
        entry = remaining.pop()
        frame: Optional[FrameType] = entry.tb_frame
        line = entry.tb_lineno
        while frame is not None:
            if not _is_stub(frame):
                entered = True
                places.append((frame.f_code.co_filename, line, frame.f_code.co_name))
            elif entered:
                return places
            frame = frame.f_back
            line = frame.f_lineno if frame is not None else 0
            while remaining and remaining[-1].tb_frame is frame:
                line = remaining.pop().tb_lineno
    return places


def _full_text(exc: BaseException, chain: List[TracebackType]) -> str:
    """Python's own text, with causes and contexts, from the model's first frame on."""
    import traceback

    first = chain[0] if chain else None
    return "".join(traceback.format_exception(type(exc), exc, first))
