"""What may be in an archive, what may not, and what comes out: every case on real archives."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
import zstandard
from environments.makers import member, write_tar
from support.system_packages import needs

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.archive_writer import OutputMember, write_archive
from naiad.environments.archives.extraction import ExtractionLimits, unpack
from naiad.environments.archives.formats import ArchiveFormat, detect_format

PROGRAM = b"#!/bin/sh\n"


def ordinary() -> list[tuple[tarfile.TarInfo, bytes]]:
    return [
        (member("./bin", tarfile.DIRTYPE, mode=0o755), b""),
        (member("./bin/python3", mode=0o755), PROGRAM),
        (member("./bin/python", tarfile.SYMTYPE, "python3"), b""),
        (member("./lib/data.bin"), os.urandom(200_000)),
        (member("./lib/same.bin", tarfile.LNKTYPE, "./lib/data.bin"), b""),
        (member("./lib64", tarfile.SYMTYPE, "lib"), b""),
    ]


WRITTEN_HERE = [each for each in ArchiveFormat if each is not ArchiveFormat.SQUASHFS]


def write(path: Path, packed_with: ArchiveFormat) -> Path:
    if packed_with is ArchiveFormat.ZSTD:
        plain = write_tar(path.with_suffix(".plain"), ordinary(), "w:")
        path.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    elif packed_with is ArchiveFormat.ZIP:
        return write_zip(path)
    else:
        modes = {
            ArchiveFormat.TAR: "w:",
            ArchiveFormat.GZIP: "w:gz",
            ArchiveFormat.BZIP2: "w:bz2",
            ArchiveFormat.XZ: "w:xz",
        }
        write_tar(path, ordinary(), modes[packed_with])
    return path


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in ordinary():
            entry = zipfile.ZipInfo(info.name + ("/" if info.isdir() else ""))
            kinds = {tarfile.SYMTYPE: stat.S_IFLNK, tarfile.DIRTYPE: stat.S_IFDIR}
            entry.external_attr = (kinds.get(info.type, stat.S_IFREG) | info.mode) << 16
            archive.writestr(entry, info.linkname if info.issym() else content)
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def refused(archive: Path, into: Path, recorder, limits: ExtractionLimits | None = None) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        unpack(archive, into, reporter=recorder, limits=limits)
    assert str(archive) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("packed_with", WRITTEN_HERE)
def test_every_format_is_known_by_its_content_whatever_the_file_is_called(packed_with, tmp_path, into, recorder):
    archive = write(tmp_path / "environment.bin", packed_with)

    unpack(archive, into, reporter=recorder)

    assert detect_format(archive) is packed_with
    assert (into / "bin" / "python3").read_bytes() == PROGRAM
    assert os.access(into / "bin" / "python3", os.X_OK)
    assert (into / "bin" / "python").readlink() == Path("python3")
    assert (into / "lib64").readlink() == Path("lib")
    assert not os.access(into / "lib" / "data.bin", os.X_OK)


@pytest.mark.parametrize("packed_with", [one for one in WRITTEN_HERE if one is not ArchiveFormat.ZIP])
def test_times_stay_as_packed_because_bytecode_depends_on_them(packed_with, tmp_path, into, recorder):
    unpack(write(tmp_path / "e", packed_with), into, reporter=recorder)

    assert (into / "lib" / "data.bin").stat().st_mtime == 1_000_000_000
    assert (into / "bin").stat().st_mtime == 1_000_000_000


@pytest.mark.parametrize("time", [-5.0, float("inf"), float("nan"), 1e30])
def test_a_time_that_no_file_can_have_becomes_a_possible_one(time, tmp_path, into, recorder):
    info = member("x")
    info.mtime = 0
    info.pax_headers = {"mtime": str(time)}

    unpack(write_tar(tmp_path / "e.tar.gz", [(info, b"x")]), into, reporter=recorder)

    assert 0 <= (into / "x").stat().st_mtime <= 1 << 33


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_permissions_do_not_depend_on_the_umask(umask, tmp_path, into, recorder):
    names = {"a": 0o644, "b": 0o755, "c": 0o640, "d": 0o755, "e": 0o400}
    archive = write_tar(tmp_path / "e.tar.gz", [(member(name, mode=mode), b"x") for name, mode in names.items()])
    before = os.umask(umask)
    try:
        unpack(archive, into, reporter=recorder)
    finally:
        os.umask(before)

    modes = {name: stat.S_IMODE((into / name).stat().st_mode) for name in names}
    assert modes == {**names, "e": 0o600}


def test_a_hard_link_is_the_same_file(tmp_path, into, recorder):
    unpack(write(tmp_path / "e", ArchiveFormat.GZIP), into, reporter=recorder)

    assert (into / "lib" / "data.bin").samefile(into / "lib" / "same.bin")


def test_progress_tells_bytes_and_ends_with_the_whole_size(tmp_path, into, recorder):
    archive = write(tmp_path / "e", ArchiveFormat.GZIP)

    unpack(archive, into, reporter=recorder, label="m")

    last = recorder.events[-1]
    assert last.finished
    assert (last.done, last.total) == (archive.stat().st_size, archive.stat().st_size)
    assert "unpacking" in str(last)
    assert "for 'm'" in str(last)
    assert "MB/s" in str(last)


UNSAFE = {
    "absolute name": ([(member("/etc/cron.d/x"), b"x")], "'/etc/cron.d/x' is an absolute path"),
    "absolute name beside others": ([(member("x"), b"x"), (member("/x"), b"x")], "'/x' is an absolute path"),
    "name of the folder above": (
        [(member("lib/x"), b"x"), (member("lib/.."), b"x")],
        "'lib/..' leads out of the archive",
    ),
    "name that climbs": ([(member("lib/../../evil"), b"x")], "'lib/../../evil' leads out of the archive"),
    "absolute link": (
        [(member("lib/python3", tarfile.SYMTYPE, "/usr/bin/python3"), b"")],
        "absolute path '/usr/bin/python3'",
    ),
    "link to an interpreter that is missing": (
        [(member("bin/python", tarfile.SYMTYPE, "/nowhere/bin/python3"), b"")],
        "absolute path '/nowhere/bin/python3'",
    ),
    "link to another program": (
        [(member("bin/python", tarfile.SYMTYPE, "/bin/sh"), b"")],
        "absolute path '/bin/sh'",
    ),
    "another name for an interpreter outside": (
        [
            (member("bin/python", tarfile.SYMTYPE, sys.executable), b""),
            (member("lib/program", tarfile.SYMTYPE, "../bin/python"), b""),
        ],
        "'lib/program' is a symbolic link that leaves the archive",
    ),
    "absolute link to a file": (
        [(member("ssl/cert.pem", tarfile.SYMTYPE, "/etc/ssl/certs/ca-certificates.crt"), b"")],
        "absolute path '/etc/ssl/certs/ca-certificates.crt' of the machine that it was packed on, which need not be here",
    ),
    "link to itself": ([(member("lib/a", tarfile.SYMTYPE, "a"), b"")], "'lib/a' is a symbolic link that leads back to"),
    "loop of links": (
        [(member("lib/a", tarfile.SYMTYPE, "b"), b""), (member("lib/b", tarfile.SYMTYPE, "a"), b"")],
        "is a symbolic link that leads back to itself (to 'b'): remove it",
    ),
    "hard link to a link that leads outside from its place": (
        [(member("lib/a", tarfile.SYMTYPE, "../x"), b""), (member("a", tarfile.LNKTYPE, "lib/a"), b"")],
        "'a' is a symbolic link that leaves the archive",
    ),
    "link that climbs": (
        [(member("bin/x", tarfile.SYMTYPE, "../../x"), b"")],
        "symbolic link that leaves the archive (to '../../x')",
    ),
    "hard link that climbs": ([(member("x", tarfile.LNKTYPE, "../x"), b"")], "'x' links out of the archive, to '../x'"),
    "absolute hard link": ([(member("x", tarfile.LNKTYPE, "/etc/passwd"), b"")], "'x' links to '/etc/passwd'"),
    "hard link to nothing": (
        [(member("x", tarfile.LNKTYPE, "y"), b"")],
        "'x' is a hard link to 'y', which is not an earlier file",
    ),
    "device": ([(member("dev/sda", tarfile.BLKTYPE), b"")], "'dev/sda' is a device node"),
    "terminal": ([(member("dev/tty", tarfile.CHRTYPE), b"")], "'dev/tty' is a device node"),
    "pipe": ([(member("run/pipe", tarfile.FIFOTYPE), b"")], "'run/pipe' is a named pipe"),
    "file in place of a folder": ([(member("a/b"), b""), (member("a"), b"")], "'a' has the name of a folder"),
    "write through a link": (
        [
            (member("real", tarfile.DIRTYPE), b""),
            (member("way", tarfile.SYMTYPE, "real"), b""),
            (member("way/x"), b"x"),
        ],
        "'way/x' would be written through 'way', which is not a folder",
    ),
    "links that leave together": (
        [
            (member("a/b/here", tarfile.SYMTYPE, "."), b""),
            (member("a/b/out", tarfile.SYMTYPE, "here/here/../../../.."), b""),
        ],
        "'a/b/out' is a symbolic link that leaves the archive",
    ),
}


def test_a_venv_may_link_to_an_interpreter_of_this_machine_which_is_warned_of(tmp_path, into, recorder, caplog):
    links = [("bin/python3.99", "python"), ("bin/python", sys.executable), ("bin/python3", "python")]
    members = [(member(name, tarfile.SYMTYPE, target), b"") for name, target in links]
    archive = write_tar(tmp_path / "venv.tar.gz", [(member("pyvenv.cfg"), b"x"), *members])

    unpack(archive, into, reporter=recorder)

    assert {name: str((into / name).readlink()) for name, _ in links} == dict(links)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"is not relocatable: its bin/python is a link to the interpreter '{sys.executable}' of this" in warning


@pytest.mark.parametrize("case", UNSAFE)
def test_an_unsafe_member_is_named_and_refused(case, tmp_path, into, recorder):
    members, expected = UNSAFE[case]
    archive = write_tar(tmp_path / "unsafe.tar.gz", [(member("first"), b"1"), *members])

    message = refused(archive, into, recorder)

    assert expected in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["into", "unsafe.tar.gz"]


def test_a_zip_with_a_name_that_climbs_is_refused_too(tmp_path, into, recorder):
    archive = tmp_path / "unsafe.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../evil", "x")

    assert "'../evil' leads out of the archive" in refused(archive, into, recorder)


def test_set_user_id_and_writable_by_others_are_dropped(tmp_path, into, recorder):
    archive = write_tar(tmp_path / "e.tar.gz", [(member("su", mode=0o6777), b"x")])

    unpack(archive, into, reporter=recorder)

    assert stat.S_IMODE((into / "su").stat().st_mode) == 0o755


def test_the_later_of_two_members_with_one_name_wins(tmp_path, into, recorder):
    archive = write_tar(tmp_path / "e.tar.gz", [(member("x"), b"1"), (member("x"), b"2")])

    unpack(archive, into, reporter=recorder)

    assert (into / "x").read_bytes() == b"2"


@pytest.mark.parametrize("packed_with", WRITTEN_HERE)
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.98])
def test_a_truncated_archive_is_reported_as_truncated(packed_with, kept, tmp_path, into, recorder):
    archive = write(tmp_path / "cut", packed_with)
    os.truncate(archive, int(archive.stat().st_size * kept))

    assert "truncated or damaged" in refused(archive, into, recorder)


def test_a_tar_cut_exactly_between_two_members_is_truncated(tmp_path, into, recorder):
    archive = write_tar(tmp_path / "cut.tar", [(member("a"), b"x" * 512), (member("b"), b"y" * 512)], "w:")
    os.truncate(archive, 1024)

    assert "it ends before the end mark of a tar" in refused(archive, into, recorder)


@pytest.mark.parametrize("packed_with", [ArchiveFormat.GZIP, ArchiveFormat.BZIP2, ArchiveFormat.XZ, ArchiveFormat.ZIP])
def test_a_damaged_archive_is_refused(packed_with, tmp_path, into, recorder):
    archive = write(tmp_path / "damaged_archive_error", packed_with)
    data = bytearray(archive.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    archive.write_bytes(data)

    assert "truncated or damaged" in refused(archive, into, recorder)


@pytest.mark.parametrize("fast", [True, False])
def test_gzip_is_checked_at_every_place_by_either_decoder(fast, tmp_path, into, recorder, monkeypatch):
    if not fast:
        monkeypatch.setattr("naiad.environments.archives.decompression.igzip", None)
    whole = write(tmp_path / "whole", ArchiveFormat.GZIP).read_bytes()
    damaged_archive_error = tmp_path / "damaged_archive_error"
    for place in range(100, len(whole), len(whole) // 20):
        damaged_archive_error.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        folder = into / str(place)
        folder.mkdir()

        assert "truncated or damaged" in refused(damaged_archive_error, folder, recorder)


@pytest.mark.parametrize("fast", [True, False])
def test_an_archive_of_several_gzip_streams_is_one(fast, tmp_path, into, recorder, monkeypatch):
    if not fast:
        monkeypatch.setattr("naiad.environments.archives.decompression.igzip", None)
    plain = write(tmp_path / "plain", ArchiveFormat.TAR).read_bytes()
    archive = tmp_path / "e.tar.gz"
    archive.write_bytes(b"".join(gzip.compress(plain[at : at + 5000]) for at in range(0, len(plain), 5000)))

    unpack(archive, into, reporter=recorder)

    assert (into / "bin" / "python3").read_bytes() == PROGRAM


def test_files_of_all_sizes_come_out_as_they_went_in_with_their_digests(tmp_path, into, recorder):
    contents = {f"d{i % 7}/f{i}": bytes([i % 251]) * (i * i * 3) for i in range(0, 600, 3)}
    archive = write_tar(tmp_path / "e.tar.gz", [(member(name), data) for name, data in contents.items()])

    unpacked = unpack(archive, into, reporter=recorder)

    assert {name: (into / name).read_bytes() for name in contents} == contents
    assert {name: one.digest for name, one in unpacked.written.items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in contents.items()
    }


def test_a_file_that_is_not_written_yet_is_no_folder(tmp_path, into, recorder):
    archive = write_tar(tmp_path / "e.tar.gz", [(member("x"), b"1"), (member("x/y"), b"2")])

    assert "would be written through 'x', which is not a folder" in refused(archive, into, recorder)


def test_no_thread_is_left_by_an_archive_that_is_refused(tmp_path, into, recorder):
    large = [(member(f"f{i}"), bytes(300_000)) for i in range(100)]
    archive = write_tar(tmp_path / "e.tar.gz", [(member("x"), b"1"), (member("../x"), b"2"), *large])

    before = set(threading.enumerate())
    refused(archive, into, recorder)

    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("naiad-")] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is empty"),
        (b"hello, this is no archive", "not an archive (its first bytes are 68 65 6c 6c)"),
        (b"\x04\x22\x4d\x18" + bytes(100), "it is compressed with lz4"),
        (b"LZIP\x01" + bytes(100), "it is compressed with lzip"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    ],
)
def test_a_file_that_is_no_archive_is_refused_with_the_supported_formats(content, expected, tmp_path, into, recorder):
    archive = tmp_path / "environment.tar.gz"
    archive.write_bytes(content)

    message = refused(archive, into, recorder)

    assert expected in message
    assert "expected a tar packed with gzip, bzip2, xz or zstd, a plain tar, or a zip" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "it is a Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>Sign in</html>", "it is an HTML page"),
    ],
)
def test_what_was_not_fetched_is_called_that(content, expected, tmp_path, into, recorder):
    (tmp_path / "environment.tar.gz").write_bytes(content)

    assert expected in refused(tmp_path / "environment.tar.gz", into, recorder)


def test_a_symbolic_link_with_several_names_is_kept(tmp_path, into, recorder):
    members = [
        (member("lib/libx.so.1"), b"x"),
        (member("lib/libx.so", tarfile.SYMTYPE, "libx.so.1"), b""),
        (member("lib/liby.so", tarfile.LNKTYPE, "lib/libx.so"), b""),
    ]

    unpack(write_tar(tmp_path / "e.tar.gz", members), into, reporter=recorder)

    assert (into / "lib/liby.so").readlink() == Path("libx.so.1")
    assert (into / "lib/liby.so").read_bytes() == b"x"


@needs("mksquashfs")
def test_a_squashfs_image_is_unpacked_with_the_checks_of_any_archive(tmp_path, into, recorder):
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "tool").write_text("#!/bin/sh\n")
    (source / "bin" / "tool").chmod(0o755)
    (source / "link").symlink_to("bin/tool")

    def squash(name):
        command = ["mksquashfs", source, tmp_path / name, "-quiet", "-no-progress", "-noappend"]
        subprocess.run(command, check=True, capture_output=True)
        return tmp_path / name

    result = unpack(squash("good"), into, reporter=recorder)
    assert (into / "link").read_text() == "#!/bin/sh\n"
    assert (into / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert list(result.written) == ["bin/tool"]

    (source / "evil").symlink_to("/etc/passwd")
    (tmp_path / "other").mkdir()
    assert "'evil' is a symbolic link to the absolute path" in refused(squash("evil"), tmp_path / "other", recorder)
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:200])
    assert "is truncated or damaged: unsquashfs cannot read it" in refused(
        tmp_path / "cut", tmp_path / "other", recorder
    )


def test_a_squashfs_image_says_what_to_install_where_nothing_reads_it(tmp_path, into, recorder, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    (tmp_path / "e.sqsh").write_bytes(b"hsqs" + bytes(100))

    message = refused(tmp_path / "e.sqsh", into, recorder)

    assert "it is a squashfs image, and this machine has no unsquashfs; install it (squashfs-tools)" in message


def test_an_archive_of_nothing_is_refused(tmp_path, into, recorder):
    assert "is an empty archive" in refused(write_tar(tmp_path / "e.tar.gz", []), into, recorder)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ExtractionLimits(entries=3), "it has more than 3 members"),
        (ExtractionLimits(total_bytes=100_000), "it has more than 0 GB of content (reached at 4 members"),
    ],
)
def test_an_archive_beyond_a_limit_is_refused_while_it_unpacks(limits, expected, tmp_path, into, recorder):
    assert expected in refused(write(tmp_path / "big.tar.gz", ArchiveFormat.GZIP), into, recorder, limits)


def test_a_bomb_is_refused_by_its_ratio(tmp_path, into, recorder, monkeypatch):
    monkeypatch.setattr("naiad.environments.archives.extraction._RATIO_FROM", 1_000_000)
    archive = write_tar(tmp_path / "bomb.tar.gz", [(member("zeros"), bytes(8_000_000))])

    assert "content of more than 200 times its packed size" in refused(archive, into, recorder)


def test_missing_space_is_noticed_before_anything_is_written(tmp_path, into, recorder, monkeypatch):
    archive = write(tmp_path / "e.tar", ArchiveFormat.TAR)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("naiad.environments.archives.extraction.shutil.disk_usage", lambda _path: usage)

    message = refused(archive, into, recorder)

    assert "no space to unpack" in message
    assert "at least" in message
    assert not list(into.iterdir())


def test_a_disk_that_fills_up_on_the_way_is_named(tmp_path, recorder):
    """On a real file system of one megabyte; skipped where mounting one is not allowed."""
    archive = write_tar(tmp_path / "e.tar.gz", [(member("big"), os.urandom(3_000_000))])
    script = f"""
import types
from pathlib import Path
from naiad.environments.archives import extraction as archive
from naiad.environments.progress import LogReporter
archive.shutil.disk_usage = lambda _: types.SimpleNamespace(free=10**9)  # as if it had not been full before
try:
    archive.unpack(Path({str(archive)!r}), Path({str(tmp_path / "small")!r}), reporter=LogReporter())
except Exception as error:
    print(type(error).__name__, error)
"""
    (tmp_path / "small").mkdir()
    done = run_on_small_disk(tmp_path / "small", script)
    if done is None:
        pytest.skip("mounting a file system of our own is not allowed here")
    assert done.startswith("ExecutionEnvironmentError no space to unpack")
    assert "make room there, for example with `naiad env gc --keep-bytes=0`" in done


def run_on_small_disk(folder: Path, script: str) -> str | None:
    """What a script prints with a file system of one megabyte mounted on a folder, None where that is forbidden."""
    if shutil.which("unshare") is None:
        return None
    mount = f"mount -t tmpfs -o size=1m none {folder} || exit 77"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount}; exec "$0" -', sys.executable],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else None


def test_an_archive_of_our_own_is_checked_at_every_place(tmp_path, into, recorder):
    content = os.urandom(60_000)
    packed = tmp_path / "packed.tar.zst"
    write_archive(packed, "tar.zst", [OutputMember(name="data", data=content)], lambda _: None)
    whole = packed.read_bytes()
    damaged = tmp_path / "damaged.tar.zst"

    for place in range(100, len(whole), len(whole) // 20):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        folder = into / str(place)
        folder.mkdir()

        assert "truncated or damaged" in refused(damaged, folder, recorder)
