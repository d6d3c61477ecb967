"""`--ui-address`, `--ui-password` and `--ui-control`: who may use the page at `/ui`, and for what."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from naiad.config.server.access import Api, parse_restrictions
from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

_UI = "ui"
_CONTROL, _PASSWORD, _RESTRICTED = "ui-control", "ui-password", "http-restricted-api"
_ADDRESS, _HTTP_ADDRESS = "ui-address", "http-address"
# All loopback addresses, and all addresses: what `--ui-address` stands for.
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 - what an operator may ask for


def parse_ui_address(values: FlagValues, name: str) -> str:
    """The address of HTTP's port at which the page is served: one address, `127.0.0.1` or `0.0.0.0`.

    `127.0.0.1` stands for all loopback addresses and is the default without a password, since the page shows paths,
    log lines and configurations. `0.0.0.0` stands for all addresses and is the default with one.
    """
    if not values.has(name):
        return EVERYWHERE if values.has(_PASSWORD) else LOOPBACK
    _require_page(values, name)
    text = values.text(name)
    address = _address_of(text)
    if address is None:
        raise values.invalid(
            name, f"'{text}' is not an address; give 127.0.0.1, 0.0.0.0 or one of the addresses of this machine"
        )
    http = _address_of(values.text(_HTTP_ADDRESS))
    if http is not None and http != EVERYWHERE and address not in (http, EVERYWHERE):
        raise values.invalid(
            name,
            f"--{name}={text} is not an address of HTTP, whose port the page uses: "
            f"--{_HTTP_ADDRESS}={values.text(_HTTP_ADDRESS)}; give that one",
        )
    return address


def console_warnings(values: FlagValues) -> Iterator[str]:
    """A warning if nobody can open the page."""
    if not values.switch(_UI) or values.has(_ADDRESS) or values.has(_PASSWORD):
        return
    text = values.text(_HTTP_ADDRESS)
    if _address_of(text) not in {None, LOOPBACK, EVERYWHERE}:
        yield (
            f"nobody can open the page at /ui: without --{_PASSWORD} it is served to this machine alone, and "
            f"--{_HTTP_ADDRESS}={text} is not a loopback address; set --{_PASSWORD}=FILE, or --{_ADDRESS}={text} to "
            "serve it without a password"
        )


def _address_of(text: str) -> str | None:
    """An address in one spelling, with one for all loopback addresses and one for any; None for a name."""
    if text == "localhost":
        return LOOPBACK
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    if address.is_unspecified:
        return EVERYWHERE
    return LOOPBACK if address.is_loopback else str(address)


def parse_ui_password(values: FlagValues, name: str) -> str:
    """The password of the page: the first line of the file that the flag names; empty without the flag.

    Not from the command line, which every local user can read in /proc.
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
    """Whether the page may load and unload models; an error if no browser can: they send no header for it."""
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
