"""The command that a message names where an extra is not installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from naiad.core.extras import install_command


@pytest.mark.parametrize(
    ("extra", "packages"),
    [("sign", ["cryptography"]), ("conda", ["py-rattler", "pyyaml"]), ("http", ["fsspec[http]"])],
)
def test_what_an_extra_needs_is_named_package_by_package(extra: str, packages: list[str]) -> None:
    command = install_command(extra)
    assert command.startswith("pip install '")
    assert [word.strip("'").split(">=")[0] for word in command.split()[2:]] == packages


def test_copied_files_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert install_command("sign") == "pip install 'naiad[sign]'"
