"""What people have set for pip reaches uv, from each place where pip reads it, and no value reaches the log."""

from __future__ import annotations

import logging
import os
import pwd
import sys
from pathlib import Path

import pytest

from naiad.core.errors import ExecutionEnvironmentError
from naiad_building import pip_settings
from naiad_building.indexes import PackageIndex, PackageIndexes
from naiad_building.pip_settings import _report, read_pip_settings
from naiad_building.uv_program import InstallOptions, uv_command


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The folders of pip's files, by whose they are; no variable of pip is set."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folders = {name: tmp_path / name for name in ("system", "home", "user", "naiad", "given")}
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(folders["system"]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folders["user"]))
    monkeypatch.setenv("HOME", str(folders["home"]))
    monkeypatch.setattr(sys, "prefix", str(folders["naiad"]))
    monkeypatch.setattr(pip_settings, "_ETC", str(tmp_path))
    files = {
        "system": folders["system"] / "pip" / "pip.conf",
        "legacy": folders["home"] / ".pip" / "pip.conf",
        "user": folders["user"] / "pip" / "pip.conf",
        "naiad": folders["naiad"] / "pip.conf",
        "given": folders["given"] / "my.conf",
    }
    for file in files.values():
        file.parent.mkdir(parents=True)
    _report.cache_clear()
    return files


def index_of(environ: dict[str, str] | None = None) -> str:
    default = read_pip_settings(environ or {}).indexes.default
    return "" if default is None else default.url


def test_later_places_win_as_with_pip(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PIP_CONFIG_FILE": str(places["given"])}
    for name, file in places.items():
        if name == "given":
            break
        file.write_text(f"[global]\nindex-url = https://{name}/simple\n")
        assert index_of() == f"https://{name}/simple"

    places["naiad"].unlink()
    assert index_of() == "https://user/simple"
    # pip reads the user's file with a PIP_CONFIG_FILE only where that does not exist.
    assert index_of(given) == "https://user/simple"
    places["given"].write_text("")
    assert index_of(given) == "https://system/simple"
    places["given"].write_text("[global]\nindex-url = https://given/simple\n")
    assert index_of(given) == "https://given/simple"
    assert index_of({**given, "PIP_INDEX_URL": "https://variable/simple"}) == "https://variable/simple"
    assert index_of({**given, "PIP_INDEX_URL": ""}) == "https://given/simple"
    assert index_of({"PIP_CONFIG_FILE": "/dev/null"}) == ""


def test_the_section_of_installations_wins_and_names_are_spelled_in_any_way(places: dict[str, Path]) -> None:
    places["user"].write_text(
        "[install]\nindex_url = https://install/simple\n[download]\nindex-url = https://d/simple\n"
    )
    places["naiad"].write_text("[global]\nINDEX-URL = https://global/simple\n")

    assert index_of() == "https://install/simple"


def test_all_kinds_of_settings_are_read(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    places["user"].write_text(
        "[global]\nindex-url = https://one/simple\nextra-index-url =\n    https://two/simple\n    https://three/simple\n"
        "find-links = wheels /more\ntrusted-host = one two\nno-index = false\n"
        "cert = /my certs.pem\nclient-cert = /key.pem\ntimeout = 7\nproxy = http://proxy:3128\n"
    )
    found = read_pip_settings({"PIP_TRUSTED_HOST": "three"})

    assert found.indexes == PackageIndexes(
        default=PackageIndex("https://one/simple"),
        extra=(PackageIndex("https://two/simple"), PackageIndex("https://three/simple")),
        find_links=(str(Path.cwd() / "wheels"), "/more"),
        trusted_hosts=("three",),
    )
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    assert found.variables == {
        "SSL_CERT_FILE": "/my certs.pem",
        "SSL_CLIENT_CERT": "/key.pem",
        "UV_HTTP_TIMEOUT": "7",
        **dict.fromkeys(proxies, "http://proxy:3128"),
    }
    assert read_pip_settings({"PIP_DEFAULT_TIMEOUT": "9", "PIP_NO_INDEX": "yes"}).variables["UV_HTTP_TIMEOUT"] == "7"
    assert read_pip_settings({"PIP_NO_INDEX": "yes"}).indexes.only_links


def test_the_log_says_once_which_settings_uv_gets_and_no_value(
    places: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    places["user"].write_text("[global]\nindex-url = https://me:s3cret@one/simple\nno-color = yes\n")
    environ = {"PIP_PROXY": "http://me:s3cret@proxy", "PIP_NO_INPUT": "1"}
    with caplog.at_level(logging.INFO):
        read_pip_settings(environ)
        read_pip_settings(environ)

    assert [record.getMessage() for record in caplog.records] == [
        f"uv gets these settings of pip: index-url, proxy (from {places['user']}, PIP_PROXY)"
    ]


def test_a_file_that_pip_could_not_read_either_is_named(places: dict[str, Path]) -> None:
    places["user"].write_text("index-url = https://one/simple\n")
    with pytest.raises(ExecutionEnvironmentError) as caught:
        read_pip_settings({})
    assert caught.value.message.startswith(
        f"cannot read the settings of pip in {places['user']}: File contains no section"
    )


def test_the_indexes_of_a_declaration_come_first_and_an_exclusive_one_alone() -> None:
    pips = PackageIndexes(
        default=PackageIndex("https://pip"),
        extra=(PackageIndex("https://more"),),
        find_links=("/pips",),
        trusted_hosts=("pips",),
        only_links=True,
    )
    own = PackageIndexes(extra=(PackageIndex("https://own", "mine"),), find_links=("/own",), trusted_hosts=("own",))

    assert own.before(pips).uv_arguments() == [
        *("--default-index=https://pip", "--index=mine=https://own", "--index=https://more"),
        *("--find-links=/own", "--find-links=/pips", "--allow-insecure-host=own", "--allow-insecure-host=pips"),
        "--no-index",
    ]
    assigned = PackageIndexes(default=PackageIndex("https://own"), is_exclusive=True)
    assert assigned.before(pips).uv_arguments() == ["--default-index=https://own", "--allow-insecure-host=pips"]


def test_the_command_of_uv_has_settings_sources_and_no_secrets(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip/simple")
    monkeypatch.setenv("PIP_TIMEOUT", "7")
    monkeypatch.setenv("NAIAD_ADMIN_KEY", "s3cret")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    options = InstallOptions(wheels=(tmp_path,), indexes=PackageIndexes(extra=(PackageIndex("https://own"),)))

    command, environ = uv_command(["pip", "install", "x"], Path("/py"), options)

    assert command[1:] == [
        *("pip", "install", "x", "--python", "/py", "--no-config", "--no-progress", "--color=never"),
        *("--no-python-downloads", "--index-strategy", "unsafe-best-match"),
        *("--default-index=https://pip/simple", "--index=https://own", f"--find-links={tmp_path}"),
    ]
    assert environ["UV_HTTP_TIMEOUT"] == "7"
    assert not {"NAIAD_ADMIN_KEY", "VIRTUAL_ENV", "CONDA_PREFIX"} & environ.keys()

    offline, _ = uv_command(["pip", "install", "x"], Path("/py"), InstallOptions(wheels=(tmp_path,), offline=True))
    assert offline[-3:] == ["--no-index", "--offline", f"--find-links={tmp_path}"]


def test_a_user_without_a_home_has_the_other_files(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that a container was started with."""
    places["system"].write_text("[global]\nindex-url = https://system/simple\n")
    places["legacy"].write_text("[global]\nindex-url = https://legacy/simple\n")
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(pwd, "getpwuid", _no_user)
    assert index_of() == "https://system/simple"


def _no_user(number: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {number}")
