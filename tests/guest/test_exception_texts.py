"""The reference's text of a model's exception: type, message, and the model's frames from the innermost outwards.

The shape (frames, order, indent, `<EMPTY MESSAGE>`, no frames for a call with wrong arguments) was read off Triton 2.51
with models like the one below; where we say more than it does, the test says so.
"""

import sys

import pytest
from naiad_stub.exceptions import TritonModelException
from naiad_stub.loader import format_exception
from naiad_stub.tensor import Tensor

MODEL = """import asyncio
class Model:
    def deep(self, n):
        if n: return self.deep(n - 1)
        {}["k"]
    def nested(self):
        self.deep(1)
    def api(self):
        make("", [1])
    def protected(self):
        try:
            {}["other"]
        finally:
            x = 1
            y = 2
    def anonymous(self):
        (lambda: 1 / 0)()
    def generator(self):
        list(1 / 0 for _ in [1])
    async def inner(self):
        await asyncio.sleep(0)
        {}["inner"]
    async def outer(self):
        await self.inner()
    def run(self):
        asyncio.run(self.outer())
    def empty(self):
        raise ValueError
    def leave(self):
        sys.exit(4)
    def own(self):
        raise Custom("mine")
    def caused(self):
        try: {}["k"]
        except KeyError as error:
            raise ValueError("second") from error
    def surrogate(self):
        raise ValueError("\\udcff")
    def unprintable(self):
        raise Unprintable
    def wrong_call(self, more): pass
"""

# Stands in for the process loop, which calls the model and catches what it raises.
STUB = """
def texts_of(function):
    try:
        function()
    except BaseException as error:
        return format_exception(error)
    raise AssertionError("nothing was raised")
def find_fault():
    raise TritonModelException("Expected a list")
"""


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.fixture
def model():
    """An object of a class whose code stands in /m/1/model.py."""
    scope = {
        "make": Tensor,
        "sys": sys,
        "Custom": TritonModelException,
        "Unprintable": Unprintable,
        "__name__": "1.model",
    }
    exec(compile(MODEL, "/m/1/model.py", "exec"), scope)
    return scope["Model"]()


@pytest.fixture
def stub():
    """Functions that stand in the stub."""
    scope = {
        "__name__": "naiad_stub.fake",
        "TritonModelException": TritonModelException,
        "format_exception": format_exception,
    }
    exec(compile(STUB, "/s/fake.py", "exec"), scope)
    return scope


@pytest.fixture
def texts_of(stub):
    return stub["texts_of"]


def at(*frames):
    """The lines of frames, each a function and *code*, a line of the model."""
    lines = [text.strip() for text in MODEL.splitlines()]
    return "".join(f"  /m/1/model.py({lines.index(code) + 1}): {function}\n" for function, code in frames)


UNPRINTABLE = "Unprintable: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION> (RuntimeError in __str__)"


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (
            "KeyError: 'k'",
            [("deep", '{}["k"]'), ("deep", "if n: return self.deep(n - 1)"), ("nested", "self.deep(1)")],
        ),
        ("TritonModelException: Tensor name cannot be an empty string.", [("api", 'make("", [1])')]),
        ("ZeroDivisionError: division by zero", [(name, "(lambda: 1 / 0)()") for name in ("<lambda>", "anonymous")]),
        ("ValueError: <EMPTY MESSAGE>", [("empty", "raise ValueError")]),
        ("SystemExit: 4", [("leave", "sys.exit(4)")]),
        ("TritonModelException: mine", [("own", 'raise Custom("mine")')]),
        ("ValueError: second", [("caused", 'raise ValueError("second") from error')]),
        ("ValueError: \\udcff", [("surrogate", 'raise ValueError("\\udcff")')]),
        (UNPRINTABLE, [("unprintable", "raise Unprintable")]),
        # The reference names the last line of `finally`, where the frame was left; this is where it happened.
        ("KeyError: 'other'", [("protected", '{}["other"]')]),
        # The reference loses the callers of generators and coroutines.
        (
            "ZeroDivisionError: division by zero",
            [(name, "list(1 / 0 for _ in [1])") for name in ("<genexpr>", "generator")],
        ),
    ],
)
def test_exceptions_have_the_texts_of_the_reference(texts_of, model, message, frames):
    """The last frame is that of the method that is called."""
    assert texts_of(getattr(model, frames[-1][0]))[0] == f"{message}\n\nAt:\n{at(*frames)}"


def test_a_coroutines_callers_are_named(texts_of, model):
    text, _ = texts_of(model.run)

    frames = at(("inner", '{}["inner"]'), ("outer", "await self.inner()"))
    assert text.startswith(f"KeyError: 'inner'\n\nAt:\n{frames}")
    assert text.endswith(at(("run", "asyncio.run(self.outer())")))


def test_a_call_with_wrong_arguments_has_no_frames(texts_of, model):
    text, traceback_text = texts_of(model.wrong_call)

    assert text.startswith("TypeError: ")
    assert text.endswith("wrong_call() missing 1 required positional argument: 'more'")
    assert traceback_text == text + "\n"


def test_an_error_of_the_stub_is_its_message_alone(stub, texts_of):
    assert texts_of(stub["find_fault"]) == ("Expected a list", "Expected a list")


def test_the_traceback_begins_in_the_model_and_keeps_causes(texts_of, model):
    _, traceback_text = texts_of(model.caused)

    assert "fake.py" not in traceback_text
    assert "KeyError: 'k'\n\nThe above exception was the direct cause of the following exception:" in traceback_text
    assert traceback_text.endswith("in caused\nValueError: second\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with 3.11")
def test_notes_of_an_exception_are_included(texts_of):
    """Triton 2.51 leaves them out; they are written to be read."""

    def raise_with_notes():
        error = ValueError("x")
        error.add_note("one")
        error.add_note("two")
        raise error

    assert texts_of(raise_with_notes)[0].startswith("ValueError: x\n__notes__ (len=2):\none\ntwo\n\nAt:\n")


def test_an_exception_that_cannot_be_printed_does_not_end_the_guest(texts_of):
    """Whatever `__str__` raises, of the exception or of a note."""

    class Ends:
        def __str__(self):
            raise SystemExit(3)

    class EndsWithNote(Ends, Exception):
        __notes__ = [Ends()]  # noqa: RUF012 - as code before Python 3.11 set them

    def raise_it():
        raise EndsWithNote

    unprinted = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION> (SystemExit in __str__)"
    start = f"EndsWithNote: {unprinted}\n__notes__ (len=1):\n{unprinted}\n\nAt:\n"
    assert texts_of(raise_it)[0].startswith(start)


def test_an_exception_whose_frames_do_not_lead_to_the_stub_is_reported():
    """One from a thread of the model, for instance: its frames do not lead to the stub."""
    try:
        raise ValueError("x")
    except ValueError as error:
        text, traceback_text = format_exception(error)

    assert text.startswith(f"ValueError: x\n\nAt:\n  {__file__}(")
    assert traceback_text.startswith("Traceback (most recent call last):\n")
