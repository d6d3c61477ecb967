"""Which models are loaded by their first request, and for how long they may be idle."""

from __future__ import annotations

import pytest

from naiad.config.server.demand import demand_idle_seconds, is_on_demand
from naiad.core.errors import ConfigError


@pytest.mark.parametrize(
    ("parameter", "is_demand"), [("", True), (" ", True), ("true", True), ("Pinned", False), ("false", False)]
)
def test_the_models_parameter_overrides_the_flag_for_loading_on_demand(parameter, is_demand):
    assert is_on_demand("m", parameter, True) is is_demand
    assert is_on_demand("m", parameter, False) is (is_demand and bool(parameter.strip()))


def test_an_unknown_value_of_demand_is_refused():
    with pytest.raises(ConfigError) as caught:
        is_on_demand("m", "sometimes", False)
    assert caught.value.message == (
        "parameter demand of model 'm' is 'sometimes': give true (its first request loads it) or pinned (it is loaded "
        "at the start and stays)"
    )


@pytest.mark.parametrize(("parameter", "seconds"), [("", 7), ("0", 0), ("2.5", 2.5)])
def test_the_models_idle_time_overrides_that_of_the_flag(parameter, seconds):
    assert demand_idle_seconds("m", parameter, 7) == seconds


@pytest.mark.parametrize("parameter", ["soon", "-1", "nan", "inf"])
def test_an_invalid_idle_time_is_refused(parameter):
    with pytest.raises(ConfigError) as caught:
        demand_idle_seconds("m", parameter, 7)
    assert caught.value.message == (
        f"parameter idle_seconds of model 'm' is '{parameter}': give a number of seconds, or 0 for never"
    )
