"""Flags that are understood and will not do what is meant."""

from __future__ import annotations

import pytest
from cli.parsing import parse


def test_a_backend_path_that_is_no_directory_is_warned_of(tmp_path, monkeypatch):
    """No error: models with code of their own need none, and it may be mounted later."""
    monkeypatch.chdir(tmp_path)
    there, file = tmp_path / "there", tmp_path / "file"
    there.mkdir()
    file.touch()
    assert parse(f"--backend-directory={there}").warnings == ()
    assert parse(
        f"--backend-directory={file}", "--backend-directory=gone", f"--backend-directory={there}"
    ).warnings == (
        f"--backend-directory={file} is not a directory ({file}): no model will find its backend there",
        f"--backend-directory=gone does not exist ({tmp_path / 'gone'}): no model will find its backend there",
    )


def test_a_path_of_environments_that_is_no_directory_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(f"--env-directory={tmp_path}").warnings == ()
    assert parse("--env-directory=gone").warnings == (
        f"--env-directory=gone does not exist ({tmp_path / 'gone'}): no model will find an environment there",
    )


@pytest.mark.parametrize("flag", ["--trace-config=triton,file=", "--trace-file="])
def test_a_file_of_traces_in_no_folder_is_warned_of(tmp_path, monkeypatch, flag):
    """It would be noticed at the end, when the traces are lost."""
    monkeypatch.chdir(tmp_path)
    said = f"traces cannot be written to gone/t.json: gone does not exist ({tmp_path / 'gone'})"
    assert said in parse(f"{flag}gone/t.json").warnings
    assert said not in parse(f"{flag}t.json").warnings
    assert said not in parse(f"{flag}gone/t.json", "--trace-config=triton,file=t.json").warnings


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("python,stub-timeout-secs=3", "did you mean stub-timeout-seconds?"),
        ("stub_timeout_seconds=3", "did you mean stub-timeout-seconds?"),
        ("python,colour=red", "there are stub-timeout-seconds, execution-env-path, default-python, "),
    ],
)
def test_settings_of_backends_that_have_no_effect_are_warned_of_and_known_ones_are_not(setting, said):
    known = ["python,shm_message_queue_size=9", "thread-pool-size=2", "python,default-max-batch-size=8"]
    (warning,) = parse(*(f"--backend-config={each}" for each in (*known, setting))).warnings
    assert warning.startswith(f"--backend-config={setting} has no effect: {said}")


def test_settings_of_a_backend_that_may_be_a_misspelt_python_are_warned_of(tmp_path):
    for path in ("greet/model.py", "custom/libtriton_custom.so", "both/model.py", "both/libtriton_both.so"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    names = ("greet", "custom", "both", "beside_a_model", "pyton")
    found = parse(f"--backend-directory={tmp_path}", *(f"--backend-config={name},x=y" for name in names)).warnings
    assert [warning for warning in found if "--backend-config" in warning] == [
        "--backend-config=pyton,x=y may have no effect: did you mean python?",
    ]


def test_flags_of_openais_api_without_its_port_are_warned_of():
    assert parse("--openai-port=9000", "--openai-chat-template=x.jinja").warnings == ()
    assert parse("--openai-chat-template=x.jinja").warnings == (
        "--openai-chat-template has no effect: OpenAI's API is served only with --openai-port",
    )
    (warning,) = parse("--openai-lora-separator=+", "--openai-address=::1").warnings
    assert warning.startswith("--openai-address, --openai-lora-separator have no effect: ")
