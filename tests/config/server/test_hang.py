"""After how long without progress a guest is restarted: the model's parameter, else the server's option."""

from __future__ import annotations

import pytest

from naiad.config.server.hang import hang_seconds
from naiad.core.errors import ConfigError


@pytest.mark.parametrize(("parameter", "seconds"), [("", 7), (" ", 7), ("0", 0), ("2.5", 2.5)])
def test_the_models_parameter_overrides_the_flag(parameter, seconds):
    assert hang_seconds("m", parameter, 7) == seconds


@pytest.mark.parametrize("parameter", ["soon", "-1", "nan", "inf"])
def test_an_invalid_limit_is_refused(parameter):
    with pytest.raises(ConfigError) as caught:
        hang_seconds("m", parameter, 7)
    assert caught.value.message == (
        f"parameter HANG_SECONDS of model 'm' is '{parameter}': give a number of seconds, or 0 for no limit"
    )
