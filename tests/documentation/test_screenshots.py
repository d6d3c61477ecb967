"""The pictures of the pages can still be made: their program clicks parts of the page, which may change."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path

import pytest
from support.server import ServerProcess  # noqa: F401 - marks these tests as `server`
from support.system_packages import needs

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "console-failed": (1280, 800),
    "console-request": (1280, 800),
    "console-chat": (1280, 800),
    "console-phone": (390, 844),
}


@pytest.mark.endurance
@needs("chromium", "chromedriver")
def test_pictures_are_made_of_a_failed_model_a_request_a_chat_and_a_phone(tmp_path):
    program = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))
    program["make_pictures"](list(SIZES), tmp_path, 1.0)
    for name, size in SIZES.items():
        picture = (tmp_path / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">II", picture[16:24]) == size
        # One color would take a few hundred bytes.
        assert len(picture) > 8000, name


def test_each_picture_of_the_page_is_made_by_the_program_and_shown_by_a_page():
    program = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))
    shown = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert {path.stem for path in program["IMAGES"].glob("console*.png")} == set(program["_PAGES"])
    assert [name for name in program["_PAGES"] if f"images/{name}.png" not in shown] == []
