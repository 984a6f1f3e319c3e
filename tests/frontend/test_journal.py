"""The journal of a batch: what survives, and which files are refused."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.frontend.errors import InvalidCall
from radixlm.frontend.journal import Journal, Record, batch_digest, exactly, item_digest, restored
from radixlm.frontend.program import function
from radixlm.frontend.state import ProgramState

ITEMS = ["i0", "i1", "i2"]


def kept(path: Path, batch: str = "b", items: list[str] = ITEMS) -> dict[int, Record]:
    with Journal(path, batch, items) as journal:
        return journal.finished


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "batch.jsonl"
    with Journal(place, "b", ITEMS) as journal:
        journal.add(2, Record("two", {"a": "é\ud800"}, {"a": {"n": [1]}}, {"a": 5}))
        journal.add(0, Record("zero"))
    return place


def test_what_was_added_is_there_again(path: Path) -> None:
    two = Record("two", {"a": "é\ud800"}, {"a": {"n": [1]}}, {"a": 5}, {}, [])
    assert kept(path) == {2: two, 0: Record("zero", messages=[])}


def test_a_journal_cut_at_any_byte_keeps_the_whole_lines_and_goes_on(path: Path) -> None:
    content = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        lines = sum(end <= cut for end in ends)
        with Journal(path, "b", ITEMS) as journal:
            assert len(journal.finished) == max(0, lines - 1)
            journal.add(1, Record("one"))
        assert kept(path)[1] == Record("one", messages=[])
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_an_item_with_other_arguments_is_not_finished(path: Path) -> None:
    assert kept(path, items=["i0", "i1", "changed", "new"]).keys() == {0}


def test_a_file_of_another_batch_is_refused_and_left_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(InvalidCall, match=r"batch\.jsonl' is of another batch: its program or its sampling"):
        kept(path, batch="other")
    with pytest.raises(InvalidCall, match="of the 2 items that finished in it, none"):
        kept(path, items=["x", "y"])
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"notes\n", b"{}\n", b"[1]\n", b"\n", b"no line end", b"\xff\xfe\n"])
def test_a_file_that_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidCall, match=r"notes\.txt' is no journal of a batch"):
        kept(path)
    assert path.read_bytes() == content


def test_a_damaged_line_in_the_middle_is_named(path: Path) -> None:
    first, second, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, second[:-3], *rest]))
    with pytest.raises(InvalidCall, match=r"line 2 of .* is damaged"):
        kept(path)


def test_another_version_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace('"radixlm_batch": 2', '"radixlm_batch": 1'))
    with pytest.raises(InvalidCall, match="another version"):
        kept(path)


def test_two_at_once_are_refused(path: Path) -> None:
    with Journal(path, "b", ITEMS), pytest.raises(InvalidCall, match="another process writes"):
        Journal(path, "b", ITEMS)
    kept(path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "none" / "file", tmp_path):
        with pytest.raises(InvalidCall, match="cannot open"):
            kept(place)


# -- what items and batches are known by


@dataclass
class Problem:
    text: str


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(plain, plain)
def test_items_are_known_by_what_they_hold(one: object, other: object) -> None:
    assert (item_digest(0, {"a": one}) == item_digest(5, {"a": other})) == (repr_of(one) == repr_of(other))


def repr_of(value: object) -> str:
    """Types and values, and dicts without their order."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{repr_of(each)}" for key, each in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(repr_of, value)) + "]"
    return repr(value)


def test_dataclasses_paths_sets_and_functions_are_told_apart() -> None:
    values = [Problem("a"), Problem("b"), {"text": "a"}, Path("a"), {1, 2}, {1, 3}, len, repr_of, Problem]
    digests = [item_digest(0, {"a": value}) for value in values]
    assert len(set(digests)) == len(values)
    assert item_digest(0, {"a": {2, 1}}) == item_digest(0, {"a": {1, 2}})


@pytest.mark.parametrize("value", [object(), lambda: 1, [object()]])
def test_what_cannot_be_told_apart_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidCall, match=r"told apart by what they hold: .* in item 3: tool"):
        item_digest(3, {"tool": value})


def test_a_batch_is_known_by_its_program_what_is_bound_and_how_it_samples() -> None:
    digests = {
        batch_digest("f", {}, {"temperature": 1.0}),
        batch_digest("g", {}, {"temperature": 1.0}),
        batch_digest("f", {"a": 1}, {"temperature": 1.0}),
        batch_digest("f", {}, {"temperature": 0.0}),
    }
    assert len(digests) == 4


def test_a_disk_that_refuses_leaves_the_journal_good(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixlm.frontend.errors import ProgramError

    write = os.write
    with Journal(path, "b", ITEMS) as journal:

        def full(file: int, data: bytes) -> int:
            if len(data) > 10:
                return write(file, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ProgramError, match=r"cannot write .*: No space left on device"):
            journal.add(1, Record("one" * 20))
        monkeypatch.undo()
        journal.add(1, Record("one"))
    assert kept(path).keys() == {0, 1, 2}


exact = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.none() | st.integers() | st.sampled_from(["a", "1", "()", "{}"]), inner)
        | st.dictionaries(st.tuples(st.integers()), inner)
    ),
)


@given(exact)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    found = restored(json.loads(json.dumps(exactly(value))))
    assert repr(found) == repr(value)  # of NaN, too, and with the types of all


class Counted(dict[str, int]):
    """A dict, and more."""


@pytest.mark.parametrize("value", [{1, 2}, b"a", object(), Counted(), [Counted()], {"a": Problem}])
def test_what_would_come_back_as_something_else_is_not_kept(value: object) -> None:
    with pytest.raises(TypeError, match="would not come back as what it is"):
        exactly(value)


@pytest.mark.parametrize(
    "change",
    [
        {"index": -2},
        {"index": True},
        {"item": 5},
        {"text": None},
        {"variables": [1]},
        {"variables": {"a": {"()": 5}}},
        {"variables": {"a": {"{}": [[[], 1]]}}},
        {"messages": "ab"},
        {"messages": [["role"]]},
        {"messages": [{"role": 5}]},
        {"meta": []},
        {"meta": {"a": 5}},
        {"unread": {"a": 5}},
        {"new": 1},
    ],
)
def test_a_record_of_other_types_is_a_damaged_line(path: Path, change: dict[str, object]) -> None:
    first, second, *rest = path.read_text().split("\n")
    path.write_text("\n".join([first, json.dumps(json.loads(second) | change), *rest]))
    with pytest.raises(InvalidCall, match=r"line 2 of .* is damaged"):
        kept(path)


def test_a_line_that_is_too_deep_to_read_is_damaged(path: Path) -> None:
    first, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, b"[" * 200_000, *rest]))
    with pytest.raises(InvalidCall, match=r"line 2 of .* is damaged"):
        kept(path)
    path.write_bytes(b"[" * 200_000 + b"\n")
    with pytest.raises(InvalidCall, match="is no journal of a batch"):
        kept(path)


def test_what_keeps_nothing_is_no_place_for_a_journal() -> None:
    with pytest.raises(InvalidCall, match="'/dev/null' is no file that keeps"):
        kept(Path(os.devnull))


@dataclass
class Tool:
    name: str

    def search(self) -> str:
        return self.name


class Opaque:
    def search(self) -> str:
        return ""


@function
def greet(s: ProgramState, name: str) -> None:
    s += name


def test_methods_of_different_objects_and_programs_bound_otherwise_are_told_apart() -> None:
    values = [Tool("a").search, Tool("b").search, "a".upper, "b".upper, str.upper]
    values += [greet, greet.bind(name="Ada"), greet.bind(name="Alan")]
    digests = [item_digest(0, {"a": value}) for value in values]
    assert len(set(digests)) == len(digests)
    assert item_digest(0, {"a": Tool("a").search}) == digests[0]
    with pytest.raises(InvalidCall, match="told apart"):
        item_digest(0, {"a": Opaque().search})
