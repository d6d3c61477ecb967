"""The diagram of states in the documentation is the table that the server follows."""

from __future__ import annotations

import re

from architecture.sources import ROOT
from naiad.lifecycle.states import TRANSITIONS
from naiad.protocol.metadata import ModelState

PAGE = ROOT / "docs" / "explanation" / "architecture.md"


def _diagram() -> str:
    """The transitions as a state diagram of Mermaid, in the table's order."""
    arrows = [
        f"    {state.value} --> {following.value}"
        for state, followers in TRANSITIONS.items()
        for following in ModelState
        if following in followers
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {ModelState.UNKNOWN.value}", *arrows, ""])


def test_the_diagram_of_model_versions_is_what_the_table_of_transitions_says() -> None:
    drawn = re.findall(r"```mermaid\n(stateDiagram.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert drawn == [_diagram()]
