"""Which models a polled repository wants loaded: nothing half copied, nothing twice, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.models.polling import Changes, are_versions, changed_entries, due_retries, is_ignored, plan_changes

A, B, C = {"f": (1,)}, {"f": (2,)}, {"f": (2,), "g": (1,)}


@pytest.mark.parametrize(
    ("what", "loaded", "before", "now", "expected"),
    [
        ("nothing", {}, {}, {}, Changes()),
        ("as it was loaded", {"m": A}, {"m": A}, {"m": A}, Changes()),
        ("new", {}, {}, {"m": A}, Changes(unsettled=("m",))),
        ("new, twice", {}, {"m": A}, {"m": A}, Changes(load=("m",))),
        ("new, still being copied", {}, {"m": A}, {"m": B}, Changes(unsettled=("m",))),
        ("changed", {"m": A}, {"m": A}, {"m": B}, Changes(unsettled=("m",))),
        ("changed, twice", {"m": A}, {"m": B}, {"m": B}, Changes(load=("m",))),
        ("changed and changed back", {"m": A}, {"m": B}, {"m": A}, Changes()),
        ("gone", {"m": A}, {"m": A}, {}, Changes(unsettled=("m",))),
        ("gone, twice", {"m": A}, {}, {}, Changes(unload=("m",))),
        ("gone and back", {"m": A}, {}, {"m": A}, Changes()),
        ("gone and back as another", {"m": A}, {}, {"m": B}, Changes(unsettled=("m",))),
        ("came and went", {}, {"m": A}, {}, Changes()),
        ("unreadable", {"m": A}, {"m": None}, {"m": None}, Changes(unsettled=("m",))),
        ("readable again", {"m": A}, {"m": None}, {"m": A}, Changes()),
        ("empty", {"m": A}, {"m": {}}, {"m": {}}, Changes(load=("m",))),
        (
            "several",
            {"b": A, "c": A, "d": A},
            {"a": A, "b": B, "d": A},
            {"a": A, "b": B, "d": C},
            Changes(load=("a", "b"), unload=("c",), unsettled=("d",)),
        ),
    ],
)
def test_a_change_counts_once_it_was_seen_twice(what, loaded, before, now, expected):
    assert plan_changes(loaded, before, now) == expected, what


names = st.sampled_from("abc")
signatures = st.dictionaries(st.sampled_from(["f", "1/", "1/g"]), st.tuples(st.integers(0, 2)), max_size=3)
looks = st.dictionaries(names, st.none() | signatures, max_size=3)


@given(st.lists(looks, max_size=12), looks.map(lambda look: {n: s for n, s in look.items() if s is not None}))
def test_whatever_happens_the_server_ends_with_what_the_repository_holds(history, last):
    loaded: dict[str, object] = {}
    before: dict[str, object] = {}
    for look in [*history, last, last]:
        found = plan_changes(loaded, before, look)
        assert not {*found.load} & {*found.unload, *found.unsettled}
        for name in found.load:
            assert look[name] is not None
            assert look[name] == before[name]
            assert look[name] != loaded.get(name)
            loaded[name] = look[name]
        for name in found.unload:
            assert name not in look
            assert name not in before
            del loaded[name]
        before = look
    assert loaded == last


@pytest.mark.parametrize(
    ("before", "now", "parts"),
    [
        (A, A, set()),
        (A, B, {"f"}),
        ({"1/": (), "1/model.py": (1,)}, {"1/": (), "1/model.py": (2,)}, {"1"}),
        ({"1/": ()}, {"1/": (), "2/": (), "2/model.py": (1,)}, {"2"}),
        ({"config.pbtxt": (1,), "1/": ()}, {"1/": ()}, {"config.pbtxt"}),
    ],
)
def test_changes_are_named_by_the_entry_of_the_models_folder(before, now, parts):
    assert changed_entries(before, now) == parts


@pytest.mark.parametrize(
    ("parts", "signature", "answer"),
    [
        ({"2"}, {"1/": (), "2/": ()}, True),
        ({"2"}, {"1/": ()}, True),
        ({"2", "config.pbtxt"}, {"2/": (), "config.pbtxt": ()}, False),
        ({"configs"}, {"configs/": ()}, False),
        ({"2"}, {"2": ()}, False),
        (set(), {}, False),
    ],
)
def test_other_versions_stay_if_folders_of_versions_alone_changed(parts, signature, answer):
    assert are_versions(parts, signature) is answer


def test_a_failed_load_is_tried_again_with_pauses_that_double():
    tried = [look for look in range(10, 30) if due_retries({"m": 10}, look) == ["m"]]

    assert tried == [11, 12, 14, 18, 26]


@pytest.mark.parametrize(
    "name",
    [
        *("model.pyc", ".model.py.swp", "model.py~", "#model.py#", ".#model.py", "4913", ".git", ".ipynb_checkpoints"),
        *("__pycache__", ".DS_Store", "model.py.bak", "weights.bin.part", ".nfs000001", "uv.lock", "..data"),
    ],
)
def test_bytecode_and_files_of_editors_do_not_belong_to_a_model(name):
    assert is_ignored(name)


@pytest.mark.parametrize("name", ["model.py", "config.pbtxt", "labels.txt", "weights", "a.b", "5", "pycache"])
def test_other_files_belong_to_a_model(name):
    assert not is_ignored(name)


@pytest.mark.parametrize("name", ["1", "4913", "x.lock", "configs"])
def test_folders_are_ignored_by_name_and_not_by_ending(name):
    assert not is_ignored(name, is_directory=True)
