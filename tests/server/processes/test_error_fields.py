"""Every error of the owner arrives in a frontend process with its class, text and code."""

from __future__ import annotations

import pytest

from naiad.core import errors
from naiad.core.errors import Code, NaiadError
from naiad.server.processes.messages import FrameKind, pack, unpack

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, NaiadError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_keeps_its_class_text_and_code(kind):
    error = kind("what happened")
    error.code = Code.UNAVAILABLE

    made = unpack(pack(FrameKind.RESULT, error)[8:])

    assert type(made) is kind
    assert (made.message, made.code) == ("what happened", Code.UNAVAILABLE)
