"""A browser with a page of the console in it, and what tests do with that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

DESKTOP, PHONE = (1280, 800), (390, 844)
SIZES = [DESKTOP, pytest.param(PHONE, marks=pytest.mark.endurance)]
"""Most tests show pages in one size: a page costs seconds of processor time."""
SERIOUS = ("serious", "critical")


class Pages:
    """Opens pages and reads what they show.

    Attributes:
        browser: The browser.
        url: Address of the server, as the browser uses it.
    """

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.url = ""

    def open(self, route: str = "#/") -> None:
        """Load a page anew, and wait until it shows something."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/ui{route}")
        self.until(lambda: self.run("return document.querySelector('main').childElementCount"))

    def resize(self, width: int, height: int) -> None:
        """Show pages in that size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Prefer the color scheme `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; its result."""
        return self.browser.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until *condition* holds; its result."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: condition())

    def text(self, selector: str = "main") -> str:
        """What the first element of a selector shows; empty if there is none."""
        shown = self.run("const node = document.querySelector(arguments[0]); return node && node.innerText", selector)
        return shown or ""

    def texts(self, selector: str) -> list[str]:
        """What all elements of a selector show, at one instant."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(node => node.innerText)", selector
        )
        return found

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element of a selector that shows *text*, once there is one."""
        script = """
            const [selector, text] = arguments;
            const node = [...document.querySelectorAll(selector)].find(each => each.innerText.trim().startsWith(text));
            if (node) node.click();
            return Boolean(node);
        """
        self.until(lambda: self.run(script, selector, text))

    def fill(self, selector: str, text: str) -> None:
        """Enter a text into the first field of a selector, once there is one."""
        script = """
            const node = document.querySelector(arguments[0]);
            if (!node) return false;
            node.value = arguments[1];
            node.dispatchEvent(new Event("input", { bubbles: true }));
            node.dispatchEvent(new Event("change", { bubbles: true }));
            return true;
        """
        self.until(lambda: self.run(script, selector, text))

    def press(self, selector: str, *keys: str) -> None:
        """Press keys in the first element of a selector, once there is one."""
        self.until(lambda: self.browser.find_elements("css selector", selector))[0].send_keys(*keys)

    def models(self) -> list[str]:
        """The names in the list of models, in its order."""
        return self.texts("#models td.name")

    def row(self, model: str) -> str:
        """The line of a model in the list."""
        return next((text for text in self.texts("#models tr") if text.split()[:1] == [model]), "")

    def tile(self, name: str) -> str:
        """A figure of the strip above all pages; empty if it is not shown."""
        shown = dict(text.split("\n", 1) for text in self.texts(".strip div") if "\n" in text)
        return shown.get(name, "")

    def cell(self, model: str, column: str) -> str:
        """What the list of models shows of a model in a column."""
        script = """
            const [model, column] = arguments;
            const row = [...document.querySelectorAll("#models tr")].find(each => each.querySelector("td.name a").innerText === model);
            const cell = row && row.querySelector(`[data-label="${column}"]`);
            return cell ? cell.innerText : "";
        """
        return str(self.run(script, model, column))

    def fits(self) -> bool:
        """Whether the page is no wider than the window."""
        return bool(self.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth"))

    def problems(self, axe: str) -> list[str]:
        """The serious findings of axe-core."""
        # Through the debugger: the policy of the page lets nobody add a script.
        self.browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
        found = self.browser.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, { resultTypes: ['violations'] }).then(result => done(result.violations))"
        )
        return [
            f"{each['id']}: {each['help']}: {node['html'][:160]}"
            for each in found
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]
