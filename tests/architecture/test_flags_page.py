"""The page of flags says what the server's table of flags says."""

from __future__ import annotations

import runpy

from architecture.sources import ROOT


def test_the_page_of_flags_is_written_from_the_table_as_it_is_now() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "make_flags.py"))

    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), "run .venv/bin/python docs/make_flags.py"
