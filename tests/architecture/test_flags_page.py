"""Pages that are written from tables say what the tables say."""

from __future__ import annotations

import runpy

from architecture.sources import ROOT


def test_the_page_of_flags_is_written_from_the_table_as_it_is_now() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "make_flags.py"))

    assert written["PAGE"].read_text(encoding="utf-8") == written["page"](), "run .venv/bin/python docs/make_flags.py"


def test_the_page_of_native_backends_has_the_table_of_functions_as_it_is_now() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "make_native_functions.py"))

    found = written["PAGE"].read_text(encoding="utf-8")
    assert found == written["page"](), "run .venv/bin/python docs/make_native_functions.py"


def test_the_pages_of_errors_have_the_messages_of_the_source() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "make_errors.py"))

    advice = "run .venv/bin/python docs/make_errors.py"
    assert written["CATALOGUE"].read_text(encoding="utf-8") == written["catalogue"](), advice
    assert written["TROUBLESHOOTING"].read_text(encoding="utf-8") == written["troubleshooting"](), advice


def test_the_document_of_the_api_that_servers_read_is_the_handwritten_one_as_it_is_now() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "make_openapi.py"))

    advice = "run .venv/bin/python docs/make_openapi.py"
    assert written["TARGET"].read_text(encoding="utf-8") == written["document"](), advice
