"""The rules of getopt_long, which start scripts of the reference rely on."""

from __future__ import annotations

import pytest

from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS


def names(*arguments):
    found, others = split_arguments(arguments, SERVER_FLAGS, "tritonserver")
    return [(flag.name, text) for flag, text in found], others


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--http-port=1"], [("http-port", "1")]),
        (["--http-port", "1"], [("http-port", "1")]),
        (["--http-p=1"], [("http-port", "1")]),
        (["--id="], [("id", "")]),
        (["--id=a=b"], [("id", "a=b")]),
        # What follows a flag is its value, whatever it looks like.
        (["--id", "--http-port"], [("id", "--http-port")]),
        (["--model-store=/a", "--model-repository=/b"], [("model-store", "/a"), ("model-repository", "/b")]),
        (["-h"], [("help", "")]),
        (["--hel"], [("help", "")]),
        # Whole names win over longer ones that start alike.
        (["--grpc-use-ssl=1"], [("grpc-use-ssl", "1")]),
        # Unique for the reference, so unique here, although a flag of our own starts alike.
        (["--en=1"], [("enable-peer-access", "1")]),
        (["--stub-restart-l=1"], [("stub-restart-limit", "1")]),
        # Boolean flags of our own need no value; Triton's do.
        (["--ui", "--id=x"], [("ui", "true"), ("id", "x")]),
        (["--ui"], [("ui", "true")]),
        (["--ui", "false"], [("ui", "false")]),
        (["--allow-http", "--id=x"], [("allow-http", "--id=x")]),
    ],
)
def test_flags_are_understood_as_getopt_does(arguments, found):
    assert names(*arguments) == (found, [])


def test_positional_arguments_may_be_anywhere():
    assert names("a", "--id=x", "-", "--", "--id=y") == ([("id", "x")], ["a", "-", "--id=y"])


@pytest.mark.parametrize(
    ("arguments", "preface", "message"),
    [
        (["--bogus=1"], "tritonserver: unrecognized option '--bogus=1'", 'Bad option: "--bogus".\nunknown flag'),
        (
            ["--htpp-port=1"],
            "tritonserver: unrecognized option '--htpp-port=1'",
            'Bad option: "--htpp-port".\nunknown flag; did you mean --http-port?',
        ),
        (
            ["--port=1"],
            "tritonserver: unrecognized option '--port=1'",
            'Bad option: "--port".\nunknown flag; did you mean --http-port, --grpc-port, --openai-port or --metrics-port?',
        ),
        (
            ["--http-port"],
            "tritonserver: option '--http-port' requires an argument",
            "Bad option: \"--http-port\".\noption '--http-port' requires an argument",
        ),
        (
            ["--disable-auto-complete-config=true"],
            "tritonserver: option '--disable-auto-complete-config' doesn't allow an argument",
            (
                "Bad option: \"--disable-auto-complete-config\".\noption '--disable-auto-complete-config' doesn't allow an "
                "argument"
            ),
        ),
        (
            ["--log-f=x"],
            "tritonserver: option '--log-f=x' is ambiguous; possibilities: '--log-format' '--log-file'",
            "Bad option: \"--log-f\".\noption '--log-f=x' is ambiguous; possibilities: '--log-format' '--log-file'",
        ),
        (
            ["-http-port=1"],
            "tritonserver: invalid option -- 'h'",
            'Bad option: "-http-port=1".\nflags are written with two dashes; did you mean --http-port=1?',
        ),
        (["-x"], "tritonserver: invalid option -- 'x'", 'Bad option: "-x".\nflags are written with two dashes'),
    ],
)
def test_arguments_that_getopt_refuses_have_its_error_text(arguments, preface, message):
    with pytest.raises(UsageError) as caught:
        names(*arguments)
    assert (caught.value.preface, caught.value.message) == (preface, message)


def test_two_names_of_one_flag_are_no_ambiguity():
    flags = [Flag("aa", ""), Flag("ab", "", same_as="aa")]
    assert split_arguments(["--a=1"], flags, "p")[0] == [(flags[0], "1")]
