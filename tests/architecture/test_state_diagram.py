"""The diagram of states in the documentation shows the table that the server follows."""

from __future__ import annotations

from architecture import rules
from architecture.sources import ROOT

from naiad.engine.lifecycle.states import TRANSITIONS
from naiad.protocol.metadata import ModelState

PAGE = ROOT / "docs" / "explanation" / "architecture.md"


def test_the_diagram_of_model_versions_is_what_the_table_of_transitions_says() -> None:
    transitions = {
        state.value: [following.value for following in ModelState if following in followers]
        for state, followers in TRANSITIONS.items()
    }

    assert rules.diagrams_of(PAGE.read_text(encoding="utf-8")) == [
        rules.state_diagram(transitions, ModelState.UNKNOWN.value)
    ]
