"""`tritonserver._api._server`."""

from naiad_embedded.inprocess import (
    InstanceGroupKind,
    LogFormat,
    Metric,
    MetricFamily,
    MetricFormat,
    MetricKind,
    ModelControlMode,
    ModelDictionary,
    ModelLoadDeviceLimit,
    Options,
    RateLimiterResource,
    RateLimitMode,
    Server,
)

__all__ = [
    "InstanceGroupKind",
    "LogFormat",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "Server",
]
