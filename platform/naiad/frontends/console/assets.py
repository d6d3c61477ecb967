"""The page as one document: markup, style and scripts of this folder, put together when the server starts.

One document needs no further requests, works without internet, and lets the content security policy name every script
and style by its hash. No build step is needed: the files are served as they are.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

__all__ = ["Page", "read_page"]

_STYLES = ("vendor/uPlot.min.css", "style.css")
_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "js/dom.js",
    "js/data.js",
    "js/plots.js",
    "js/markdown.js",
    "js/header.js",
    "js/files.js",
    "js/request.js",
    "js/chat.js",
    "js/graph.js",
    "js/environments.js",
    "js/model.js",
    "js/models.js",
    "js/main.js",
)
"""In the order in which they run: a script may use those before it."""


@dataclass(frozen=True)
class Page:
    """The page.

    Attributes:
        text: Its bytes.
        policy: Value of Content-Security-Policy: the page may run its own scripts, use its own styles and call this
            server, and nothing else. Markup in the name of a model could not run a script.
        tag: Value of ETag.
    """

    text: bytes
    policy: str
    tag: str

    @cached_property
    def compressed(self) -> bytes:
        """The same, compressed with gzip."""
        return gzip.compress(self.text, 9, mtime=0)


def read_page() -> Page:
    """The page, from the files of this package."""
    folder = resources.files("naiad.frontends.console")

    def parts(names: tuple[str, ...]) -> list[str]:
        return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]

    styles, scripts = parts(_STYLES), parts(_SCRIPTS)
    # One script for each file, so that a mistake in one does not keep the others from being parsed.
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    text = text.replace("<!-- styles -->", "".join(f"<style>{each}</style>" for each in styles))
    text = text.replace("<!-- scripts -->", "".join(f"<script>{each}</script>" for each in scripts))
    content = text.encode()
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(content, policy, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
