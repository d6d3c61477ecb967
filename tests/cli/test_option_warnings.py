"""Flags that are understood and will not do what is meant."""

from __future__ import annotations

from cli.parsing import parse


def test_a_backend_directory_that_is_none_is_warned_of(tmp_path, monkeypatch):
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


def test_flags_of_openais_api_without_its_port_are_warned_of():
    assert parse("--openai-port=9000", "--openai-chat-template=x.jinja").warnings == ()
    assert parse("--openai-chat-template=x.jinja").warnings == (
        "--openai-chat-template has no effect: OpenAI's API is served only with --openai-port",
    )
    (warning,) = parse("--openai-lora-separator=+", "--openai-address=::1").warnings
    assert warning.startswith("--openai-address, --openai-lora-separator have no effect: ")
