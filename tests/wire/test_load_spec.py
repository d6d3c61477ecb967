"""LOAD carries a typed specification, in the fields that every stub of this protocol reads."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad_stub.load_spec import LoadSpec, NativeCode, PythonCode
from naiad_stub.messages import TO_MAIN_THREAD, Load, pack, unpack
from naiad_stub.wire import FRAME, PROTOCOL_VERSION, Kind, WireError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=4)
VARIABLES = st.dictionaries(st.text(st.characters()), st.text(st.characters()), max_size=4)
"""With surrogates: `os.environ` has one for each byte that is not UTF-8."""
NUMBERS = st.integers(0, 2**63 - 1)
PYTHON = st.builds(PythonCode, TEXTS, TEXTS, is_shared=st.booleans(), environment=TEXTS)
NATIVE = st.builds(
    NativeCode,
    file=TEXTS,
    backend=TEXTS,
    backend_config=TEXTS,
    environ=VARIABLES,
    log_levels=NUMBERS,
    auto_completes=st.booleans(),
    may_set_config=st.booleans(),
    lanes=NAMES,
)
SPECS = st.builds(
    LoadSpec,
    PYTHON | NATIVE,
    model_name=TEXTS,
    model_version=NUMBERS,
    model_dir=TEXTS,
    version_dir=TEXTS,
    model_config=TEXTS,
    instance_name=TEXTS,
    instance_kind=TEXTS,
    device_id=NUMBERS,
    inputs=NAMES,
    outputs=NAMES,
    states=NAMES,
    is_decoupled=st.booleans(),
    completes_config=st.booleans(),
    busy_poll_us=NUMBERS,
    writes_stacks=st.booleans(),
    memory_limit=NUMBERS,
)
ARGUMENTS = {
    "args.model_config": '{"name": "m"}',
    "args.model_instance_kind": "GPU",
    "args.model_instance_name": "m_0_1",
    "args.model_instance_device_id": "1",
    "args.model_repository": "/models/m",
    "args.model_version": "3",
    "args.model_name": "m",
}
FIELDS = {
    "mode": "serve",
    "model_name": "m",
    "instance_name": "m_0_1",
    "model_dir": "/models/m",
    "version_dir": "/models/m/3",
    "decoupled": "1",
    "inputs": "A\0B",
    "outputs": "OUT",
    "states": "",
    "model_config": '{"name": "m"}',
    "busy_poll_us": "50",
    "writes_stacks": "1",
    "memory_limit": "0",
    **ARGUMENTS,
}
PYTHON_FIELDS = {
    **FIELDS,
    "model_file": "/models/m/3/model.py",
    "utils_dir": "/guest/artifacts",
    "shared": "0",
    "environment": "chosen by --python",
}
NATIVE_FIELDS = {
    **FIELDS,
    "model_file": "/backends/b/libtriton_b.so",
    "library": "/backends/b/libtriton_b.so",
    "backend": "b",
    "backend_config": '{"cmdline": {}}',
    "environ": '{"HOME": "/"}',
    "log_levels": "7",
    "auto_completes": "0",
    "may_set_config": "1",
    "lanes": "m_0_1\0m_0_2",
}


def spec_with(code: PythonCode | NativeCode) -> LoadSpec:
    return LoadSpec(
        code,
        model_name="m",
        model_version=3,
        model_dir="/models/m",
        version_dir="/models/m/3",
        model_config='{"name": "m"}',
        instance_name="m_0_1",
        instance_kind="GPU",
        device_id=1,
        inputs=["A", "B"],
        outputs=["OUT"],
        is_decoupled=True,
        busy_poll_us=50,
        writes_stacks=True,
    )


IN_PYTHON = spec_with(PythonCode("/models/m/3/model.py", "/guest/artifacts", environment="chosen by --python"))
NATIVE_ONE = spec_with(
    NativeCode(
        file="/backends/b/libtriton_b.so",
        backend="b",
        backend_config='{"cmdline": {}}',
        environ={"HOME": "/"},
        log_levels=7,
        auto_completes=False,
        may_set_config=True,
        lanes=["m_0_1", "m_0_2"],
    )
)
BOTH_KINDS = pytest.mark.parametrize(
    ("spec", "fields"), [(IN_PYTHON, PYTHON_FIELDS), (NATIVE_ONE, NATIVE_FIELDS)], ids=["python", "native"]
)


@given(SPECS)
def test_a_specification_arrives_as_it_was_sent(spec):
    received = unpack(TO_MAIN_THREAD, Kind.LOAD, pack(spec.message())[FRAME.size :])
    assert isinstance(received, Load)
    found = LoadSpec.from_message(received)
    assert found == spec
    assert type(found.code) is type(spec.code)


@BOTH_KINDS
def test_the_fields_of_load_are_those_that_stubs_of_this_protocol_read(spec, fields):
    assert PROTOCOL_VERSION == 8
    assert spec.message().fields == fields
    assert LoadSpec.from_message(Load(fields)) == spec


@BOTH_KINDS
def test_a_guest_ignores_fields_that_it_does_not_know(spec, fields):
    assert LoadSpec.from_message(Load({**fields, "of_a_later_release": "1", "args.more": ""})) == spec


@pytest.mark.parametrize("name", ["states", "environment", "memory_limit"])
def test_fields_that_were_added_to_this_protocol_have_a_default(name):
    fields = {key: value for key, value in PYTHON_FIELDS.items() if key != name}
    found = LoadSpec.from_message(Load(fields))
    assert isinstance(found.code, PythonCode)
    assert (found.states, found.code.environment, found.memory_limit) == (
        (),
        "" if name == "environment" else "chosen by --python",
        0,
    )


@pytest.mark.parametrize("name", sorted({"model_name", "args.model_version", "inputs", "model_file", "utils_dir"}))
def test_a_missing_field_is_named(name):
    fields = {key: value for key, value in PYTHON_FIELDS.items() if key != name}
    with pytest.raises(WireError, match=rf"^LOAD has no field '{name}'$"):
        LoadSpec.from_message(Load(fields))


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("mode", "sleep", "'complete' or 'serve'"),
        ("decoupled", "yes", "'1' or '0'"),
        ("writes_stacks", "", "'1' or '0'"),
        ("memory_limit", "much", "a number"),
        ("args.model_version", "1.5", "a number"),
        ("environ", "{", "a JSON object of strings"),
        ("environ", '["HOME"]', "a JSON object of strings"),
        ("environ", '{"HOME": 1}', "a JSON object of strings"),
    ],
)
def test_a_malformed_field_is_named_with_what_belongs_there(name, text, wanted):
    with pytest.raises(WireError) as caught:
        LoadSpec.from_message(Load({**NATIVE_FIELDS, name: text}))
    assert str(caught.value) == f"field '{name}' of LOAD is '{text}', not {wanted}"


def test_a_model_is_initialized_with_the_dictionary_of_the_reference():
    assert IN_PYTHON.arguments() == {name[len("args.") :]: value for name, value in ARGUMENTS.items()}


def test_a_specification_for_another_instance_differs_in_what_belongs_to_the_instance():
    other = IN_PYTHON.for_instance("m_0_2", "CPU", 0, "{}")
    before, after = IN_PYTHON.message().fields, other.message().fields
    assert {name for name in before if before[name] != after[name]} == {
        "instance_name",
        "model_config",
        "args.model_config",
        "args.model_instance_kind",
        "args.model_instance_name",
        "args.model_instance_device_id",
    }
    assert IN_PYTHON.instance_name == "m_0_1"


def test_a_native_backend_gets_variables_that_are_not_utf_8():
    variable = os.fsdecode(b"caf\xe9")
    code = NativeCode(
        file="", backend="b", backend_config="{}", environ={variable: variable}, log_levels=0, auto_completes=False,
        may_set_config=False,
    )  # fmt: skip
    received = unpack(TO_MAIN_THREAD, Kind.LOAD, pack(spec_with(code).message())[FRAME.size :])
    assert isinstance(received, Load)
    found = LoadSpec.from_message(received).code
    assert isinstance(found, NativeCode)
    assert os.fsencode(found.environ[variable]) == b"caf\xe9"


def test_specifications_of_the_two_kinds_differ_and_show_their_fields():
    assert IN_PYTHON != NATIVE_ONE
    assert repr(IN_PYTHON).startswith("LoadSpec(code=PythonCode(file='/models/m/3/model.py', utils_dir=")
