"""`naiad env pin`: one file says for all servers which content remote environments have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from models.resolution.makers import resolve_m

from naiad.cli.commands import naiad_group
from naiad.config.model.environment_pins import PINS_FILE, parse_pins
from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ConfigError, ResolutionError

URI, OTHER = "https://host.invalid/e.tar.zst", "https://host.invalid/other.tar.zst"
OWN = "/repo/m/1/model.py"


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the URIs hold, as if they were downloaded."""
    held = {URI: "a" * 64, OTHER: "b" * 64}
    kept: dict[str, str] = {}
    manager = "naiad.environments.manager.EnvironmentManager"
    monkeypatch.setattr(f"{manager}.accept_changed", lambda _, uri: kept.pop(uri, None))
    monkeypatch.setattr(
        f"{manager}.prepare", lambda _, source: SimpleNamespace(digest=kept.setdefault(source.uri, held[source.uri]))
    )
    return held


def add(repository: Path, name: str, environment: str) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "1" / "model.py").write_text("")
    value = f'{{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    (repository / name / "config.pbtxt").write_text(f'backend: "python"\nparameters {value}\n')


def pin(repository: Path, *flags: str) -> Result:
    store = f"--env-store={repository.parent / 'store'}"
    return CliRunner().invoke(naiad_group, ["env", "pin", str(repository), store, *flags], standalone_mode=False)


def test_a_repository_is_pinned_and_keeps_its_pins_until_they_are_updated(tmp_path, digests):
    models = tmp_path / "models"
    add(models, "a", URI)
    add(models, "b", URI)
    add(models, "c", f"{OTHER}@sha256:{'c' * 64}")
    file = models / PINS_FILE

    assert pin(models).output == f"{URI} sha256:{'a' * 64} (new)\nwrote {file}: 1 environment\n"
    assert parse_pins(file.read_text(), "") == {URI: "a" * 64}
    digests[URI] = "d" * 64
    assert f"sha256:{'a' * 64} (unchanged)" in pin(models).output
    assert f"{URI} sha256:{'d' * 64} (was sha256:{'a' * 64})" in pin(models, "--update").output
    add(models, "d", OTHER)
    pins = json.loads(pin(models, "--json").output)["pins"]
    assert [(each["uri"], each["digest"][0], each["before"][:1]) for each in pins] == [
        (URI, "d", "d"),
        (OTHER, "b", ""),
    ]
    for name in "abd":
        add(models, name, "/dev/null")
    assert pin(models).output == f"nothing to pin: no model of {models} names a URI without @sha256\n"
    assert not file.exists()


def test_names_of_a_folder_of_environments_are_found_there_and_not_pinned(tmp_path, digests, caplog):
    models, environments = tmp_path / "models", tmp_path / "environments"
    (environments / "numeric" / "bin").mkdir(parents=True)
    add(models, "a", "env://numeric")
    add(models, "b", URI)

    assert f"wrote {models / PINS_FILE}: 1 environment" in pin(models, f"--env-directory={environments}").output
    assert caplog.messages == []
    pin(models)
    assert "--env-directory is missing" in caplog.text


def test_a_pinned_uri_has_the_digest_of_the_file_and_one_of_its_own_wins():
    files = {OWN: b"", f"/repo/{PINS_FILE}": f"# head\n{'a' * 64}  {URI}\n".encode()}

    found = resolve_m(files, parameters={"EXECUTION_ENV_PATH": URI})
    assert found.environment == EnvironmentSource(uri=URI, digest="a" * 64)
    assert f"/repo/{PINS_FILE}" in str(next(step for step in found.steps if step.subject == "environment"))
    own = resolve_m(files, parameters={"EXECUTION_ENV_PATH": f"{URI}@sha256:{'b' * 64}"})
    assert own.environment == EnvironmentSource(uri=URI, digest="b" * 64)
    assert resolve_m(files, parameters={"EXECUTION_ENV_PATH": OTHER}).environment == EnvironmentSource(uri=OTHER)


def test_a_malformed_file_is_refused_with_its_line():
    with pytest.raises(ConfigError, match="lock:2: 'abc' is not a digest, two spaces and a URI"):
        parse_pins(f"{'a' * 64}  {URI}\nabc\n", "lock")
    files = {OWN: b"", f"/repo/{PINS_FILE}": b"abc"}
    with pytest.raises(ResolutionError, match="write the file again with `naiad env pin`"):
        resolve_m(files, parameters={"EXECUTION_ENV_PATH": URI})
