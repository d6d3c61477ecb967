"""StopFinder: the first stop of several ends a text, however the text is divided, and nothing of a stop is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_like.stops import StopFinder


def sent(stops: list[str], *parts: str) -> tuple[str, str | None]:
    finder, made = StopFinder(stops), ""
    for part in parts:
        text, found = finder.add(part)
        made += text
        if found is not None:
            return made, found
    return made + finder.end(), None


@pytest.mark.parametrize(
    ("stops", "parts", "outcome"),
    [
        (["END"], ["one EN", "D two"], ("one ", "END")),
        (["END"], ["one EN", "TRY"], ("one ENTRY", None)),
        (["END"], ["one EN"], ("one EN", None)),
        (["two", "one"], ["one two"], ("", "one")),
        (["ab", "abc"], ["xabc"], ("x", "ab")),
        (["aab"], ["aaaab!"], ("aa", "aab")),
        (["aab"], ["a", "a", "a", "a", "b"], ("aa", "aab")),
    ],
)
def test_the_first_stop_ends_the_text(stops, parts, outcome):
    assert sent(stops, *parts) == outcome


def test_text_that_cannot_begin_a_stop_is_sent_at_once():
    finder = StopFinder(["\n\nHuman:"])
    assert [finder.add(text)[0] for text in ("one ", "two\n", "three", "\n\nHum", "an")] == [
        "one ", "two", "\nthree", "", ""
    ]  # fmt: skip
    assert finder.end() == "\n\nHuman"


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_how_a_text_is_divided_makes_no_difference(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = [(text.find(stop), number) for number, stop in enumerate(stops) if stop in text]
    whole, ended = sent(stops, *parts)
    if not found:
        assert (whole, ended) == (text, None)
    elif len(set(stops)) == 1:
        assert (whole, ended) == (text[: min(found)[0]], stops[0])
    else:  # a shorter stop may end the text before a longer one that begins earlier is whole
        assert ended in stops
        assert text.startswith(whole + str(ended))
