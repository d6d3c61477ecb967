from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frontends.console.pages import Pages
from support.system_packages import require

FLAGS = (
    "--headless",
    "--no-sandbox",  # which needs a user other than root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


HASTE = (
    "const timer = window.setTimeout; window.setTimeout = (call, delay, ...more) => timer(call, delay / 8, ...more);"
)
"""The pages ask the server each second or two; tests would wait for that most of their time."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real browser without a window."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    driver = require("chromedriver")
    options = ChromeOptions()
    options.binary_location = require("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    started = Chrome(options, Service(driver))
    started.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HASTE})
    yield started
    started.quit()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which checks what keyboards and screen readers can use."""
    return (Path(__file__).parents[2] / "vendor" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    """The browser, at the size of a small laptop; it shows nothing afterwards, so that no page asks a server."""
    made = Pages(browser)
    made.resize(1280, 800)
    made.prefer("light")
    yield made
    browser.get("about:blank")
