"""Log settings in messages."""

from __future__ import annotations

from naiad.errors import InvalidRequestError
from naiad.frontends import log_settings
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.log_settings import Log

_CHOICES = {bool: ("bool_param", "boolean"), int: ("uint32_param", "int32"), str: ("string_param", "string")}


def log_settings_changed(request: pb.LogSettingsRequest, log: Log) -> pb.LogSettingsResponse:
    """Change what the request names; answer with all settings.

    Raises:
        NaiadError: If a setting cannot be changed so.
    """
    wanted: dict[str, str | bool | int] = {}
    for name, value in request.settings.items():
        if name not in log_settings.KINDS:
            continue
        choice, kind = _CHOICES[log_settings.KINDS[name]]
        if name != "log_file" and value.WhichOneof("parameter_choice") != choice:
            raise InvalidRequestError(f"expect {kind} for '{name}'")
        wanted[name] = getattr(value, choice)
    if "log_format" in wanted:
        log_settings.check_format(str(wanted["log_format"]))
    if wanted:
        log.change(log_settings.changed(log.settings, wanted))
    response = pb.LogSettingsResponse()
    for name, setting in log_settings.document(log.settings).items():
        setattr(response.settings[name], _CHOICES[type(setting)][0], setting)
    return response
