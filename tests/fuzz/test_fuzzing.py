"""Each campaign with few inputs, with more in the endurance tier; README.md has the results of long runs."""

from __future__ import annotations

import pytest
from fuzz.campaign import prepared, server_campaigns
from fuzz.server_target import running_server

pytestmark = pytest.mark.server

of_few_or_many_inputs = pytest.mark.parametrize("inputs", [400, pytest.param(4000, marks=pytest.mark.endurance)])
NAMES = (
    "HTTP: requests with changed bytes, some behind each other, in pieces",
    "HTTP: bodies with changed values",
    "HTTP: bodies with changed bytes",
    "gRPC: messages with changed bytes",
    "gRPC: messages made up",
    "gRPC: good messages with more behind them",
    "gRPC: streams of either",
    "HTTP/2: frames in any order, some with changed bytes",
    "configurations with changed bytes",
    "configurations made up, as text and JSON",
)


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory):
    with prepared(tmp_path_factory.mktemp("fuzz")) as found:
        yield {campaign.name: campaign for campaign in found}


def test_every_campaign_is_run_here(campaigns):
    assert tuple(campaigns) == NAMES
    assert sum(campaign.share for campaign in campaigns.values()) == pytest.approx(1)


# Python warns of `\p` in a text, which protobuf's parser in Python keeps as it is.
@pytest.mark.filterwarnings("ignore:.*invalid escape sequence:DeprecationWarning")
@of_few_or_many_inputs
@pytest.mark.parametrize("name", NAMES)
def test_no_input_crashes_hangs_or_causes_an_unexpected_error(campaigns, name, inputs):
    campaign = campaigns[name]
    assert campaign.run(int(inputs * campaign.share), 1) > 0
    assert len(campaign.target.outcomes) > 1, "all inputs had the same outcome"


@of_few_or_many_inputs
def test_a_real_server_survives_all_campaigns(tmp_path, inputs):
    with running_server(tmp_path) as target:
        for campaign in server_campaigns(target):
            assert campaign.run(inputs // 20, 2) > 0
        target.check_health()
