"""Package indexes that a declaration names itself: `[tool.uv]` of a script or project, options of a requirements file.

They are searched beside those of pip's configuration, both for resolving and for installing what was resolved. A
package that `[tool.uv.sources]` assigns to an index comes from that index alone.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from naiad.config.server.access import SERVER_SECRETS

_Table = Mapping[str, Any]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHORT = {"-i": "--index-url", "-f": "--find-links"}
INDEX_OPTIONS = frozenset({*_SHORT, "--index-url", "--extra-index-url", "--find-links", "--trusted-host", "--no-index"})
"""The options of a requirements file that `indexes_of_options` reads."""
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_COMMENT = re.compile(r"(^|\s)#.*")


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """One index. uv reads credentials from variables that have its name; a flat one lists files of all packages."""

    url: str
    name: str = ""
    is_flat: bool = False

    @property
    def uv_value(self) -> str:
        return f"{self.name}={self.url}" if self.name else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageIndexes:
    """The indexes of a declaration."""

    default: PackageIndex | None = None  # replaces the default one of pip's configuration; None to keep that
    extra: tuple[PackageIndex, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()  # hosts whose certificates are not checked
    only_links: bool = False  # whether no index is used, only `find_links`
    assigned: Mapping[str, PackageIndex] = field(default_factory=dict)  # of packages that come from one index alone
    is_exclusive: bool = False  # whether no index of pip's configuration is used beside these

    @property
    def places(self) -> tuple[str, ...]:
        """Folders of this machine among them: the same text in another folder means another place."""
        every = [index.url for index in (*filter(None, [self.default]), *self.extra, *self.assigned.values())]
        return tuple(sorted(place for place in (*every, *self.find_links) if place.startswith("/")))

    def for_package(self, name: str) -> PackageIndexes:
        """The indexes to install one package from."""
        index = self.assigned.get(canonicalize_name(name))
        if index is None:
            return replace(self, assigned={})
        alone = PackageIndexes(trusted_hosts=self.trusted_hosts, is_exclusive=True)
        if index.is_flat:
            return replace(alone, find_links=(index.url,), only_links=True)
        return replace(alone, default=index)

    def before(self, others: PackageIndexes) -> PackageIndexes:
        """These indexes, then others, unless these are exclusive: of equal versions, uv takes the one of the first."""
        hosts = (*self.trusted_hosts, *others.trusted_hosts)
        if self.is_exclusive:
            return replace(self, trusted_hosts=hosts)
        return replace(
            self,
            default=self.default or others.default,
            extra=(*self.extra, *others.extra),
            find_links=(*self.find_links, *others.find_links),
            trusted_hosts=hosts,
            only_links=self.only_links or others.only_links,
        )

    def uv_arguments(self) -> list[str]:
        """Arguments of uv's commands, without `assigned`."""
        return [
            *([] if self.default is None else [f"--default-index={self.default.uv_value}"]),
            *(f"--index={index.uv_value}" for index in self.extra),
            *(f"--find-links={place}" for place in self.find_links),
            *(f"--allow-insecure-host={host}" for host in self.trusted_hosts),
            *(["--no-index"] if self.only_links else []),
        ]


def indexes_of_uv(table: _Table, folder: Path) -> PackageIndexes:
    """The indexes in the table `[tool.uv]` of a script or a project.

    Raises AttributeError, InvalidMarker, KeyError, TypeError if the table is invalid.
    """
    entries: list[_Table] = table.get("index", ())
    indexes = [
        PackageIndex(absolute_place(each["url"], folder), each.get("name", ""), each.get("format") == "flat")
        for each in entries
    ]
    named = {index.name: index for index in indexes}
    used = [index for index, each in zip(indexes, entries, strict=True) if not each.get("explicit", False)]
    defaults = [index for index, each in zip(indexes, entries, strict=True) if index in used and each.get("default")]
    links = [absolute_place(str(place), folder) for place in table.get("find-links", ())]
    extra = [PackageIndex(absolute_place(url, folder)) for url in table.get("extra-index-url", ())]
    if "index-url" in table:
        defaults.insert(0, PackageIndex(absolute_place(table["index-url"], folder)))
    return PackageIndexes(
        default=next((index for index in reversed(defaults) if not index.is_flat), None),
        extra=(*(index for index in used if not index.is_flat and index not in defaults), *extra),
        find_links=(*links, *(index.url for index in used if index.is_flat)),
        only_links=bool(table.get("no-index", False)),
        assigned={
            str(canonicalize_name(package)): named[name]
            for package, sources in table.get("sources", {}).items()
            for name in _index_names(sources)
            if name in named
        },
    )


def indexes_of_options(options: Iterable[tuple[str, str, Path]]) -> PackageIndexes:
    """The indexes in the options of a requirements file: name, value, and the folder of relative paths, of each."""
    given: dict[str, list[str]] = {}
    for name, value, folder in options:
        # pip replaces variables in requirements files, so that credentials need not be in them.
        place = absolute_place(_VARIABLE.sub(_variable, value), folder)
        given.setdefault(_SHORT.get(name, name), []).append(value if name == "--trusted-host" else place)
    return indexes_of_values(given)


def indexes_of_values(given: Mapping[str, Sequence[str]]) -> PackageIndexes:
    """The indexes in the values of pip's options, by their names."""
    return PackageIndexes(
        default=PackageIndex(given["--index-url"][-1]) if "--index-url" in given else None,
        extra=tuple(map(PackageIndex, given.get("--extra-index-url", ()))),
        find_links=tuple(given.get("--find-links", ())),
        trusted_hosts=tuple(given.get("--trusted-host", ())),
        only_links="--no-index" in given,
    )


def _variable(match: re.Match[str]) -> str:
    # No declaration of a model may send secrets of the server to an address.
    return match[0] if match[1] in SERVER_SECRETS else os.environ.get(match[1], match[0])


def parse_options(line: str) -> list[tuple[str, str]]:
    """Names and values of the options on a line of a requirements file, without quotes; empty for a requirement."""
    text = _COMMENT.sub("", line).strip()
    if not text.startswith("-"):
        return []
    try:
        words = shlex.split(text)  # as pip does, whose values may be paths with blanks
    except ValueError:  # a quote is not closed: the installer reports it
        words = text.split()
    found: list[tuple[str, str]] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if not word.startswith("--"):
            name, value = word[:2], word[2:].removeprefix("=")
        else:
            name, _, value = word.partition("=")
        if not value and words and not words[0].startswith("-"):
            value = words.pop(0)
        found.append((name, value))
    return found


def _index_names(sources: Any) -> list[str]:
    """Names of the indexes that an entry of `[tool.uv.sources]` names for this machine."""
    entries: list[_Table] = sources if isinstance(sources, list) else [sources]
    return [
        entry["index"]
        for entry in entries
        if "index" in entry and "extra" not in entry and "group" not in entry
        if not entry.get("marker") or Marker(entry["marker"]).evaluate()
    ]


def absolute_place(text: str, folder: Path) -> str:
    """An address as it is, and a path as an absolute one."""
    return text if _SCHEME.match(text) else str(folder.absolute() / text)
