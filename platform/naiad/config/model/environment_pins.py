"""`environments.lock` of a model repository: the digests of the remote archives that its models name.

One line for each URI, as `sha256sum` prints it:

    6b2f...  https://example.org/numeric.tar.zst
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from naiad.core.errors import ConfigError

PINS_FILE = "environments.lock"
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<uri>\S+)")
_HEAD = "# Written by `naiad env pin`: the content of each remote environment without @sha256 in the model.\n"


def parse_pins(text: str, where: str) -> dict[str, str]:
    """The digests by URI."""
    pins = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise ConfigError(
                f"{where}:{number}: '{line}' is not a digest, two spaces and a URI; write the file again with "
                "`naiad env pin`"
            )
        pins[match["uri"]] = match["digest"]
    return pins


def format_pins(pins: Mapping[str, str]) -> str:
    """The text of the file, sorted by URI."""
    return _HEAD + "".join(f"{pins[uri]}  {uri}\n" for uri in sorted(pins))
