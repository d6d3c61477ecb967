"""The page as one document: markup, style and scripts of this folder."""

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
