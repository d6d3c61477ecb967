"""The configuration that is written, and its report."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET

import pytest

from naiad.config.model.text import parse_text
from naiad.core.errors import ConfigError
from naiad_operations.tune.configuration import candidate_of, check_tunable, with_candidate, with_candidate_text
from naiad_operations.tune.objective import Limit, Measured
from naiad_operations.tune.report import as_csv, as_markdown, as_svg, candidate_text
from naiad_operations.tune.search import Candidate

BEFORE, BETTER, WORST = Candidate(1, 0, 0), Candidate(2, 8, 500), Candidate(4, 8, 500)
LIMITS = (Limit("p95", 20.0),)
SVG = "{http://www.w3.org/2000/svg}"


def load(concurrency, rate, p95, errors=0):
    figures = {"p50": p95 / 2, "p90": p95, "p95": p95, "p99": p95, "mean": p95 / 2, "max": p95 * 2}
    return Measured(concurrency=concurrency, rate=rate, milliseconds={} if errors else figures, errors=errors)


TRIALS = {
    BEFORE: [load(1, 100, 5), load(4, 200, 19), load(16, 210, 80)],
    BETTER: [load(1, 110, 4), load(4, 400, 9), load(16, 800, 18)],
    WORST: [load(1, 0, 0, errors=3)],
}


def test_a_configuration_in_json_keeps_everything_but_the_settings():
    config = {
        "name": "m", "max_batch_size": 16, "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 7, "preserve_ordering": True},
    }  # fmt: skip
    assert candidate_of(config) == Candidate(1, 16, 7)
    changed = with_candidate(config, Candidate(3, 8, 500))
    assert changed["instance_group"] == [{"name": "m_0", "kind": "KIND_CPU", "count": 3}]
    assert (changed["name"], changed["max_batch_size"]) == ("m", 8)
    assert changed["dynamic_batching"] == {"max_queue_delay_microseconds": 500, "preserve_ordering": True}
    plain = with_candidate(config, Candidate(1, 0, 0))
    assert plain["max_batch_size"] == 16
    assert "dynamic_batching" not in plain


def test_the_text_of_a_configuration_says_what_the_file_said_and_the_settings():
    text = 'max_batch_size: 16\ninput { name: "X" data_type: TYPE_FP32 dims: -1 }\nparameters { key: "k" value { string_value: "v" } }\n'
    made = parse_text(with_candidate_text(parse_text(text, "x"), BETTER), "made")
    assert made.instance_group[0].count == 2
    assert (made.max_batch_size, made.dynamic_batching.max_queue_delay_microseconds) == (8, 500)
    assert (made.input[0].name, made.parameters["k"].string_value, made.name) == ("X", "v", "")
    assert not parse_text(with_candidate_text(parse_text(text, "x"), BEFORE), "made").HasField("dynamic_batching")


def test_an_ensemble_is_refused():
    with pytest.raises(
        ConfigError, match=r"cannot tune model 'e': it is an ensemble, .*; tune the models of its steps"
    ):
        check_tunable({"name": "e", "platform": "ensemble"})


def test_the_report_names_the_best_configuration_and_what_it_gains():
    text = as_markdown("m", TRIALS, LIMITS, BEFORE, BETTER, ["On a quiet machine."])
    assert (
        "**2 instances, batches of 8, delay 0.5 ms: 800 requests/s**, 4.00 times those of the configuration before"
        in text
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == "| 2 instances, batches of 8, delay 0.5 ms | 800 | 18 | 16 | chosen |"
    assert rows[2] == "| 1 instance, no dynamic batching | 200 | 19 | 4 | before |"
    assert rows[3] == "| 4 instances, batches of 8, delay 0.5 ms | - | - | - |  |"
    assert "- On a quiet machine." in text


@pytest.mark.parametrize(
    ("limits", "best", "expected"),
    [
        (LIMITS, BEFORE, "The model's own configuration is the best of those that were tried."),
        (
            (Limit("p95", 1.0),),
            BETTER,
            "**No configuration keeps the limits.** The nearest, 2 instances, batches of 8, delay 0.5 ms, needs 4.00 times",
        ),
        ((Limit("p95", 4.5),), BETTER, "keeps the limits with no load."),
    ],
)
def test_the_report_says_where_nothing_is_gained_or_possible(limits, best, expected):
    assert expected in as_markdown("m", TRIALS, limits, BEFORE, best, [])


@pytest.mark.parametrize("limits", [LIMITS, ()])
@pytest.mark.parametrize("trials", [TRIALS, {BEFORE: [load(1, 0, 0, errors=1)]}, {BEFORE: [load(1, 0.4, 2500)]}])
def test_the_picture_has_each_load_and_the_limit(limits, trials):
    picture = ET.fromstring(as_svg("<m&>", trials, limits, BEFORE, BEFORE))
    points = picture.findall(f"{SVG}circle")
    assert len(points) == sum(bool(each.milliseconds) for loads in trials.values() for each in loads)
    for point in points:
        assert 0 <= float(point.get("cx")) <= 860
        assert 0 <= float(point.get("cy")) <= 480
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert ("p95<20ms" in texts) == bool(limits)
    assert f"chosen: {candidate_text(BEFORE)}" in texts
    assert texts[0].startswith("<m&>: p95")


def test_all_figures_are_in_the_csv():
    rows = list(csv.DictReader(as_csv(TRIALS).splitlines()))
    assert len(rows) == 7
    assert rows[5] == {
        "instances": "2", "max_batch_size": "8", "max_queue_delay_microseconds": "500", "concurrency": "16",
        "requests_per_second": "800", "p50_ms": "9.0", "p90_ms": "18", "p95_ms": "18", "p99_ms": "18", "mean_ms": "9.0",
        "max_ms": "36", "errors": "0",
    }  # fmt: skip
    assert (rows[6]["p95_ms"], rows[6]["errors"]) == ("", "3")
