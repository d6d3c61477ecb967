"""`naiad env inspect`: facts about an archive, a store entry or a directory.

An archive of naiad has a manifest with all facts. For other archives, such as those of conda-pack, the facts are
collected from the members while the archive is read once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.quantities import counted
from naiad.core.signatures import list_signers
from naiad.environments.activation_scripts import activation_scripts
from naiad.environments.archives.extraction import damaged_archive_error, explain_unsafe_name
from naiad.environments.archives.formats import ARCHIVE_ERRORS, ArchiveFormat, detect_format, iterate_members
from naiad.environments.archives.manifest import Manifest, Package, read_manifest
from naiad.environments.archives.member import Member, MemberContent, MemberKind
from naiad.environments.installed_packages import conda_package, list_packages
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.entries import StoreEntry, find_entry, read_entries
from naiad.environments.store.record import read_record
from naiad.environments.store.store import Store
from naiad.sources.interpreters.executables import HEADER_BYTES, Executable, parse_header
from naiad.sources.interpreters.prefix import probe_with_libraries, require_interpreter
from naiad.sources.interpreters.probe import probe_interpreter
from naiad.sources.interpreters.versions import version_text

# What a manifest states of its environment.
_STATED = ("name", "made_from", "size", "files", "python", "abi", "platform", "glibc", "packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Facts about an environment; texts are empty if unknown."""

    source: str
    kind: str  # format of the archive such as `tar.gz`, `directory`, or `entry` of the store
    name: str = ""
    made_from: str = ""  # `recipe`, `conda`, `venv`, `directory`; `conda-pack` of an archive without a manifest
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
    signed_by: tuple[str, ...] = ()  # Ids of the keys in the `.sig` file beside it. The signatures are not verified.
    entry: StoreEntry | None = None
    problems: tuple[str, ...] = ()  # what is wrong with the archive, so that a server may refuse it
    activation: tuple[str, ...] = ()


def inspect_environment(text: str, root: Path, reporter: ProgressReporter) -> Inspection:
    """Facts about the environment named on the command line: an archive, a directory, or a digest of an entry."""
    path = Path(text)
    if path.is_dir():
        return _directory(path)
    return _archive(path, root, reporter) if path.exists() else _entry(find_entry(root, text))


def _entry(entry: StoreEntry) -> Inspection:
    stored = read_record(entry.folder)
    if stored is None:
        raise ExecutionEnvironmentError(
            f"the environment in {entry.folder} is incomplete (its archive was {entry.archive}); the next server "
            "that needs it unpacks it again"
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
        activation=tuple(path.name for path in activation_scripts(stored.prefix)),
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
        activation=tuple(path.name for path in activation_scripts(path)),
    )


def _archive(path: Path, root: Path, reporter: ProgressReporter) -> Inspection:
    packed_with = detect_format(path)
    digest = Store(root, reporter).identify(path).digest
    entry = next((entry for entry in read_entries(root) if entry.digest == digest), None)
    manifest = read_manifest(path)
    common: dict[str, Any] = {
        "source": str(path),
        "kind": packed_with.value,
        "digest": digest,
        "packed_size": path.stat().st_size,
        "signed_by": list_signers(path, digest),
        "entry": entry,
    }
    if manifest is None:
        return Inspection(**common, **_facts_of_members(path, packed_with))
    return Inspection(
        **common,
        **{name: getattr(manifest, name) for name in _STATED},
        numpy=_numpy(manifest.packages),
        recipe=tuple(sorted(manifest.recipe.items())),
        **_compare(path, packed_with, manifest),
    )


def _compare(path: Path, packed_with: ArchiveFormat, manifest: Manifest) -> dict[str, Any]:
    """What only the members of an archive show: what is wrong with them, and its activation scripts.

    They are read completely, as a manifest is at the beginning.
    """
    try:
        facts = read_facts(path, packed_with)
    except ExecutionEnvironmentError as error:
        return {"problems": (error.message,)}
    found = facts.members - 1
    if found != manifest.files:
        facts.problems.append(f"it has {counted(found, 'member')} beside its manifest, which counts {manifest.files}")
    return {"problems": tuple(facts.problems), "activation": tuple(sorted(facts.activation))}


def _facts_of_members(path: Path, packed_with: ArchiveFormat) -> dict[str, Any]:
    facts = read_facts(path, packed_with)
    packages = tuple(package for _, package in sorted(facts.packages.items()))
    executable = facts.executable
    return {
        "made_from": "conda-pack" if facts.is_conda_packed else "",
        "size": facts.size,
        "files": facts.members,
        "python": facts.python,
        "platform": "-".join(filter(None, (executable.system, executable.machine))) if executable else "",
        "numpy": _numpy(packages),
        "packages": packages,
        "problems": tuple(facts.problems),
        "activation": tuple(sorted(facts.activation)),
    }


def _numpy(packages: tuple[Package, ...]) -> str:
    return next((package.version for package in packages if package.name.lower() == "numpy"), "")


_INTERPRETER = re.compile(r"(?:[^/]+/)*bin/python(3(?:\.\d+)?)?")
_LIBRARY = re.compile(r"(?:[^/]+/)*lib/python(3\.\d+)/os\.py")
_WHEEL = re.compile(r".*/(?:site|dist)-packages/[^/]+\.dist-info/METADATA")
_CONDA = re.compile(r"(?:[^/]+/)*conda-meta/[^/]+\.json")
_ACTIVATION = re.compile(r"(?:[^/]+/)*etc/conda/activate\.d/([^/]+\.sh)")
_UNPACK = re.compile(r"(?:[^/]+/)*bin/conda-unpack")
_WINDOWS = re.compile(r"(?:[^/]+/)?(?:Scripts/)?python\.exe")
# Size limit for a METADATA file or a conda record.
_LARGEST = 16 << 20
_SHOWN_PROBLEMS = 3


@dataclass(slots=True)
class ArchiveFacts:
    """Facts collected from the members of an archive."""

    members: int = 0
    size: int = 0
    python: str = ""  # version of the interpreter, possibly without the third number; empty if none was found
    executable: Executable | None = None
    is_conda_packed: bool = False
    packages: dict[str, Package] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # members that would be written outside the folder, at most a few
    activation: list[str] = field(default_factory=list)

    def add(self, member: Member, content: MemberContent | None) -> None:
        self.members += 1
        if len(self.problems) < _SHOWN_PROBLEMS and (why := explain_unsafe_name(member.name)):
            self.problems.append(f"its member '{member.name}' {why}: a server refuses the archive")
        name = member.name.removeprefix("./")
        if script := _ACTIVATION.fullmatch(name):
            self.activation.append(script[1])
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
        package = conda_package(record)
        if package is None:
            return
        if package.name == "python":
            self.python = package.version
        self._add(package)

    def _add(self, package: Package) -> None:
        key = canonicalize_name(package.name)
        # A Python package installed by conda has both records. The wheel's describes what `import` finds.
        if key not in self.packages or package.source == "python":
            self.packages[key] = package


def read_facts(archive: Path, packed_with: ArchiveFormat) -> ArchiveFacts:
    """Collect the facts of an archive by reading it completely."""
    facts = ArchiveFacts()
    try:
        for member, content in iterate_members(archive, packed_with, lambda _: None):
            facts.add(member, content)
    except ARCHIVE_ERRORS as error:
        raise damaged_archive_error(archive, facts.members, error) from error
    return facts
