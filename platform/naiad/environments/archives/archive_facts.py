"""What an archive holds, told by its members as they pass by: for archives that bring no manifest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from pathlib import Path

from naiad.environments.archives.extraction import damaged
from naiad.environments.archives.formats import DAMAGE, Format, members
from naiad.environments.archives.manifest import Package
from naiad.environments.archives.member import Content, Kind, Member
from naiad.interpreters.executables import HEADER_BYTES, Executable, parse_header

__all__ = ["ArchiveFacts", "read_facts"]

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

    def add(self, member: Member, content: Content | None) -> None:
        """Take note of one member."""
        self.members += 1
        name = member.name.removeprefix("./")
        self.is_conda_packed |= _UNPACK.fullmatch(name) is not None
        if library := _LIBRARY.fullmatch(name):
            self.python = self.python or library[1]
        if member.kind is not Kind.FILE or content is None:
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


def read_facts(archive: Path, packed_with: Format) -> ArchiveFacts:
    """Read an archive to its end.

    Raises:
        ExecutionEnvironmentError: If it is damaged.
    """
    facts = ArchiveFacts()
    try:
        for member, content in members(archive, packed_with, lambda _: None):
            facts.add(member, content)
    except DAMAGE as error:
        raise damaged(archive, facts.members, error) from error
    return facts
