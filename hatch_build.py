"""What the package's metadata has that depends on where the site of the documentation is: the README's links, and URLs.

On the page of a package index, links of the README that are relative to the repository lead nowhere. Here they become
links to the site that `make docs` builds, whose address is `site` in `pyproject.toml`, or in the variable
NAIAD_SITE_URL of whoever publishes. Without an address they become their text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_VARIABLE = "NAIAD_SITE_URL"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)")


class SiteLinks(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to the metadata."""
        site = (os.environ.get(_VARIABLE) or self.config.get("site", "")).rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(readme, site)}
        metadata["urls"] = project_urls(site)


def project_urls(site: str) -> dict[str, str]:
    """The URLs of the project, by the names that package indexes know; none without a site."""
    if not site:
        return {}
    return {
        "Homepage": f"{site}/index.html",
        "Documentation": f"{site}/docs/index.html",
        "Changelog": f"{site}/CHANGELOG.html",
    }


def with_absolute_links(text: str, site: str) -> str:
    """A page with links to the site in place of those to files of the repository; without a site, with their texts."""

    def absolute(match: re.Match[str]) -> str:
        mark, name, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        if not site:
            return "" if mark else name
        return f"{mark}[{name}]({site}/{site_path(target)})"

    return _LINK.sub(absolute, text)


def site_path(target: str) -> str:
    """The path on the site of a file of the repository, with the same fragment."""
    path, mark, fragment = target.partition("#")
    folder, slash, name = path.rpartition("/")
    if name.endswith(".md"):
        name = "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"
    return f"{folder}{slash}{name}{mark}{fragment}"
