"""What batches are made of: their input lines, the journal of their results, the room they take."""

from __future__ import annotations

import asyncio
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from radixlm.runtime.server.batch_journal import Journal, read_journal
from radixlm.runtime.server.batch_lines import (
    MOST_FAULTS,
    MOST_LINES,
    LinePlace,
    check_lines,
    offline_body,
    read_body,
    result_line,
)
from radixlm.runtime.server.batch_room import Room
from radixlm.runtime.server.settings import ServerSettings

ENDPOINT = "/v1/completions"
Fields = dict[str, Any]
Lines = list[Fields]


def line(custom_id: str, prompt: object = "text", **body: Any) -> Fields:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": ENDPOINT,
        "body": {"prompt": prompt, **body},
    }


def jsonl(lines: Lines) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def read(path: Path) -> Lines:
    return [json.loads(one) for one in path.read_bytes().splitlines()]


# -- lines -----------------------------------------------------------------------------------------


def faults_of(content: bytes, most_bytes: int = 1000) -> list[tuple[str, int | None]]:
    return [(one.code, one.line) for one in check_lines(io.BytesIO(content), ENDPOINT, most_bytes).faults]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"[1]", "invalid_json_line"),
        (b'{"a": NaN}', "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (b"[" * 900, "invalid_json_line"),
        (b'{"custom_id": "\\ud800"}', "invalid_json_line"),
        (b'{"custom_id": "' + b"x" * 2000 + b'"}', "line_too_long"),
        ({"custom_id": None}, "missing_required_parameter"),
        ({"custom_id": 7}, "invalid_custom_id"),
        ({"custom_id": ""}, "invalid_custom_id"),
        ({"custom_id": "x" * 600}, "invalid_custom_id"),
        ({"custom_id": "first"}, "duplicate_custom_id"),
        ({"method": "GET"}, "invalid_method"),
        ({"url": "/v1/chat/completions"}, "invalid_url"),
        ({"body": None}, "missing_required_parameter"),
        ({"body": "text"}, "invalid_body"),
    ],
)
def test_a_broken_line_is_named_with_its_number(broken: bytes | Fields, code: str) -> None:
    raw = broken if isinstance(broken, bytes) else json.dumps({**line("second"), **broken}).encode()
    content = jsonl([line("first")]) + b"\n" + raw + b"\n" + jsonl([line("last")])
    assert faults_of(content) == [(code, 3)]


def test_a_file_without_lines_is_a_fault() -> None:
    for content in (b"", b"\n \r\n"):
        assert faults_of(content) == [("empty_file", None)]


def test_faults_and_lines_are_bounded() -> None:
    assert len(faults_of(b"{\n" * 1000)) == MOST_FAULTS
    short = b'{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{}}\n'
    many = b"".join(short % number for number in range(MOST_LINES + 5))
    assert faults_of(many) == [("too_many_lines", MOST_LINES + 1)]


def test_marks_blank_lines_and_ends_of_windows_are_no_fault() -> None:
    content = b"\xef\xbb\xbf" + jsonl([line("a"), line("b", "é")]).replace(b"\n", b"\r\n\r\n")
    file = io.BytesIO(content.rstrip())
    found = check_lines(file, ENDPOINT, 1000)
    assert not found.faults
    assert {one.custom_id for one in found.places} == {"a", "b"}


def test_a_place_leads_back_to_its_line(tmp_path: Path) -> None:
    lines = [line(f"{n}", f"é {n}", n=n) for n in range(20)]
    (tmp_path / "input").write_bytes(jsonl(lines))
    with (tmp_path / "input").open("rb") as file:
        places = check_lines(file, ENDPOINT, 1000).places
        assert {one.custom_id: read_body(file, one) for one in places} == {
            one["custom_id"]: one["body"] for one in lines
        }


def test_what_begins_alike_runs_together_whatever_stands_before_it() -> None:
    stems = ["one head of them all, " * 500 + stem * 20 for stem in ("red", "green", "blue")]
    chats = [
        line(f"{which}{n}", None, seed=n, messages=[{"role": "user", "content": f"{stem} question {n}"}])
        for n in range(5)
        for which, stem in enumerate(stems)
    ]
    places = check_lines(io.BytesIO(jsonl(chats)), ENDPOINT, 100_000).places
    order = [one.custom_id[0] for one in places]
    assert sorted(order) == sorted("012" * 5)
    assert sum(one != after for one, after in pairwise(order)) == len(stems) - 1


def test_prompts_of_a_line_are_counted() -> None:
    prompts = ["text", ["a", "b", "c"], [1, 2, 3], [[1], [2]], []]
    lines = [line(str(index), prompt) for index, prompt in enumerate(prompts)]
    places = check_lines(io.BytesIO(jsonl(lines)), ENDPOINT, 1000).places
    assert {one.custom_id: one.prompts for one in places} == {"0": 1, "1": 3, "2": 1, "3": 2, "4": 1}


def test_lines_stand_behind_everything_that_somebody_waits_for() -> None:
    assert offline_body({"prompt": "a"}) == {"prompt": "a", "priority": -1000}
    asked = [-(10**9), -1, 0, 1, 10**9]
    given = [offline_body({"priority": one})["priority"] for one in asked]
    assert given == sorted(given)  # type: ignore[type-var]
    assert max(given) < 0  # type: ignore[type-var]
    assert offline_body({"priority": "high"}) == {"priority": "high"}


# -- journal ---------------------------------------------------------------------------------------


def test_a_journal_torn_at_any_byte_goes_on_behind_its_whole_lines(tmp_path: Path) -> None:
    with Journal(tmp_path, read_journal(tmp_path)) as journal:
        for name in ("a", "b", "c"):
            journal.write(result_line("x", name, "y", 200, {"text": "é\n"}), failed=False)
    output = tmp_path / "output.jsonl"
    whole = output.read_bytes()
    for size in range(len(whole) + 1):
        output.write_bytes(whole[:size])
        with Journal(tmp_path, read_journal(tmp_path)) as journal:
            assert journal.done == set("abc"[: whole[:size].count(b"\n")])
            for name in sorted(set("abc") - journal.done):
                journal.write(result_line("x", name, "y", 200, {"text": "é\n"}), failed=False)
            assert (journal.completed, journal.failed) == (3, 0)
        assert output.read_bytes() == whole


def test_what_a_dead_machine_left_behind_the_last_whole_line_is_cut_off(tmp_path: Path) -> None:
    with Journal(tmp_path, read_journal(tmp_path)) as journal:
        journal.write(result_line("x", "a", "y", 200, {}), failed=False)
        journal.write(result_line("x", "b", "y", 400, {}), failed=True)
    for name in ("output.jsonl", "errors.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"\0" * 100 + b"\n" + b'{"custom_id": 1}\n' + b"[]\n")
    with Journal(tmp_path, read_journal(tmp_path)) as journal:
        assert (journal.done, journal.completed, journal.failed) == ({"a", "b"}, 1, 1)
    assert [one["custom_id"] for one in read(tmp_path / "output.jsonl")] == ["a"]


# -- room ------------------------------------------------------------------------------------------


def test_room_is_bounded_by_lines_prompts_and_bytes_and_a_large_line_gets_its_turn() -> None:
    async def test() -> None:
        room = Room(ServerSettings(max_queued=40, max_queued_tokens=2000))
        small, wide = LinePlace("s", 0, 100, 1), LinePlace("w", 0, 100, 500)
        for _ in range(10):
            await room.take(small)
        large = asyncio.ensure_future(room.take(wide))
        behind = asyncio.ensure_future(room.take(small))
        for _ in range(10):
            await asyncio.sleep(0)
            assert not large.done()
            room.give_back(small)
        await large
        assert not behind.done(), "nothing fits beside it"
        room.give_back(wide)
        await behind

    asyncio.run(asyncio.wait_for(test(), 30))
