"""The table of the API's functions, and that the implementations are those that it says."""

from __future__ import annotations

import pytest
from naiad_stub.native.core import Core
from naiad_stub.native.errors import ApiCallError
from naiad_stub.native.functions import implementations
from naiad_stub.native.functions.values import ValueFunctions
from naiad_stub.native.model import GROUPS
from naiad_stub.native.signatures import functions

TABLE = functions()


@pytest.fixture
def core():
    return Core(lambda *_: None, log_levels=0b111)


def test_the_table_has_all_functions_of_both_headers_once_and_in_order():
    names = [function.name for function in TABLE]
    assert names == sorted(set(names))
    assert len([name for name in names if name.startswith("TRITONBACKEND_")]) == 91
    assert len([name for name in names if name.startswith("TRITONSERVER_")]) == 172


def test_every_function_is_implemented_or_has_a_reason():
    implemented = set(implementations(GROUPS))
    assert implemented == {function.name for function in TABLE if not function.unsupported}


def test_only_functions_that_return_errors_are_left_out():
    """The fallback returns an error: a function with another result cannot say so."""
    assert {function.result for function in TABLE if function.unsupported} == {"Error"}


def test_every_prototype_can_be_made():
    for function in TABLE:
        function.prototype()


def test_a_method_is_named_after_its_function():
    (found,) = [function for function in TABLE if function.name == "TRITONBACKEND_RequestInputByIndex"]
    assert found.method == "backend_request_input_by_index"


def test_what_a_function_raises_becomes_an_error(core):
    def fail(*_):
        raise ZeroDivisionError("nobody")

    (function,) = [each for each in TABLE if each.name == "TRITONBACKEND_ApiVersion"]
    error = core.take_error(core.guard(function, fail)(0, 0))
    assert (error.code, error.message) == (1, "TRITONBACKEND_ApiVersion failed: ZeroDivisionError: nobody")


def test_a_dead_handle_is_named_with_the_function(core):
    (function,) = [each for each in TABLE if each.name == "TRITONSERVER_MessageDelete"]
    method = implementations([ValueFunctions(core)])[function.name]
    for handle, text in (
        (core.server, "TRITONSERVER_Server 1 is not a live TRITONSERVER_Message"),
        (12345, "0x3039 is not a live TRITONSERVER_Message"),
    ):
        error = core.take_error(core.guard(function, method)(handle))
        assert error.message == f"TRITONSERVER_MessageDelete: {text}"
    assert core.guard(function, method)(0) == 0


def test_a_handle_is_dead_after_its_removal_and_never_used_again(core):
    first = core.new_error(3, "a")
    core.errors.remove(first)
    assert core.new_error(3, "b") != first
    with pytest.raises(ApiCallError, match="is not a live TRITONSERVER_Error: it was released, sent or deleted before"):
        core.errors.remove(first)
