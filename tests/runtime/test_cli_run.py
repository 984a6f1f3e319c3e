"""`radixlm run`: programs by name, on an engine of its own or an endpoint; the backend needs no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from radixlm.frontend.errors import Unreachable
from radixlm.frontend.scripted import Scripted
from radixlm.runtime.cli import main
from radixlm.runtime.commands.engine_view import OpenEngine
from radixlm.runtime.config import EngineConfig

LINES = "".join(
    json.dumps({"question": question, "answer": f"#### {answer}"}) + "\n"
    for question, answer in (("1 + 1?", 2), ("2 + 2?", 4), ("3 + 3?", 7))
)


def reply(prompt: str) -> str:
    """Every sum is right."""
    number = int(prompt.rpartition("Question: ")[2].partition(" ")[0])
    return f" {2 * number}\n" if prompt.endswith("####") else " Let me add."


class ProgramEngine:
    """An engine of which programs use nothing but the endpoint."""

    def __init__(self, config: EngineConfig, endpoint: Scripted) -> None:
        self.config, self.endpoint, self.closed = config, endpoint, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[ProgramEngine] = []
        self.backend = Scripted(reply)
        self.data = folder / "in.jsonl"
        self.data.write_text(LINES)

    def open_engine(self, config: EngineConfig) -> ProgramEngine:
        self.engines.append(ProgramEngine(config, self.backend))
        return self.engines[-1]

    def run(self, *words: str) -> int:
        opener: Callable[[EngineConfig], object] = self.open_engine
        stand_in: OpenEngine = opener  # type: ignore[assignment]  # it has the part that is used
        return main(["run", *words], open_engine=stand_in)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_program_prints_quality_tokens_reuse_and_time(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run("few_shot_qa", "--data", str(desk.data), "--page-size", "32") == 0
    title, empty, *figures = capsys.readouterr().out.splitlines()
    assert title == "few_shot_qa: Word problems, answered step by step after worked examples."
    assert empty == ""
    assert [line.split()[0] for line in figures] == ["quality", "tokens", "reuse", "time"]
    assert figures[0] == "quality  correct 66.7% (3 items: too few to compare models by)"
    assert figures[3].endswith(" s for 3 items")
    assert desk.engines[0].config.page_size == 32
    assert desk.engines[0].closed


def test_out_has_a_line_for_each_item(desk: Desk) -> None:
    out = desk.folder / "out.jsonl"
    assert desk.run("few_shot_qa", "--data", str(desk.data), "--n", "2", "--out", str(out)) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["item"], row["answer"], row["correct"]) for row in rows] == [(0, "2", True), (1, "4", True)]


def test_a_failed_item_makes_the_status_1_and_keeps_the_others(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.backend = Scripted({"": reply, "2 + 2?\nAnswer:": Unreachable("nobody there")})
    out = desk.folder / "out.jsonl"
    flags = ("--concurrency", "1", "--out", str(out))
    assert desk.run("few_shot_qa", "--data", str(desk.data), *flags) == 1
    shown = capsys.readouterr()
    assert "1 of 3 items have an error" in shown.err
    assert "nobody there" in shown.err
    assert "1 of 3 failed" in shown.out
    assert sum("error" in json.loads(line) for line in out.read_text().splitlines()) == 1


def test_list_says_what_each_program_is(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert lines[0].split(maxsplit=1) == [
        "few_shot_qa",
        "Word problems, answered step by step after worked examples.",
    ]
    assert all(line.endswith(".") for line in lines)
    assert desk.engines == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["few_shot"],
            "there is no program 'few_shot'; did you mean few_shot_qa? The programs are few_shot_qa,",
        ),
        (["task"], "there is no program 'task'"),
        (["shared.task"], "there is no program 'shared.task'"),
        (["../runtime/cli"], "there is no program '../runtime/cli'"),
        (["__init__"], "there is no program '__init__'"),
        ([], "no program is named"),
        (["few_shot_qa", "--n", "0"], "--n must be at least 1, got 0"),
        (["few_shot_qa", "--concurrency", "-1"], "--concurrency must be at least 1, got -1"),
        (["few_shot_qa", "--data", "/nowhere/x.jsonl"], "cannot read /nowhere/x.jsonl: No such file"),
        (["rag_answer", "--documents", "/nowhere"], "cannot read the folder '/nowhere'"),
        (["few_shot_qa", "--documents", "/"], "few_shot_qa searches no documents, got '/'"),
        (["few_shot_qa", "--out", "/nowhere/x"], "--out: there is no folder '/nowhere'"),
        (["few_shot_qa", "--page-size", "3"], "--page-size must be"),
        (["few_shot_qa", "--api-key", "k"], "--api-key is for --backend or --openai"),
        (["few_shot_qa", "--backend", "http://a", "--openai", "http://b"], "give one of them"),
        (["few_shot_qa", "--backend", "http://a", "--model", "m"], "--model is of an engine of this process"),
        (["few_shot_qa", "--backend", "http://a", "--page-size", "16"], "--page-size is of an engine"),
        (["few_shot_qa", "--openai", "http://a", "--page-size", "16"], "--page-size is of an engine"),
        (["few_shot_qa", "--openai", "http://a"], "--openai needs --model"),
    ],
)
def test_what_is_wrong_is_one_line_and_opens_no_engine(
    desk: Desk, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run(*words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert desk.engines == []


def test_a_line_of_data_that_is_wrong_is_found_before_the_engine_is_opened(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.data.write_text(LINES + '{"question": 7, "answer": "#### 1"}\n')
    assert desk.run("few_shot_qa", "--data", str(desk.data)) == 2
    assert "line 4: question must be text, got 7" in capsys.readouterr().err
    assert desk.engines == []


def test_a_server_that_is_not_there_is_a_failure(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("few_shot_qa", "--data", str(desk.data), "--backend", "http://127.0.0.1:1") == 1
    shown = capsys.readouterr()
    assert "127.0.0.1:1" in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_an_address_that_is_none_is_an_error_of_the_caller(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run("few_shot_qa", "--data", str(desk.data), "--backend", "ftp://x") == 2
    assert "ftp://x" in capsys.readouterr().err
