"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from radixlm.runtime.errors import InvalidInput, RadixError
from radixlm.runtime.results_file import (
    require_writable,
    result_line,
    write_atomically,
    write_figures,
    write_lines,
)
from radixlm.runtime.types import Completion, TokenLogprob

PLAIN = Completion("a", 0, "blue \u2028 caf\u00e9", (1, 2), 5, 3, 2, "stop")


def test_a_line_has_the_fields_that_readers_rely_on() -> None:
    assert json.loads(result_line(PLAIN, "a")) == {
        "id": "a",
        "index": 0,
        "text": "blue \u2028 caf\u00e9",
        "output_ids": [1, 2],
        "prompt_tokens": 5,
        "cached_tokens": 3,
        "completion_tokens": 2,
        "finish_reason": "stop",
    }


def test_the_id_is_written_as_the_prompts_file_spelt_it() -> None:
    assert json.loads(result_line(PLAIN, 17))["id"] == 17


def test_an_error_and_a_matched_stop_show_where_there_is_one() -> None:
    refused = Completion("a", 0, "", (), 9, 0, 0, "error", error="too large")
    stopped = Completion("a", 0, "", (), 9, 0, 0, "stop", matched_stop=0)
    assert json.loads(result_line(refused, "a"))["error"] == "too large"
    assert json.loads(result_line(stopped, "a"))["matched_stop"] == 0


def test_log_probabilities_that_are_not_finite_become_null_so_that_the_line_is_json() -> None:
    scored = Completion(
        "a", 0, "", (1,), 1, 0, 1, "length",
        logprobs=(TokenLogprob(1, float("-inf"), ((1, -0.5), (2, float("nan")))),),
    )  # fmt: skip
    (token,) = json.loads(result_line(scored, "a"), parse_constant=pytest.fail)["logprobs"]
    assert token == {"token_id": 1, "logprob": None, "top": [[1, -0.5], [2, None]]}


def test_half_an_emoji_is_written_as_an_escape_and_not_lost(tmp_path: Path) -> None:
    broken = Completion("a", 0, "x\ud83d", (1,), 1, 0, 1, "stop", matched_stop="\udcff")
    write_lines(tmp_path / "out.jsonl", [result_line(broken, "a")])
    line = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert (line["text"], line["matched_stop"]) == ("x\ud83d", "\udcff")


def test_lines_are_written_whole_and_leave_nothing_beside_them(tmp_path: Path) -> None:
    write_lines(tmp_path / "out.jsonl", ["{}", '{"text": "\u00e9"}'])
    assert (tmp_path / "out.jsonl").read_bytes() == '{}\n{"text": "\u00e9"}\n'.encode()
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_figures_are_one_json_object(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Figures:
        hit_rate: float
        wall_s: float

    write_figures(tmp_path / "stats.json", Figures(0.5, float("inf")))
    assert json.loads((tmp_path / "stats.json").read_text()) == {"hit_rate": 0.5, "wall_s": None}


def test_a_failure_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "{}"
        raise KeyboardInterrupt

    target = tmp_path / "out.jsonl"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_lines(target, broken())
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "x" * 100_000 + "\ud83d")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_write_that_the_system_refuses_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RadixError, match=r"cannot write .*out.jsonl: No such file or directory"):
        write_atomically(tmp_path / "absent" / "out.jsonl", "x")


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "x")
    (tmp_path / "theirs").touch()
    ours, theirs = ((tmp_path / name).stat().st_mode for name in ("ours", "theirs"))
    assert stat.S_IMODE(ours) == stat.S_IMODE(theirs)


def test_a_link_stays_a_link_and_its_target_gets_the_text(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    require_writable("--output", pipe)
    write_atomically(pipe, "x")
    reader.join()
    assert received == ["x"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--output: there is no folder '.*absent'"):
        require_writable("--output", tmp_path / "absent" / "out.jsonl")
    with pytest.raises(InvalidInput, match=r"--stats: '.*' is a folder, not a file"):
        require_writable("--stats", tmp_path)
    assert require_writable("--output", tmp_path / "out.jsonl") == tmp_path / "out.jsonl"
    assert os.listdir(tmp_path) == []


def test_a_path_that_the_system_does_not_take_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    for name in ("loop", "x" * 300, "a\0b", "loop/out", "x" * 300 + "/out"):
        with pytest.raises(InvalidInput, match=r"--output: cannot write '.*': "):
            require_writable("--output", tmp_path / name)
    with pytest.raises(InvalidInput, match="there is no folder"):
        require_writable("--output", tmp_path / "file" / "out")


def test_a_link_to_no_file_yet_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "lost").symlink_to(tmp_path / "absent" / "out")
    (tmp_path / "new").symlink_to(tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"there is no folder '.*absent'"):
        require_writable("--output", tmp_path / "lost")
    assert require_writable("--output", tmp_path / "new") == tmp_path / "out"


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("\U0001f600" * 63), "x")
    assert len(os.listdir(tmp_path)) == 1


def test_the_name_of_an_open_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("before\n")
    with held.open("a") as file:
        name = Path(f"/proc/self/fd/{file.fileno()}")
        assert require_writable("--output", name) == name
        write_lines(name, ["one"])
    assert held.read_text() == "before\none\n"
    assert list(tmp_path.iterdir()) == [held]


def test_the_name_of_an_open_pipe_is_written_to() -> None:
    reader, writer = os.pipe()
    write_lines(Path(f"/dev/fd/{writer}"), ["one"])
    os.close(writer)
    with open(reader) as file:
        assert file.read() == "one\n"
