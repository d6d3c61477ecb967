"""A web page as one document: markup, styles and scripts of a package, put together when it is first needed.

One document needs no further requests, works without internet, and lets the content security policy name every script
and style by its hash. No build step is needed: the files are served as they are.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

from naiad.frontends.http1.messages import HttpRequest, response
from naiad.protocol.inference import Buffer

_OK, _NOT_MODIFIED = 200, 304


@dataclass(frozen=True)
class Page:
    """The page."""

    text: bytes
    # Value of Content-Security-Policy: the page may run its own scripts, use its own styles and call this server, and
    # nothing else. Markup in the name of a model could not run a script.
    policy: str
    tag: str

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.text, 9, mtime=0)


def compose_page(package: str, markup: str, styles: Sequence[str], scripts: Sequence[str]) -> Page:
    """The page that files of a package make; comments in *markup* say where styles and scripts go."""
    folder = resources.files(package)

    def parts(names: Sequence[str]) -> list[str]:
        return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]

    style_texts, script_texts = parts(styles), parts(scripts)
    # One script for each file, so that a mistake in one does not keep the others from being parsed.
    text = folder.joinpath(markup).read_text(encoding="utf-8")
    text = text.replace("<!-- styles -->", "".join(f"<style>{each}</style>" for each in style_texts))
    text = text.replace("<!-- scripts -->", "".join(f"<script>{each}</script>" for each in script_texts))
    content = text.encode()
    policy = (
        f"default-src 'none'; script-src {_hashes(script_texts)}; style-src {_hashes(style_texts)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(content, policy, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def page_response(page: Page, request: HttpRequest) -> Sequence[Buffer]:
    """The response with a page, or that its reader has it already."""
    headers = f"Content-Security-Policy: {page.policy}\r\nX-Content-Type-Options: nosniff\r\n"
    headers += (
        f"Referrer-Policy: no-referrer\r\nCache-Control: no-cache\r\nETag: {page.tag}\r\nVary: Accept-Encoding\r\n"
    )
    if request.headers.get(b"if-none-match") == page.tag.encode():
        return response(_NOT_MODIFIED, [], b"", headers.encode())
    text = page.text
    if b"gzip" in request.headers.get(b"accept-encoding", b""):
        text, headers = page.compressed, f"{headers}Content-Encoding: gzip\r\n"
    return response(_OK, [text], b"text/html; charset=utf-8", headers.encode())


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
