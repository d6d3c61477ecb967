"""API keys of a file are those that it contains now."""

from __future__ import annotations

import pytest
from llm.openai.fake_models import said, served

from naiad.core.errors import OptionError
from naiad_llm.openai.keys import ApiKeys


def accepted(keys: ApiKeys) -> str:
    return "".join(key for key in "abcd" if keys.accepts(key.encode()))


def test_keys_of_a_file_are_those_that_it_contains_now(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text("# ours\na\nb\n")
    keys = ApiKeys(["d"], file)
    assert accepted(keys) == "abd"
    file.write_text("b\nc\n\n")
    assert accepted(keys) == "bcd"
    other = tmp_path / "other"
    other.write_text("c\n")
    other.replace(file)
    assert accepted(keys) == "cd"
    assert "which has changed" not in caplog.text, "an event, not a warning"


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path):
    (tmp_path / "keys").write_text("a\nb\n", encoding="utf-8-sig")

    assert accepted(ApiKeys([], tmp_path / "keys")) == "ab"


@pytest.mark.parametrize("spoil", [lambda file: file.write_text("# none\n"), lambda file: file.unlink()])
def test_a_file_without_keys_changes_nothing_and_opens_nothing(tmp_path, caplog, spoil):
    file = tmp_path / "keys"
    file.write_text("a\n")
    keys = ApiKeys((), file)
    spoil(file)
    assert accepted(keys) == accepted(keys) == "a"
    assert keys.is_required
    assert caplog.text.count("the keys that were read before stay valid") == 1
    file.write_text("b\n")
    assert accepted(keys) == "b"


def test_a_file_without_keys_is_an_error_at_the_start(tmp_path):
    with pytest.raises(OptionError, match="cannot read the keys of --openai-api-keys-file="):
        ApiKeys((), tmp_path / "missing")
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(OptionError, match="holds no key; write one on each line"):
        ApiKeys((), tmp_path / "keys")


def test_without_sources_no_key_is_required():
    assert not ApiKeys().is_required
    assert ApiKeys(["a"]).is_required


def test_a_removed_key_is_refused_by_the_next_request(tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    with served(lambda request: [said("x")], key_file=file) as api:
        assert api.request("GET", "/v1/models", Authorization="Bearer old").status == 200
        file.write_text("new\n")
        assert api.request("GET", "/v1/models", Authorization="Bearer old").status == 401
        assert api.request("GET", "/v1/models", Authorization="Bearer new").status == 200
