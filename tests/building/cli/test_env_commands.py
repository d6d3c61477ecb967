"""`naiad env list | gc | remove | prefetch | sign | keygen` as people and scripts call them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from environments.makers import member, write_tar

from naiad.cli.commands import naiad_group, run
from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError, NaiadError, OptionError
from naiad.core.quantities import parse_seconds, parse_size, size_text
from naiad.environments.archives.manifest import MANIFEST_NAME
from naiad.environments.manager import EnvironmentManager
from naiad.environments.store.entries import short_digests
from naiad.environments.store.leases import EntryLeases
from naiad_building.build import BuiltEnvironment

DAY = 86_400


def entry(store: Path, letter: str, *, days: float, size: int) -> str:
    """An entry that was used so many days ago; returns its digest."""
    digest = letter * 64
    record = {"archive": f"/{letter}.tgz", "made": 0.0, "size": [1, size], "interpreter": {"version": [3, 10, 1]}}
    json_cache.write(store / digest / "ready.json", record)
    leases = EntryLeases(store)
    leases.acquire(digest).release()
    leases.record_model(digest, f"model_{letter}", f"/{letter}.tgz")
    lock = store / "uses" / digest / "lock"
    then = lock.stat().st_mtime - days * DAY
    os.utime(lock, (then, then))
    return digest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    entry(tmp_path, "a", days=40, size=1_000_000)
    entry(tmp_path, "b", days=3, size=2_000_000)
    entry(tmp_path, "c", days=0, size=4_000_000)
    return tmp_path


def env(*arguments: object) -> Result:
    return CliRunner().invoke(naiad_group, ["env", *map(str, arguments)], standalone_mode=False)


def left(store: Path) -> str:
    return "".join(sorted(path.parent.name[0] for path in store.glob("*/ready.json")))


def test_the_list_says_sizes_uses_and_models(store):
    lines = env("list", "--env-store", store).output.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:-2]]

    assert [row[0] for row in cells] == ["aaaaaaa", "bbbbbbb", "ccccccc"]
    assert [[*row[1:3], *row[5:8]] for row in cells] == [
        ["/a.tgz", "3.10.1", "1 MB", "40 days ago", "model_a"],
        ["/b.tgz", "3.10.1", "2 MB", "3 days ago", "model_b"],
        ["/c.tgz", "3.10.1", "4 MB", "just now", "model_c"],
    ]
    assert lines[-1] == "3 environments, 7 MB"


def rows_of(output: str) -> dict[str, tuple[str, str]]:
    """The archive and the models of each row, by its digest."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines()]
    return {row[0]: (row[1], row[-1]) for row in cells if len(row) > 6}


def test_long_lists_of_models_are_shortened_in_tables_alone(store):
    leases = EntryLeases(store)
    for number in range(50):
        leases.record_model("c" * 64, f"m{number:02}", "/c.tgz")
    assert rows_of(env("list", "--env-store", store).output)["ccccccc"] == ("/c.tgz", "m00, m01, m02 and 48 more")
    found = json.loads(env("list", "--json", "--env-store", store).output)
    assert len(found["environments"][2]["models"]) == 51
    lease = leases.acquire("c" * 64)
    shown = env("gc", "--env-store", store).output
    lease.release()
    assert "a running server uses it, last for m00, m01, m02 and 48 more" in shown
    assert max(map(len, shown.splitlines())) < 200


def test_a_model_is_named_where_it_was_loaded_last(store):
    leases = EntryLeases(store)
    leases.record_model("b" * 64, "model_a", "/b.tgz")
    rows = rows_of(env("list", "--env-store", store).output)
    assert (rows["aaaaaaa"][1], rows["bbbbbbb"][1]) == ("before: model_a", "model_a, model_b")
    lease = leases.acquire("a" * 64)  # of a server that has not loaded the model again
    assert rows_of(env("list", "--env-store", store).output)["aaaaaaa"][1] == "model_a"
    lease.release()


def test_a_declared_environment_names_the_files_that_declare_it_now(store):
    leases = EntryLeases(store)
    record = {"archive": "/m/old/1/model.py", "made": 0.0, "size": [1, 5], "interpreter": {"version": [3, 10, 1]}}
    json_cache.write(store / ("d" * 64) / "ready.json", record)
    assert rows_of(env("list", "--env-store", store).output)["ddddddd"] == ("/m/old/1/model.py", "")
    leases.acquire("d" * 64).release()
    for name in ("y", "x", "z"):
        leases.record_model("d" * 64, name, f"/m/{name}/1/model.py")
    leases.record_model("d" * 64, "old", "/m/old/1/model.py")
    leases.record_model("a" * 64, "old", "/m/old/1/model.py")
    leases.record_model("a" * 64, "x", "/m/x/2/model.py")  # another version, with an environment of its own
    rows = rows_of(env("list", "--env-store", store).output)
    assert rows["ddddddd"] == ("/m/x/1/model.py and 2 more", "x, y, z")
    assert rows["aaaaaaa"] == ("/a.tgz", "model_a, old, x")


def test_the_list_is_plain_data_for_scripts(store):
    found = json.loads(env("list", "--json", "--env-store", store).output)

    assert found["store"] == str(store)
    assert [one["digest"][0] for one in found["environments"]] == ["a", "b", "c"]
    assert found["environments"][0]["models"][0]["model"] == "model_a"
    assert found["environments"][0]["in_use"] is False


@pytest.mark.parametrize(
    ("limits", "stay"),
    [
        ([], "abc"),
        (["--older-than", "30d"], "bc"),
        (["--older-than", "48h"], "c"),
        (["--keep-bytes", "6MB"], "bc"),
        (["--keep-bytes", "5.9MB"], "c"),
        (["--older-than", "30d", "--keep-bytes", "4MB"], "c"),
        (["--keep-bytes", "0"], ""),
    ],
)
def test_garbage_is_shown_and_then_removed_by_age_and_size(limits, stay, store):
    gone = 3 - len(stay)
    counted = "1 environment" if gone == 1 else f"{gone} environments"
    shown = env("gc", *limits, "--dry-run", "--env-store", store).output
    assert f"would remove {counted} and 0 leftovers" in shown
    assert left(store) == "abc"

    assert f"removed {counted} " in env("gc", *limits, "--env-store", store).output
    assert left(store) == stay


def test_entries_that_are_kept_are_listed_with_the_reason(store):
    lease = EntryLeases(store).acquire("b" * 64)
    shown = env("gc", "--older-than=30d", "--keep-bytes=6MB", "--env-store", store).output
    lease.release()

    reasons = {line.split("|")[1].strip(): line.split("|")[5].strip() for line in shown.splitlines() if "stays" in line}
    assert reasons == {
        "bbbbbbb": "a running server uses it, last for model_b",
        "ccccccc": "used 0.0 days ago, and the limit is 30.0 days; the store with it is within 6 MB",
    }
    assert "no limit is given: --older-than or --keep-bytes" in env("gc", "--env-store", store).output


def test_garbage_that_cannot_be_removed_is_a_failure(store, monkeypatch):
    def refuse(*_: object) -> bool:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("naiad.environments.store.eviction.remove_entry", refuse)

    found = env("gc", "--older-than=30d", "--env-store", store)

    assert found.return_value == 1
    assert "removed 0 environments" in found.output
    assert "it cannot be removed" in found.output


def test_a_digest_is_as_long_as_it_must_be_to_name_one_entry(store):
    other = "a" * 9 + "b" * 55
    assert short_digests(["a" * 64, other, "b" * 64]) == {"a" * 64: "a" * 10, other: "a" * 9 + "b", "b" * 64: "b" * 7}


def test_a_start_of_a_digest_has_at_least_seven_digits(store):
    found = CliRunner().invoke(naiad_group, ["env", "remove", "aaaaaa", "--env-store", str(store)])
    assert "there is no environment 'aaaaaa'" in str(found.exception)
    assert "(or the first 7 digits of it)" in str(found.exception)


def test_removals_are_plain_data_for_scripts(store):
    found = env("remove", "aaaaaaa", "--json", "--env-store", store)

    removed = {"digest": "a" * 64, "archive": "/a.tgz", "size": 1_000_000, "removed": True}
    assert json.loads(found.output) == {"store": str(store), "dry_run": False, "environments": [removed]}
    assert left(store) == "bc"


@pytest.mark.parametrize(
    ("name", "problem"),
    [("../up", "its member '../up' leads out of the archive"), ("/etc/up", "its member '/etc/up' is an absolute path")],
)
def test_an_unsafe_archive_is_named_when_it_is_inspected(tmp_path, name, problem):
    archive = write_tar(tmp_path / "e.tar", [(member(name), b"x")])

    found = env("inspect", archive, "--env-store", tmp_path / "store")

    assert found.return_value == 1
    assert f"problem       {problem}: a server refuses the archive" in found.output
    assert json.loads(env("inspect", archive, "--json", "--env-store", tmp_path / "store").output)["environment"][
        "problems"
    ]


def test_a_truncated_archive_is_named_when_it_is_inspected(tmp_path):
    """Also one whose manifest, which comes first, can be read."""
    manifest = {"format": 1, "name": "small", "made_from": "recipe", "platform": "linux-x86_64", "glibc": "2.17"}
    manifest |= {"python": "3.12.1", "abi": "", "packages": [], "files": 2, "size": 2, "recipe": {}}
    head = (member(MANIFEST_NAME), json.dumps(manifest).encode())
    whole = write_tar(tmp_path / "e.tar", [head, (member("README"), os.urandom(3_000_000)), (member("b"), b"y")])
    short = write_tar(tmp_path / "short.tar", [head, (member("README"), b"x")])
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:-20])

    assert env("inspect", whole, "--env-store", tmp_path / "store").return_value == 0
    found = env("inspect", cut, "--env-store", tmp_path / "store")
    assert "is truncated or damaged" in found.output
    assert found.return_value == 1
    found = env("inspect", short, "--env-store", tmp_path / "store")
    assert "it has 1 member beside its manifest, which counts 2" in found.output


def test_garbage_is_plain_data_for_scripts(store):
    found = json.loads(env("gc", "--older-than=30d", "--json", "--env-store", store).output)

    assert [(one["entry"]["digest"][0], one["reason"]) for one in found["removed"]] == [("a", "not used for 40.0 days")]
    assert (found["kept"], found["dry_run"]) == (2, False)


def test_entries_are_removed_by_name_unless_they_are_used(store):
    assert (
        "would remove aaaaaaaaaaaa of /a.tgz (1 MB)"
        in env("remove", "--dry-run", "aaaaaaa", "--env-store", store).output
    )
    assert left(store) == "abc"
    lease = EntryLeases(store).acquire("b" * 64)

    found = env("remove", "aaaaaaa", "/b.tgz", "--env-store", store)

    lease.release()
    assert "removed aaaaaaaaaaaa of /a.tgz" in found.output
    assert "kept bbbbbbbbbbbb of /b.tgz (2 MB): a running server uses it (last for model_b)" in found.output
    assert (found.return_value, left(store)) == (1, "bc")


def test_an_unknown_name_is_reported_and_no_entry_is_removed(store, capsys):
    assert run(["env", "remove", "aaaaaaa", "zzz", "--env-store", str(store)]) == 1
    assert "there is no environment 'zzz'" in capsys.readouterr().err
    assert left(store) == "abc"


def test_an_invalid_limit_is_reported(store, capsys):
    assert run(["env", "gc", "--older-than=soon", "--env-store", str(store)]) == 2
    assert capsys.readouterr().err == "'soon' is not a span of time such as 30d, 12h, 90m or 2w\n"


def test_a_key_is_made_and_an_archive_signed_with_it(tmp_path):
    pytest.importorskip("cryptography")
    archive = write_tar(tmp_path / "e.tgz", [(member("README"), b"x")])

    made = env("keygen", tmp_path / "release.pem")
    signed = env("sign", archive, "--key", tmp_path / "release.pem", "--env-store", tmp_path / "store")
    (tmp_path / "keys.toml").write_text(made.stdout)
    keys = ["--env-trust", tmp_path / "keys.toml", "--env-store", tmp_path / "store"]

    assert made.stdout.startswith('[[keys]]\nname = "release"\npublic = "')
    assert signed.output.endswith(f": {archive}.sig\n")
    # Trusted, and so looked at more closely.
    assert "has no interpreter" in env("prefetch", archive, *keys).output
    Path(f"{archive}.sig").unlink()
    assert "it is not signed" in env("prefetch", archive, *keys).output


def test_a_failed_prefetch_is_reported_and_the_others_are_completed(tmp_path):
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tgz", [(member("README"), b"x")])
    names = ["env://a", f"{tmp_path}/b.tgz"]

    found = env("prefetch", *names, "--json", "--env-directory", tmp_path, "--env-store", tmp_path / "store")

    said = json.loads(found.stdout[found.stdout.index("[") :])
    assert [Path(one["environment"]).name for one in said] == ["a.tgz", "b.tgz"]
    assert all("has no interpreter" in one["error"] for one in said)
    assert found.return_value == 1


def test_a_prefetch_without_arguments_says_what_to_name(tmp_path):
    assert "name environments, or a --model-repository" in env("prefetch", "--env-store", tmp_path).output


def test_a_missing_path_cannot_be_prefetched(tmp_path, capsys):
    assert run(["env", "prefetch", "env://x", "--env-store", str(tmp_path)]) == 1
    assert "--env-directory is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("10GB", 10**10), ("1.5 kB", 1500), ("512MiB", 512 << 20), ("2t", 2 * 10**12)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 30 * DAY), ("12h", 43_200), ("90m", 5400), ("2w", 14 * DAY), ("0s", 0)]
)
def test_times_are_read_as_people_write_them(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "10 apples", "1e3", "GB", "10"])
def test_an_invalid_time_is_refused(text):
    with pytest.raises(OptionError, match="is not a span of time"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "10d", "1e3"])
def test_an_invalid_size_is_refused(text):
    with pytest.raises(NaiadError, match="is not a size such as 10GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1500, "1.5 kB"), (123_456_789, "123 MB"), (5 * 10**9, "5.0 GB")],
)
def test_sizes_are_written_for_people(size, text):
    assert size_text(size) == text


def test_an_entry_that_cannot_be_removed_is_an_error_and_no_traceback(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("naiad.environments.store.eviction.remove_entry", refuse)

    assert run(["env", "remove", "a" * 64, f"--env-store={store}"]) == 1
    assert capsys.readouterr().err == (
        f"cannot remove the environment {'a' * 12} from {store}: Read-only file system; run this as a user who may "
        "write there\n"
    )


def test_a_build_without_numpy_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = BuiltEnvironment(tmp_path / "p", tmp_path / "p" / "bin" / "python", "3.12.1", tmp_path, (("six", "1"),))
    monkeypatch.setattr("naiad_building.build.build", lambda *_, **__: built)

    done = CliRunner().invoke(naiad_group, ["env", "build", str(tmp_path), "-o", str(tmp_path / "p")])

    assert f"warning: it has no numpy, which every model needs; add it to {tmp_path}" in " ".join(done.output.split())

    done = CliRunner().invoke(naiad_group, ["env", "build", str(tmp_path), "-o", str(tmp_path / "p"), "--json"])

    assert json.loads(done.stdout) == {
        "prefix": str(built.prefix),
        "python": str(built.python),
        "version": "3.12.1",
        "base": str(tmp_path),
        "packages": [{"name": "six", "version": "1"}],
    }


def test_a_prefetched_environment_has_the_python_that_the_model_requires(tmp_path, monkeypatch):
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("# /// script\n# dependencies = ['numpy']\n# ///\n")
    (model / "config.pbtxt").write_text(
        'backend: "python" parameters { key: "PYTHON_VERSION" value { string_value: "3.10" } }'
    )
    required = []

    def prepare(manager, source, *, python, python_origin):
        required.append((str(source), str(python), "PYTHON_VERSION" in python_origin))
        raise ExecutionEnvironmentError("nothing is built here")

    monkeypatch.setattr(EnvironmentManager, "prepare", prepare)

    assert (
        run(["env", "prefetch", f"--model-repository={tmp_path / 'models'}", f"--env-store={tmp_path / 'store'}"]) == 1
    )

    assert required == [(str(model / "1" / "model.py"), "==3.10.*", True)]


def test_a_folder_that_is_missing_is_not_created_for_an_archive(tmp_path):
    failed = env("pack", tmp_path, "--output", tmp_path / "somebdy" / "e.tar.zst").exception

    assert isinstance(failed, ExecutionEnvironmentError)
    assert failed.message.endswith(f"there is no folder {tmp_path}/somebdy; create it, or name another --output")
    assert not (tmp_path / "somebdy").exists()
