"""`radixlm grammar check`, with the tokenizer of a tiny model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from radixlm.runtime import cli
from radixlm.runtime.cli import main
from radixlm.runtime.commands.grammar import describe
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.text_grammar import Texts

CITY = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)
UNIQUE = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
TAG = {
    "type": "structural_tag",
    "triggers": ["<call"],
    "structures": [{"begin": "<call>", "schema": {"type": "integer"}, "end": "</call>"}],
}
GBNF = 'root ::= "a" ("+" "a")*'
LARK = 'start: "a" ("+" "a")*'

Opened = tuple[GrammarCompiler, GrammarVocabulary]


@dataclass
class Desk:
    """A folder for files, and the model whose tokenizer is used."""

    folder: Path
    model: Path

    def check(self, name: str, text: str, /, *flags: str, **instances: str) -> int:
        """Instances are named by their keywords."""
        (self.folder / name).write_text(text)
        for each, content in instances.items():
            (self.folder / each).write_text(content)
        given = [flag for each in instances for flag in ("--instance", str(self.folder / each))]
        model = ["--model", str(self.model)]
        return main(["grammar", "check", str(self.folder / name), *model, *flags, *given])


@pytest.fixture(scope="module")
def opened(tiny_llama: Any) -> Iterator[Opened]:
    """What the command opens for the tiny model, once for all tests."""
    with cli._open_compiler(str(tiny_llama.folder)) as opened:
        yield opened


@pytest.fixture
def desk(tmp_path: Path, tiny_llama: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(cli, "_open_compiler", lambda model: nullcontext(opened))
    return Desk(tmp_path, tiny_llama.folder)


def facts(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """The lines of the output as (name, fact), with the folder of instances left out."""
    shown = capsys.readouterr()
    assert shown.err == ""
    pairs = [line.split(maxsplit=1) for line in shown.out.splitlines()]
    return [(name, re.sub(r"^\S*/", "", fact) if name == "instance" else fact) for name, fact in pairs]


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.strip()


@pytest.mark.parametrize(
    ("name", "text", "kind", "right", "wrong", "place"),
    [
        ("a.json", CITY, "json", '{"name": "Łódź", "size": 3}', '{"name": "Łódź", "size": "3"}', 25),
        ("a.regex", r"\d{2}-[a-c]+", "regex", "12-abc", "12-abd", 5),
        ("a.re", "日本語|日本", "regex", "日本", "日木", 1),
        ("a.txt", "yes\nno\nnot now\n", "choice", "not now", "not nor", 6),
        ("a.choices", "yes\r\nno", "choice", "yes", "yes\r", 3),
        ("a.lark", LARK, "lark", "a+a+a", "a+b", 2),
        ("a.gbnf", GBNF, "gbnf", "a+a", "a+a-", 3),
        ("a.ebnf", GBNF, "gbnf", "a", "b", 0),
        ("tag.json", json.dumps(TAG), "tags", "so <call>12</call>", "so <call>x2</call>", 9),
    ],
)
def test_each_kind_is_known_by_the_name_of_its_file(
    desk: Desk,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    kind: str,
    right: str,
    wrong: str,
    place: int,
) -> None:
    assert desk.check(name, text, right=right, wrong=wrong) == 1
    (_, shown), enforced, (_, cost), good, (_, bad) = facts(capsys)
    assert (shown, enforced, good) == (kind, ("enforced", "exact"), ("instance", "right: valid"))
    assert cost.startswith("in ")
    assert "ms, " in cost
    assert bad == f"wrong: invalid at character {place}: {wrong[place : place + 20]!r} cannot stand here"


def test_the_kind_can_be_said(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.check("yes.json", "[a-z]+", "--kind", "regex", text="abc") == 0
    assert facts(capsys)[0] == ("kind", "regex")


def test_a_text_that_is_not_finished_is_not_valid(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.check("a.json", CITY, text='{"name": "a"') == 1
    assert facts(capsys)[-1] == ("instance", "text: invalid at character 12: the text is not finished")


def test_one_line_break_at_the_end_of_a_file_is_not_meant(desk: Desk) -> None:
    assert desk.check("a.regex", "[a-c]+\n", first="abc\n", second="abc\r\n") == 0
    assert desk.check("a.regex", "[a-c]+\n", first="abc\n\n") == 1


def test_a_line_break_at_the_end_of_a_text_is_taken_where_the_grammar_asks_for_it(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.check("a.regex", r"[a-c]+\r?\n", first="abc\n", second="abc\r\n", third="abc") == 1
    assert [fact for name, fact in facts(capsys) if name == "instance"] == [
        "first: valid with its last line break",
        "second: valid with its last line break",
        "third: invalid at character 3: the text is not finished",
    ]


def test_what_is_not_enforced_at_the_root_is_said_to_be_there() -> None:
    enforced = describe("json", Texts(("a",), wrong="it is not right"), 0.1).splitlines()[1]
    assert enforced.split(maxsplit=1) == ["enforced", "relaxed: 'texts' at the root (to try it)"]


def test_only_the_tokenizer_of_a_model_is_needed(
    tmp_path: Path, tiny_llama: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(tiny_llama.folder, tmp_path / "model", ignore=weights)
    assert Desk(tmp_path, tmp_path / "model").check("a.json", CITY) == 0
    assert [name for name, _ in facts(capsys)] == ["kind", "enforced", "compiled"]


def test_compact_json_has_no_whitespace(desk: Desk) -> None:
    assert desk.check("a.json", CITY, "--compact", text='{"name":"a","size":1}') == 0
    assert desk.check("a.json", CITY, "--compact", text='{"name": "a"}') == 1
    assert desk.check("a.json", CITY, text='{"name": "a"}') == 0


def test_what_masks_cannot_enforce_is_refused_by_name(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.check("a.json", UNIQUE) == 2
    assert "uniqueItems" in error_line(capsys)


def test_relaxed_it_is_listed_and_finished_texts_are_checked_for_it(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.check("a.json", UNIQUE, "--relaxed", right="[1, 2]", wrong="[1, 1]") == 1
    _, (name, fact), _, good, (_, bad) = facts(capsys)
    assert name == "enforced"
    assert fact.startswith("relaxed: 'uniqueItems' at /")
    assert good == ("instance", "right: valid")
    assert bad.startswith("wrong: invalid: ")


# ---- what can be wrong: one line, status 2


@pytest.mark.parametrize(
    ("name", "text", "flags", "message"),
    [
        ("a.yaml", "x", (), "the name does not say what it holds; give --kind, one of json, regex, choice"),
        ("a.json", "{", (), "json_schema must be JSON"),
        ("a.json", '{"type": "giraffe"}', (), "giraffe"),
        ("a.json", "[]", (), "json_schema must be a JSON object (or true or false), got []"),
        ("a.json", "", (), "a.json is empty"),
        ("a.txt", "yes\n\nno", (), "choice must hold no empty text"),
        ("a.regex", "(a", (), "regex"),
        ("a.regex", "a(?=b)", (), "look"),
        ("a.regex", "a", ("--relaxed",), "relaxed goes with json_schema or structural_tag"),
        ("a.regex", "a", ("--compact",), "compact goes with json_schema or structural_tag"),
        ("a.lark", "start: nothing", (), "nothing"),
        ("a.gbnf", "root ::= missing", (), "missing"),
        ("a.regex", "a", ("--kind", "poem"), "argument --kind: invalid choice: 'poem'"),
        ("a.regex", "a", ("--instance", "/nowhere/a.txt"), "cannot read /nowhere/a.txt: No such file"),
    ],
)
def test_a_refused_grammar_or_wrong_input_is_one_line_and_status_2(
    desk: Desk,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    flags: tuple[str, ...],
    message: str,
) -> None:
    assert desk.check(name, text, *flags) == 2
    line = error_line(capsys)
    assert line.startswith("radixlm: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grammar"], "required: check (see `radixlm grammar --help`)"),
        (["grammar", "check"], "required: FILE (see `radixlm grammar check --help`)"),
        (["grammar", "check", "/nowhere/a.json"], "cannot read /nowhere/a.json: No such file or directory"),
        (["grammar", "check", "a\0.json"], "cannot read 'a\\x00.json': embedded null byte"),
        (["grammar", "check", "a.json", "--seed", "4"], "unrecognized arguments: --seed 4"),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in error_line(capsys)


def test_files_that_are_no_text_are_refused(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (desk.folder / "a.regex").write_bytes(b"a\xff")
    assert main(["grammar", "check", str(desk.folder / "a.regex")]) == 2
    assert "not valid UTF-8 at byte 1" in error_line(capsys)


def test_a_model_that_is_not_there_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Desk(tmp_path, Path("/nowhere/model")).check("a.regex", "a") == 2
    assert "'/nowhere/model': no such file or folder" in error_line(capsys)


def test_input_is_found_wrong_before_a_model_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Desk(tmp_path, Path("/nowhere/model")).check("a.json", "{") == 2
    assert "json_schema must be JSON" in error_line(capsys)


def test_help_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    wanted: Mapping[str, str] = {"": "usage: radixlm grammar check FILE", "check": "--instance FILE"}
    for action, shown in wanted.items():
        with pytest.raises(SystemExit) as caught:
            main(["grammar", *action.split(), "--help"])
        assert caught.value.code == 0
        assert shown in capsys.readouterr().out
