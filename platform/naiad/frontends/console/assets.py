"""The page as one document: markup, style and scripts of this folder.

It works without internet, under a content security policy that names each script by its hash, and has no build step:
the people who maintain it write Python, and React or Vue would bring a bundler and hundreds of packages for ten pages.
uPlot (51 KB, no dependencies) draws the plots.
"""

from __future__ import annotations

from naiad.frontends.http1.page_files import Page, compose_page

__all__ = ["read_page"]

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


def read_page() -> Page:
    """The page, from the files of this package."""
    return compose_page("naiad.frontends.console", "page.html", _STYLES, _SCRIPTS)
