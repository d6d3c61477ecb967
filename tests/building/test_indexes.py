"""Where packages come from: options of requirements files, tables of uv, and the arguments that uv gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad_building.indexes import PackageIndex, PackageIndexes, indexes_of_options, indexes_of_uv, parse_options

LOCAL = PackageIndex("https://local/simple", name="local")
FLAT = PackageIndex("/files", name="flat", is_flat=True)


def test_the_options_of_a_requirements_file_are_indexes(tmp_path: Path) -> None:
    given = [
        *("-i https://a/simple", "--extra-index-url https://b", "-f wheels", "--trusted-host=b", "--find-links=/w"),
        *("--no-index", "--pre"),
    ]

    found = indexes_of_options([(name, value, tmp_path) for line in given for name, value in parse_options(line)])

    assert found == PackageIndexes(
        default=PackageIndex("https://a/simple"),
        extra=(PackageIndex("https://b"),),
        find_links=(str(tmp_path / "wheels"), "/w"),
        trusted_hosts=("b",),
        only_links=True,
    )
    assert indexes_of_options([]) == PackageIndexes()


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("numpy==1.0", []),
        ("# -i https://a", []),
        ("-ihttps://a", [("-i", "https://a")]),
        ("-i=https://a", [("-i", "https://a")]),
        ("--index-url 'https://a b' # why", [("--index-url", "https://a b")]),
        ("--no-index -f x", [("--no-index", ""), ("-f", "x")]),
        ("-f 'x", [("-f", "'x")]),
    ],
)
def test_options_are_read_as_pip_reads_them(line: str, options: list[tuple[str, str]]) -> None:
    assert parse_options(line) == options


def test_indexes_are_arguments_of_uv() -> None:
    indexes = PackageIndexes(
        default=PackageIndex("https://a"), extra=(LOCAL,), find_links=("/w",), trusted_hosts=("h",), only_links=True
    )

    assert indexes.uv_arguments() == [
        *("--default-index=https://a", "--index=local=https://local/simple", "--find-links=/w"),
        *("--allow-insecure-host=h", "--no-index"),
    ]
    assert PackageIndexes().uv_arguments() == []


def test_a_package_of_one_index_comes_from_no_other() -> None:
    indexes = PackageIndexes(
        extra=(LOCAL,), trusted_hosts=("h",), assigned={"torch": LOCAL, "my-files": FLAT}, find_links=("/w",)
    )
    pips = PackageIndexes(default=PackageIndex("https://pip"), find_links=("/p",), trusted_hosts=("t",))

    torch, files, other = map(indexes.for_package, ("Torch", "my_files", "numpy"))

    assert torch.before(pips) == PackageIndexes(default=LOCAL, trusted_hosts=("h", "t"), is_exclusive=True)
    assert files.before(pips) == PackageIndexes(
        find_links=("/files",), trusted_hosts=("h", "t"), only_links=True, is_exclusive=True
    )
    assert other.before(pips) == PackageIndexes(
        default=pips.default, extra=(LOCAL,), find_links=("/w", "/p"), trusted_hosts=("h", "t")
    )
    assert indexes.places == ("/files", "/w")


def test_the_tables_of_uv_are_indexes(tmp_path: Path) -> None:
    here, elsewhere = "sys_platform == 'linux'", "sys_platform == 'win32'"
    table = {
        "index": [
            {"name": "local", "url": "https://local/simple", "explicit": True},
            {"name": "main", "url": "https://main", "default": True},
            {"url": "https://more"},
        ],
        "sources": {
            "torch": {"index": "local"},
            "jax": [{"index": "main", "marker": elsewhere}, {"index": "local", "marker": here}],
            "gpu": {"index": "local", "extra": "cuda"},
        },
    }

    found = indexes_of_uv(table, tmp_path)

    assert {name: index.url for name, index in found.assigned.items()} == dict.fromkeys(("torch", "jax"), LOCAL.url)
    assert found.default is not None
    assert (found.default.url, [index.url for index in found.extra]) == ("https://main", ["https://more"])
    assert not found.only_links
    assert indexes_of_uv({"no-index": True}, tmp_path).only_links


def test_a_declaration_does_not_get_the_secrets_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAIAD_ADMIN_KEY", "NAIAD_OPENAI_API_KEYS", "TOKEN"):
        monkeypatch.setenv(name, "s3cret")
    text = "https://${TOKEN}@shop/${NAIAD_ADMIN_KEY}/${NAIAD_OPENAI_API_KEYS}"

    found = indexes_of_options([("--extra-index-url", text, tmp_path)])

    assert [index.url for index in found.extra] == [
        "https://s3cret@shop/${NAIAD_ADMIN_KEY}/${NAIAD_OPENAI_API_KEYS}",
    ]
