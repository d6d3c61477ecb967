"""A repository that was pushed before: nothing that has not changed is packed, written or sent again."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from environments.makers import make_environment, other_minor
from models.artifacts.repositories import CODE, add_model, layers_of
from support.registry import Registry


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these functions fail the command that calls them."""

    def called(*_: object, **__: object) -> None:
        raise AssertionError("called for something that has not changed")

    for name in names:
        monkeypatch.setattr(f"naiad_operations.bundle.{name}", called)


WORK = ("repository_image.write_layer", "repository_image.inspect_environment", "environments.pack")


def test_an_unchanged_repository_is_neither_read_nor_sent(registry, naiad, models, monkeypatch):
    first = naiad.push(registry.uri("shop", "1"), models)
    registry.asked.clear()
    forbid(monkeypatch, *WORK)

    assert naiad.push(registry.uri("shop", "1"), models) == first

    assert [(asked.method, asked.path.rpartition("/")[2]) for asked in registry.asked] == [("HEAD", "1")]


def test_only_the_layer_of_a_changed_file_is_written(registry, naiad, models, monkeypatch):
    naiad.push(registry.uri("shop", "1"), models)
    before = layers_of(registry, "shop")
    (models / "plain" / "1" / "model.py").write_text(CODE % "other")
    from naiad_operations.bundle import repository_image

    written = []
    write_layer = repository_image.write_layer
    monkeypatch.setattr(
        repository_image,
        "write_layer",
        lambda *given, made_by, **named: written.append(made_by) or write_layer(*given, made_by=made_by, **named),
    )

    naiad.push(registry.uri("shop", "1"), models)

    assert written == ["naiad push: model 'plain'"]
    after = layers_of(registry, "shop")
    assert {part for part in after if after[part]["digest"] != before[part]["digest"]} == {"model/plain"}


@pytest.mark.parametrize("change", ["size", "executable", "replaced", "added", "removed"])
def test_each_kind_of_change_is_seen(registry, naiad, models, change):
    file = models / "shared" / "1" / "settings.txt"
    (models / "shared" / "1" / "more.txt").write_text("more")
    before = naiad.push(registry.uri("shop", "1"), models)
    if change == "size":
        file.write_text("shared and longer")
    elif change == "executable":
        file.chmod(0o755)
    elif change == "replaced":
        times = file.stat()
        file.write_text("SHARED")  # as many bytes, with the times of before
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "added":
        (models / "shared" / "1" / "new.txt").write_text("")
    else:
        (models / "shared" / "1" / "more.txt").unlink()

    again = naiad.push(registry.uri("shop", "1"), models)

    assert again != before
    shutil.rmtree(naiad.store / "artifacts" / "records")
    assert naiad.push(registry.uri("shop", "1"), models) == again


def test_another_registry_gets_the_layers_that_were_not_written(naiad, models, tmp_path):
    with Registry() as first, Registry() as second:
        pushed = naiad.push(first.uri("shop", "1"), models)
        naiad.push(first.uri("shop", "1"), models)

        again = naiad.push(second.uri("shop", "1"), models)

        assert again.partition("@")[2] == pushed.partition("@")[2]
        naiad.succeed("pull", again, f"--output={tmp_path / 'out'}")
    assert (tmp_path / "out" / "plain" / "1" / "model.py").read_text() == CODE % "plain"


def test_a_wrong_record_costs_time_only(naiad, models, caplog):
    with Registry() as first, Registry() as second:
        pushed = naiad.push(first.uri("shop", "1"), models)
        for path in (naiad.store / "artifacts" / "records").glob("*.json"):
            record = json.loads(path.read_text())
            if record["name"].startswith("layer model 'plain'"):
                record["value"]["descriptor"]["digest"] = f"sha256:{'0' * 64}"
                path.write_text(json.dumps(record))

        assert naiad.push(second.uri("shop", "1"), models).partition("@")[2] == pushed.partition("@")[2]
        assert "cannot use what is known of the layer model 'plain': it has other content now" in caplog.text

        caplog.clear()
        naiad.push(second.uri("shop", "1"), models)
        assert "cannot use" not in caplog.text


@pytest.mark.builds
def test_a_folder_with_an_environment_is_packed_once_and_again_after_a_change(registry, naiad, tmp_path, monkeypatch):
    prefix = tmp_path / "science"
    make_environment(prefix, other_minor())
    models = tmp_path / "models"
    add_model(models, "own", "own", environment=str(prefix))
    first = naiad.push(registry.uri("shop", "1"), models)

    with monkeypatch.context() as patched:
        forbid(patched, *WORK)
        assert naiad.push(registry.uri("shop", "1"), models) == first

    with Registry() as other:  # the archive itself is needed again
        assert naiad.push(other.uri("shop", "1"), models).partition("@")[2] == first.partition("@")[2]

    next(prefix.rglob("site-packages")).joinpath("new.py").write_text("x = 1\n")
    assert naiad.push(registry.uri("shop", "1"), models) != first
