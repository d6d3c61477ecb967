"""What an environment is, for people and scripts: an archive, an entry of the store, or a directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path

from naiad.environments.archives.extraction import damaged_archive_error
from naiad.environments.archives.formats import ARCHIVE_ERRORS, ArchiveFormat, detect_format, iterate_members
from naiad.environments.archives.manifest import Package, read_manifest
from naiad.environments.archives.member import Member, MemberContent, MemberKind
from naiad.environments.archives.signatures import list_signers
from naiad.environments.installed_packages import list_packages
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.entries import StoreEntry, find_entry, read_entries
from naiad.environments.store.record import read_record
from naiad.environments.store.store import Store
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.executables import HEADER_BYTES, Executable, parse_header
from naiad.interpreters.prefix import probe_with_libraries, require_interpreter
from naiad.interpreters.probe import probe_interpreter
from naiad.interpreters.versions import version_text

__all__ = ["ArchiveFacts", "Inspection", "inspect_environment", "read_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is known of an environment; texts are empty where nothing is.

    Attributes:
        source: The archive or directory.
        kind: What it is: `tar.gz` and the like, `directory`, or `entry` of the store.
        name: Of its recipe, or of what was packed.
        made_from: `recipe`, `conda`, `venv`, `directory`; `conda-pack` of an archive without a manifest.
        digest: SHA-256 of the archive.
        packed_size: Bytes of the archive, 0 for what is none.
        size: Bytes of its content.
        files: Files in it.
        python: Version of its interpreter.
        abi: As in names of extension modules.
        platform: What its interpreter is built for.
        glibc: The oldest glibc its compiled files run with.
        numpy: Version of its numpy.
        packages: What is installed.
        recipe: Digests of its recipe's files.
        signed_by: Ids of the keys that signed this content, as the file beside it says; nothing is checked.
        entry: Its entry in the store, None if it was not unpacked there.
    """

    source: str
    kind: str
    name: str = ""
    made_from: str = ""
    digest: str = ""
    packed_size: int = 0
    size: int = 0
    files: int = 0
    python: str = ""
    abi: str = ""
    platform: str = ""
    glibc: str = ""
    numpy: str = ""
    packages: tuple[Package, ...] = ()
    recipe: tuple[tuple[str, str], ...] = ()
    signed_by: tuple[str, ...] = ()
    entry: StoreEntry | None = None


def inspect_environment(text: str, root: Path, reporter: ProgressReporter) -> Inspection:
    """What an environment is that a person names: an archive, a directory, or an entry by its digest.

    Args:
        text: Its path or digest.
        root: The store.
        reporter: Whoever shows progress.

    Raises:
        ExecutionEnvironmentError: If there is no such thing, or it is no environment.
    """
    path = Path(text)
    if path.is_dir():
        return _directory(path)
    return _archive(path, root, reporter) if path.exists() else _entry(find_entry(root, text))


def _entry(entry: StoreEntry) -> Inspection:
    stored = read_record(entry.folder)
    if stored is None:
        raise ExecutionEnvironmentError(
            f"the environment in {entry.folder} is not whole any more (its archive was {entry.archive}); the next "
            "server that needs it unpacks it anew"
        )
    return Inspection(
        source=entry.archive,
        kind="entry",
        digest=entry.digest,
        size=entry.size,
        files=entry.files,
        python=entry.python,
        abi=stored.interpreter.abi,
        platform=entry.platform,
        numpy=stored.interpreter.numpy or "",
        packages=list_packages(stored.prefix),
        entry=entry,
    )


def _directory(path: Path) -> Inspection:
    where = f"the execution environment {path}"
    found, _ = probe_with_libraries(require_interpreter(path, where=where), path, probe_interpreter)
    files = [file.lstat().st_size for file in path.rglob("*") if not file.is_dir()]
    return Inspection(
        source=str(path),
        kind="directory",
        size=sum(files),
        files=len(files),
        python=version_text(found.version),
        abi=found.abi,
        platform=found.platform,
        numpy=found.numpy or "",
        packages=list_packages(path),
    )


def _archive(path: Path, root: Path, reporter: ProgressReporter) -> Inspection:
    packed_with = detect_format(path)
    digest = Store(root, reporter).identify(path).digest
    entry = next((entry for entry in read_entries(root) if entry.digest == digest), None)
    manifest = read_manifest(path)
    if manifest is None:
        return _without_manifest(path, packed_with, digest, entry)
    return Inspection(
        source=str(path),
        kind=packed_with.value,
        name=manifest.name,
        made_from=manifest.made_from,
        digest=digest,
        packed_size=path.stat().st_size,
        size=manifest.size,
        files=manifest.files,
        python=manifest.python,
        abi=manifest.abi,
        platform=manifest.platform,
        glibc=manifest.glibc,
        numpy=_numpy(manifest.packages),
        packages=manifest.packages,
        recipe=tuple(sorted(manifest.recipe.items())),
        signed_by=list_signers(path, digest),
        entry=entry,
    )


def _without_manifest(path: Path, packed_with: ArchiveFormat, digest: str, entry: StoreEntry | None) -> Inspection:
    facts = read_facts(path, packed_with)
    packages = tuple(package for _, package in sorted(facts.packages.items()))
    return Inspection(
        source=str(path),
        kind=packed_with.value,
        made_from="conda-pack" if facts.is_conda_packed else "",
        digest=digest,
        packed_size=path.stat().st_size,
        size=facts.size,
        files=facts.members,
        python=facts.python,
        platform=_platform(facts.executable),
        numpy=_numpy(packages),
        packages=packages,
        signed_by=list_signers(path, digest),
        entry=entry,
    )


def _platform(found: Executable | None) -> str:
    return "-".join(part for part in (found.system, found.machine) if part) if found else ""


def _numpy(packages: tuple[Package, ...]) -> str:
    return next((package.version for package in packages if package.name.lower() == "numpy"), "")


_INTERPRETER = re.compile(r"(?:[^/]+/)?bin/python(3(?:\.\d+)?)?")
_LIBRARY = re.compile(r"(?:[^/]+/)?lib/python(3\.\d+)/os\.py")
_WHEEL = re.compile(r".*/(?:site|dist)-packages/[^/]+\.dist-info/METADATA")
_CONDA = re.compile(r"(?:[^/]+/)?conda-meta/[^/]+\.json")
_UNPACK = re.compile(r"(?:[^/]+/)?bin/conda-unpack")
_WINDOWS = re.compile(r"(?:[^/]+/)?(?:Scripts/)?python\.exe")
# Enough for every record and the head of every METADATA; what is larger is none.
_LARGEST = 16 << 20


@dataclass(slots=True)
class ArchiveFacts:
    """What was seen.

    Attributes:
        members: How many.
        size: Bytes of content.
        python: Version of the interpreter as exactly as it can be told, empty if none was seen.
        executable: What its interpreter is built for, None if none was seen.
        is_conda_packed: Whether conda-pack made it.
        packages: What is installed, by name.
    """

    members: int = 0
    size: int = 0
    python: str = ""
    executable: Executable | None = None
    is_conda_packed: bool = False
    packages: dict[str, Package] = field(default_factory=dict)

    def add(self, member: Member, content: MemberContent | None) -> None:
        """Take note of one member."""
        self.members += 1
        name = member.name.removeprefix("./")
        self.is_conda_packed |= _UNPACK.fullmatch(name) is not None
        if library := _LIBRARY.fullmatch(name):
            self.python = self.python or library[1]
        if member.kind is not MemberKind.FILE or content is None:
            return
        self.size += member.size
        if self.executable is None and (_INTERPRETER.fullmatch(name) or _WINDOWS.fullmatch(name)):
            self.executable = parse_header(content.read(HEADER_BYTES))
        elif _WHEEL.fullmatch(name):
            self._add_wheel(content.read(_LARGEST))
        elif _CONDA.fullmatch(name):
            self._add_conda(content.read(_LARGEST))

    def _add_wheel(self, metadata: bytes) -> None:
        head = BytesHeaderParser().parsebytes(metadata)
        if head["Name"]:
            self._add(Package(name=str(head["Name"]), version=str(head["Version"]), digest="", source="python"))

    def _add_conda(self, record: bytes) -> None:
        try:
            said = json.loads(record)
            package = Package(
                name=str(said["name"]),
                version=str(said["version"]),
                digest=str(said.get("sha256") or ""),
                source="conda",
            )
        except (KeyError, TypeError, ValueError):
            return
        if package.name == "python":
            self.python = package.version
        self._add(package)

    def _add(self, package: Package) -> None:
        key = package.name.lower().replace("_", "-").replace(".", "-")
        # One that conda installed has a record of its own kind as well; the wheel's is what `import` finds.
        if key not in self.packages or package.source == "python":
            self.packages[key] = package


def read_facts(archive: Path, packed_with: ArchiveFormat) -> ArchiveFacts:
    """Read an archive to its end.

    Raises:
        ExecutionEnvironmentError: If it is damaged.
    """
    facts = ArchiveFacts()
    try:
        for member, content in iterate_members(archive, packed_with, lambda _: None):
            facts.add(member, content)
    except ARCHIVE_ERRORS as error:
        raise damaged_archive_error(archive, facts.members, error) from error
    return facts
