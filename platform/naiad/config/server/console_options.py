"""`--ui-password` and `--ui-control`: who may use the page at `/ui`, and whether it may load and unload models."""

from __future__ import annotations

from naiad.config.server.access import Api, parse_restrictions
from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

__all__ = ["parse_ui_control", "parse_ui_password"]

_UI = "ui"
_CONTROL, _PASSWORD, _RESTRICTED = "ui-control", "ui-password", "http-restricted-api"


def parse_ui_password(values: FlagValues, name: str) -> str:
    """The password of the page: the first line of the file that the flag names; empty without the flag.

    Not from the command line, which every local user can read in /proc.

    Raises:
        UsageError: If the page is not served.
        OptionError: If the file cannot be read, or is empty.
    """
    file = values.path(name)
    if file is None:
        return ""
    _require_page(values, name)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise OptionError(
            f"cannot read the password of --{name}={file}: {problem}; name a file whose first line is the password"
        ) from None
    if not lines or not lines[0].strip():
        raise OptionError(f"cannot use --{name}={file}: its first line is empty; write the password there")
    return lines[0].strip()


def parse_ui_control(values: FlagValues, name: str) -> bool:
    """Whether the page may load and unload models.

    Raises:
        UsageError: If the page is not served, or models cannot be loaded on request, or that is restricted to clients
            with a header, which browsers do not send.
    """
    if not values.switch(name):
        return False
    _require_page(values, name)
    if values.text("model-control-mode") != "explicit":
        raise values.invalid(
            name, f"--{name} needs --model-control-mode=explicit: in other modes models are not loaded on request"
        )
    if Api.MODEL_REPOSITORY in parse_restrictions(values, _RESTRICTED) and not values.has(_PASSWORD):
        raise values.invalid(
            name,
            f"--{name} needs --{_PASSWORD}: --{_RESTRICTED} restricts the loading of models, "
            "and the page would open it to every client",
        )
    return True


def _require_page(values: FlagValues, name: str) -> None:
    if not values.switch(_UI):
        raise values.invalid(name, f"--{name} needs --{_UI}=true, which serves the page")
