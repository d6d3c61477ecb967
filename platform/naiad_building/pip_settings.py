"""What people have set for pip, for uv, which does not read it: indexes, certificates, a proxy, a time limit.

Read where pip reads it: files of the system, of the user and of naiad's own environment, then `PIP_CONFIG_FILE`, then
variables `PIP_*`. Later ones win, and `[install]` wins over `[global]`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from configparser import Error, RawConfigParser
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from naiad.core.errors import ExecutionEnvironmentError
from naiad_building.indexes import PackageIndexes, absolute_place, indexes_of_values

_log = logging.getLogger("naiad.environments")
_INDEXES = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index")
_PROXIES = "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"
_VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    # In both spellings: programs differ in which one they prefer.
    "proxy": (*_PROXIES, *map(str.lower, _PROXIES)),
}
"""Settings of the network, and the variables that uv reads in their place."""
_ETC = "/etc"
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSettings:
    """Settings of pip that uv needs."""

    indexes: PackageIndexes
    variables: Mapping[str, str]


def read_pip_settings(environ: Mapping[str, str]) -> PipSettings:
    """The settings of pip's configuration. The log names those that there are, once, without their values.

    Raises ExecutionEnvironmentError if a file is invalid. Without it, other indexes than the user's would be used.
    """
    sections: dict[str, dict[str, tuple[str, str]]] = {"global": {}, "install": {}}
    for file in _files(environ):
        parser = RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (Error, UnicodeDecodeError) as error:
            raise ExecutionEnvironmentError(f"cannot read the settings of pip in {file}: {error}") from error
        for section, known in sections.items():
            items = parser.items(section) if parser.has_section(section) else ()
            known |= {_normalized(name): (value.strip(), str(file)) for name, value in items}
    variables = {_normalized(name[4:]): (environ[name].strip(), name) for name in environ if name.startswith("PIP_")}
    given = [*sections["global"].items(), *sections["install"].items(), *variables.items()]
    settings = {name: setting for name, setting in given if setting[0]}  # pip ignores empty values, too
    found = {name: value for name, (value, _) in settings.items()}
    used = [name for name in (*_INDEXES, *_VARIABLES) if name in found]
    _report(tuple(used), tuple(dict.fromkeys(settings[name][1] for name in used)))
    indexes = indexes_of_values({f"--{name}": found[name].split() for name in _INDEXES if name in found})
    return PipSettings(
        indexes=replace(
            indexes,
            find_links=tuple(absolute_place(place, Path()) for place in indexes.find_links),
            only_links=found.get("no-index", "").lower() in _TRUE,
        ),
        variables={variable: found[name] for name, all_ in _VARIABLES.items() if name in found for variable in all_},
    )


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    given = environ.get("PIP_CONFIG_FILE", "")
    if given == os.devnull:  # no file at all
        return
    for folder in (*platformdirs.site_config_dir("pip", appauthor=False, multipath=True).split(os.pathsep), _ETC):
        yield Path(folder, "pip.conf")
    if not Path(given).is_file():
        with suppress(RuntimeError):  # neither HOME nor a password entry, as for the number that a container has
            yield Path.home() / ".pip" / "pip.conf"
            yield platformdirs.user_config_path("pip", appauthor=False) / "pip.conf"
    yield Path(sys.prefix, "pip.conf")
    if given:
        yield Path(given)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


@functools.cache
def _report(names: tuple[str, ...], places: tuple[str, ...]) -> None:
    if names:
        _log.info("uv gets these settings of pip: %s (from %s)", ", ".join(names), ", ".join(places))
