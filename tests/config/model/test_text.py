"""Parsing says where a configuration is wrong and what was probably meant."""

from __future__ import annotations

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.text import parse_json, parse_text
from naiad.core.errors import Code, ConfigError

SOURCE = "/r/m/config.pbtxt"


def text_error(text):
    with pytest.raises(ConfigError) as caught:
        parse_text(text, SOURCE)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def json_error(text):
    with pytest.raises(ConfigError) as caught:
        parse_json(text, "override")
    return caught.value.message


def test_every_notation_of_the_text_format_is_understood():
    message = parse_text(
        """
        # a comment
        name: 'single' "and" 'double'
        max_batch_size: 0x10;
        input { name: "A" data_type: TYPE_FP32 dims: 1 dims: 2 }
        input: [ { name: "B", data_type: 10, dims: [ -1, 3 ] }, < name: "C" > ]
        parameters { key: "k" value { string_value: "caf\\303\\251" } }
        parameters: { key: "l", value: { string_value: "ü" } }
        model_transaction_policy { decoupled: True }
        """,
        SOURCE,
    )

    assert message.name == "singleanddouble"
    assert message.max_batch_size == 16
    assert [(tensor.name, list(tensor.dims)) for tensor in message.input] == [("A", [1, 2]), ("B", [-1, 3]), ("C", [])]
    assert message.input[1].data_type == pb.TYPE_FP16
    assert {key: value.string_value for key, value in message.parameters.items()} == {"k": "café", "l": "ü"}
    assert message.model_transaction_policy.decoupled


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'name: "m"\n\nmax_batchsize: 8\n',
            "3:1: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?",
        ),
        ('input { name: "a" }\ninput {\n  nme: 3 }', "3:3: ModelInput has no field 'nme'; did you mean 'name'?"),
        (
            "optimization { cuda { graph_specs { } } }",
            "1:23: ModelOptimizationPolicy.Cuda has no field 'graph_specs'; did you mean 'graph_spec'?",
        ),
        (
            "model_transaction_policy { decopled: true }",
            "1:28: ModelTransactionPolicy has no field 'decopled'; did you mean 'decoupled'?",
        ),
        (
            "version_policy { newest { } }",
            "1:18: ModelVersionPolicy has no field 'newest'; its fields are latest, all, specific",
        ),
        (
            "response_cache { on: true }",
            "1:18: ModelResponseCache has no field 'on'; its fields are enable",
        ),
        ("input {\n  data_type: TYPE_FP3 }", "2:14: DataType has no value 'TYPE_FP3'; did you mean 'TYPE_FP32'?"),
        ("input { data_type: FP32 }", "1:20: DataType has no value 'FP32'; did you mean 'TYPE_FP32'?"),
        ("input { data_type: type_int8 }", "1:20: DataType has no value 'type_int8'; did you mean 'TYPE_INT8'?"),
        ("input { data_type: TYPE_BYTES }", "1:20: DataType has no value 'TYPE_BYTES'; did you mean 'TYPE_STRING'?"),
        (
            "instance_group [ { kind: CPU } ]",
            "1:26: ModelInstanceGroup.Kind has no value 'CPU'; did you mean 'KIND_CPU'?",
        ),
        (
            "instance_group [ { kind: NPU2000XT } ]",
            "1:26: ModelInstanceGroup.Kind has no value 'NPU2000XT'; its values are KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
        ),
        ('name: "a"\nname: "b"', '2:7: Message type "ModelConfig" should not have multiple "name" fields.'),
        ('max_batch_size: "x"', '1:17: Couldn\'t parse integer: "x"'),
        ("max_batch_size: 99999999999", "1:17: Value out of range: 99999999999"),
        ("input { data_type: 99999999999999999999 }", " Value out of range: 99999999999999999999"),
        ("input [ { name: 'a' }, ]", "1:24: the comma before ']' is one too many: remove it"),
        ("input [\n { dims: [ 1, # rows\n ] }\n]", "3:2: the comma before ']' is one too many: remove it"),
        ("input [ { name: 'a' },, { name: 'b' } ]", "1:23: the comma before ',' is one too many: remove it"),
        ("input [ , { name: 'a' } ]", "1:9: a list begins with an element, not with a comma: remove it"),
        (
            "input [ { name: 'a' }\n{ name: 'b' } ]",
            "2:1: the elements of a list are separated by commas, and the list ends with ]: put one of them here",
        ),
        (
            'parameters { key: "k" value: "v" }',
            '1:30: Expected "{". What this field holds goes in braces: parameters { key: "k" value { string_value: "v" } }',
        ),
        ("max_batch_size: ${batch}", "1:17: '${batch}' is a placeholder: fill in the template"),
        ("input { dims: [ 1, {{ .Values.n }} ] }", "1:20: '{{ .Values.n }}' is a placeholder: fill in the template"),
        (
            'input {\n  name: "x"\n ]',
            "3:2: ']' ends a list, and the '{' of line 1 is still open: is a '}' missing before it?",
        ),
        (
            'input {\n  name: "}" # }\n  dims: 1\noutput {\n name: "Y"\n}\n',
            (
                "4:1: ModelInput has no field 'output', but the configuration has: is a '}' missing before it? The '{' of "
                "line 1 is still open"
            ),
        ),
        (
            "parameters {\n key: 'A'\n value { string_value: '1'\n}\nmax_batch_size: 4",
            (
                "5:1: ModelConfig.ParametersEntry has no field 'max_batch_size', but the configuration has: is a '}' "
                "missing before it? The '{' of line 1 is still open"
            ),
        ),
        (
            "input [\n{\n dims: 1\n]\noutput { }",
            "4:1: ']' ends a list, and the '{' of line 2 is still open: is a '}' missing before it?",
        ),
        ("input {\n  dims: 1\n", "2:9: the file ends, and the '{' of line 1 is still open: add a '}'"),
        ("input { name: 'x' } }", "1:21: no '{' is open here: is this '}' one too many?"),
        (
            "instance_group { count: 1 version_policy { } }",
            "1:27: ModelInstanceGroup has no field 'version_policy'; did you mean 'host_policy'?",
        ),
        ('name: "unterminated', "1:7: String missing ending quote: '\"unterminated'"),
        (
            "dynamic_batching { }\nsequence_batching { }",
            '2:1: Field "sequence_batching" is specified along with field "dynamic_batching", another member of oneof "scheduling_choice" for message type "ModelConfig".',
        ),
    ],
)
def test_a_broken_text_is_refused_with_its_place_and_what_to_write(text, problem):
    assert text_error(text) == f"{SOURCE}:{problem}"


def test_json_takes_enum_names_in_any_case_and_both_spellings_of_fields():
    message = parse_json(
        '{"maxBatchSize": 4, "input": [{"name": "A", "data_type": "type_fp32", "dims": ["2", 3]}],'
        ' "instanceGroup": [{"kind": "Kind_Cpu"}], "parameters": {"kind": {"string_value": "kind_cpu"}},'
        ' "model_warmup": [{"inputs": {"A": {"dataType": "type_int8"}}}]}',
        "override",
    )

    assert message.max_batch_size == 4
    assert message.input[0].data_type == pb.TYPE_FP32
    assert list(message.input[0].dims) == [2, 3]
    assert message.instance_group[0].kind == pb.ModelInstanceGroup.KIND_CPU
    assert message.parameters["kind"].string_value == "kind_cpu"
    assert message.model_warmup[0].inputs["A"].data_type == pb.TYPE_INT8


@pytest.mark.parametrize(
    ("single", "listed"),
    [
        ('{"instance_group": {"count": 2}}', '{"instance_group": [{"count": 2}]}'),
        ('{"instanceGroup": {"profile": "p"}}', '{"instance_group": [{"profile": ["p"]}]}'),
        ('{"input": {"name": "X", "dims": -1}}', '{"input": [{"name": "X", "dims": [-1]}]}'),
        (
            '{"input": [{"dims": "-1", "reshape": {"shape": 1}}]}',
            '{"input": [{"dims": [-1], "reshape": {"shape": [1]}}]}',
        ),
        ('{"version_policy": {"specific": {"versions": 1}}}', '{"version_policy": {"specific": {"versions": [1]}}}'),
        ('{"dynamic_batching": {"preferred_batch_size": 4}}', '{"dynamic_batching": {"preferred_batch_size": [4]}}'),
        ('{"model_warmup": {"inputs": {"X": {"dims": 4}}}}', '{"model_warmup": [{"inputs": {"X": {"dims": [4]}}}]}'),
        ('{"input": [{"dims": [[4, [5]], 6]}]}', '{"input": [{"dims": [4, 5, 6]}]}'),
        ('{"input": [[{"name": "X"}], null, {"name": "Y"}]}', '{"input": [{"name": "X"}, {"name": "Y"}]}'),
        ('{"input": [null]}', "{}"),
    ],
)
def test_a_repeated_field_takes_a_single_value_and_lists_in_lists_as_the_reference(single, listed):
    assert parse_json(single, "override") == parse_json(listed, "override")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((word, True) for word in ("true", "True", "TRUE", "t", "yes", "y", "1")),
        *((word, False) for word in ("false", "f", "no", "N", "0")),
    ],
)
def test_a_switch_may_be_in_quotes(word, value):
    message = parse_json(f'{{"model_transaction_policy": {{"decoupled": "{word}"}}}}', "override")
    assert message.model_transaction_policy.decoupled is value


@pytest.mark.parametrize(("text", "value"), [('"8"', 8), ('"+8"', 8), ('"08"', 8), ("8.0", 8), ("1e1", 10)])
def test_an_integer_may_be_in_quotes_or_written_as_a_whole_decimal(text, value):
    assert parse_json(f'{{"max_batch_size": {text}}}', "override").max_batch_size == value


@pytest.mark.parametrize("text", ["11", '"11"', "11.0", '"TYPE-FP32"', '"type_fp32"'])
def test_the_value_of_an_enum_has_the_spellings_that_the_reference_accepts(text):
    assert parse_json(f'{{"input": [{{"data_type": {text}}}]}}', "override").input[0].data_type == pb.TYPE_FP32


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "m",\n ?}', ":2:2: not JSON: Expecting property name enclosed in double quotes"),
        ("[]", ": a model configuration must be an object, not a list"),
        ('{"max_batchsize": 3}', ": ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"),
        ('{"input": [{}, {"nam": "x"}]}', ": input[1]: ModelInput has no field 'nam'; did you mean 'name'?"),
        (
            '{"input": [{"data_type": "FP32"}]}',
            ": input[0].data_type: DataType has no value 'FP32'; did you mean 'TYPE_FP32'?",
        ),
        ('{"input": [{"name": 3}]}', ": input[0].name must be a string, not a number"),
        ('{"input": [{"dims": [[{}]]}]}', ": input[0].dims[0] must be a single value, not an object"),
        ('{"input": [{}, 3]}', ": input[1] must be an object, not a number"),
        ('{"max_batch_size": [8]}', ": max_batch_size must be a single value, not a list"),
        ('{"dynamic_batching": [{}]}', ": dynamic_batching must be an object, not a list"),
        ('{"parameters": []}', ": parameters must be an object, not a list"),
        ('{"parameters": {"k": "v"}}', ": parameters[k] must be an object, not a string"),
        ('{"version_policy": true}', ": version_policy must be an object, not a boolean"),
        *(
            (f'{{"max_batch_size": "{text}"}}', f": max_batch_size must be an integer, not '{text}'")
            for text in ("x", "1e1", "8.0", " 8", "0x8", "nan", "", "1_0")
        ),
        ('{"input": [{"dims": "4e0"}]}', ": input[0].dims must be an integer, not '4e0'"),
        ('{"max_batch_size": 1099511627776}', ": max_batch_size: Value out of range: 1099511627776"),
        (
            '{"input": [{"data_type": "11.0"}]}',
            (
                ": input[0].data_type: DataType has no value '11.0'; its values are TYPE_INVALID, TYPE_BOOL, TYPE_UINT8, "
                "TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, "
                "TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16"
            ),
        ),
        *(
            (
                f'{{"response_cache": {{"enable": "{text}"}}}}',
                f": response_cache.enable must be true or false, not '{text}'",
            )
            for text in ("on", "off", " true", "", "2")
        ),
        ('{"response_cache": {"enable": 1}}', ": response_cache.enable must be true or false, not a number"),
        (
            '{"dynamic_batching": {}, "sequence_batching": {}}',
            ': Message type "ModelConfig" should not have multiple "scheduling_choice" oneof fields at "ModelConfig"',
        ),
    ],
)
def test_broken_json_is_refused_with_what_is_wrong(text, problem):
    assert json_error(text) == f"override{problem}"


def test_an_empty_text_and_null_in_json_leave_fields_unset():
    assert parse_text("", SOURCE) == pb.ModelConfig()
    assert parse_json('{"max_batch_size": null, "version_policy": null}', "override") == pb.ModelConfig()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"input":' * 100_000, "not a model configuration: nested too deeply"),
        ('{"max_batch_size": 1' + "0" * 5000 + "}", "not a model configuration: a number has thousands of digits"),
        (r'{"\ud800": 1}', r"ModelConfig has no field '\ud800'"),
    ],
    ids=["nested without end", "thousands of digits", "half of a surrogate pair"],
)
def test_hostile_json_is_refused_with_a_text_that_can_be_sent(text, problem):
    assert json_error(text).startswith(f"override: {problem}")


def test_a_file_as_editors_of_windows_write_it_is_understood():
    assert parse_text('\ufeffname: "m"\r\nmax_batch_size: 2\r\n', SOURCE).max_batch_size == 2
