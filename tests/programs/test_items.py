"""Data of programs: what is taken, and what is said of what is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import radixlm as rx
from radixlm.programs.shared.grading import last_number, mentions, share
from radixlm.programs.shared.items import DataError, as_item, read_items
from radixlm.programs.shared.report import Figures, means_of, tokens_between, tokens_of


@dataclass(frozen=True)
class Book:
    title: str
    pages: int
    tags: list[str] = field(default_factory=list)
    shelf: str | None = None


def read(folder: Path, text: str | bytes) -> list[Book]:
    path = folder / "books.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_items(path, Book)


def test_a_line_is_an_item_and_unknown_keys_are_skipped(tmp_path: Path) -> None:
    lines = '\ufeff{"title": "Sea", "pages": 9, "isbn": 7}\n\n{"title": "Sky", "pages": 3, "tags": ["a"]}\r\n'
    assert read(tmp_path, lines) == [Book("Sea", 9), Book("Sky", 3, ["a"])]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"title": "Sea"}', r"line 2: key 'pages' is missing; needed are title, pages, got \[\"title\"\]"),
        ('{"title": 7, "pages": 1}', "line 2: title must be text, got 7"),
        ('{"title": "Sea", "pages": true}', "pages must be a whole number, got true"),
        ('{"title": "Sea", "pages": "9"}', 'pages must be a whole number, got "9"'),
        ('{"title": "Sea", "pages": 9, "tags": "a"}', r'tags must be a list \(of text\), got "a"'),
        ('{"title": "Sea", "pages": 9, "tags": [1]}', r"tags must be a list \(of text\), got \[1\]"),
        ('{"title": "Sea", "pages": 9, "shelf": 2}', "shelf must be text or null, got 2"),
        ('["Sea", 9]', r"must be a JSON object, got \[\"Sea\", 9\]"),
        ('{"title": "Sea"', r"line 2: not JSON \(.*\): .*title"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"title": "Sea", "pages": ' + "9" * 5000 + "}", "line 2: not JSON"),
    ],
)
def test_what_is_wrong_is_quoted_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read(tmp_path, f'{{"title": "Sky", "pages": 3}}\n{line}\n')
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*gone\.jsonl: No such file"):
        read_items(tmp_path / "gone.jsonl", Book)
    with pytest.raises(DataError, match="cannot read"):
        read_items(Path("a\0b"), Book)
    with pytest.raises(DataError, match="not valid UTF-8 at byte 1"):
        read(tmp_path, b"{\xff}")
    with pytest.raises(DataError, match="holds no items"):
        read(tmp_path, "\n \n")


def test_what_the_kind_itself_refuses_is_an_error_of_the_data() -> None:
    @dataclass(frozen=True)
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError(f"n must not be negative, got {self.n}")

    with pytest.raises(DataError, match="n must not be negative, got -1"):
        as_item({"n": -1}, Positive)


def test_the_last_number_is_the_answer() -> None:
    assert last_number("3 + 4 = 7, so #### 1,234.50") == 1234.5
    assert last_number(" -8\n") == -8
    assert last_number("nothing") is None


def test_a_mention_is_a_word_of_its_own_whatever_its_case() -> None:
    assert mentions("It is PARIS,\n of course", "paris")
    assert not mentions("391 sheep", "39")
    assert mentions("eight legs", "8|eight")
    assert mentions("55\nminutes", "55 minutes")


def test_a_share_of_nothing_is_unknown() -> None:
    assert share([]) is None
    assert share([True, False]) == 0.5


def test_quality_is_the_mean_of_what_has_a_grade() -> None:
    rows = [{"right": True, "words": 3}, {"right": False, "words": 5.0}, {"error": "x"}, {"right": None}]
    assert means_of(rows, ["right", "words", "unknown"]) == {"right": 0.5, "words": 4.0}


def test_figures_of_all_of_a_backends_work_stand_in_for_those_of_programs() -> None:
    before = {"prompt_tokens": 0, "internal_states": [{"prompt_tokens": 5, "forced_tokens": 1}]}
    after = {"prompt_tokens": 7, "internal_states": [{"prompt_tokens": 99, "forced_tokens": 4}]}
    assert tokens_between(before, after) == {"prompt_tokens": 7, "forced_tokens": 3}


def test_tokens_are_what_came_between() -> None:
    before = {"prompt_tokens": 10, "cached_tokens": 1, "optimal_tokens": 1, "model": "m"}
    after = {"prompt_tokens": 30, "cached_tokens": 13, "optimal_tokens": 17, "model": "m", "forced_tokens": 2}
    assert tokens_between(before, after) == {"prompt_tokens": 20, "cached_tokens": 12, "optimal_tokens": 16}


def test_figures_say_quality_tokens_reuse_and_time() -> None:
    rows = [{"item": 0, "all_right": True, "words": 12}, {"item": 1, "error": "TimedOut: 3 s"}]
    tokens = {"prompt_tokens": 2000, "cached_tokens": 1500, "optimal_tokens": 1600, "generated_tokens": 90}
    figures = Figures("demo", rows, {"all_right": 1.0}, {"words": 12.0}, tokens, 2.25)
    assert figures.text().splitlines() == [
        "quality  all right 100.0%, words 12.0 (1 item: too few to compare models by), 1 of 2 failed",
        "tokens   2,000 in prompts, 90 generated",
        "reuse    1,500 tokens of prompts were found in the cache; 1,600 could, so 93.8% of optimal",
        "time     2.2 s for 2 items",
    ]
    assert figures.reuse_of_optimal == 1500 / 1600
    assert figures.failed == [rows[1]]


@pytest.mark.parametrize(("cached", "said"), [(2715, "99.9%"), (2716, "100.0%"), (2700, "99.4%")])
def test_what_is_not_all_of_it_is_not_called_all(cached: int, said: str) -> None:
    tokens = {"prompt_tokens": 3000, "cached_tokens": cached, "optimal_tokens": 2716, "forced_tokens": 0}
    text = Figures("demo", [{"item": 0, "x": 1}] * 40, {"x": 1.0}, {}, tokens, 1.0).text()
    assert f"so {said} of optimal" in text
    assert "forced" not in text
    assert "too few" not in text


def test_figures_say_what_a_backend_does_not_count() -> None:
    text = Figures("demo", [], {}, {}, {}, 0.0).text()
    assert "nothing was run" in text
    assert "does not count them" in text
    assert "does not say what could have been found" in text
    nothing = {"prompt_tokens": 5, "cached_tokens": 0, "optimal_tokens": 0}
    assert "; nothing could" in Figures("demo", [], {}, {}, nothing, 0.0).text()
    no_optimum = {"prompt_tokens": 5, "cached_tokens": 2, "generated_tokens": 3}
    text = Figures("demo", [], {}, {}, no_optimum, 0.0).text()
    assert "5 in prompts, 3 generated" in text
    assert "2 tokens of prompts were found in the cache; this backend does not say what could have" in text


def test_what_a_backend_does_not_say_is_summed_up_from_the_programs_calls() -> None:
    body = rx.function(lambda s: s.append("0123456789" + rx.gen("x") + "?" + rx.gen("y")))
    states = body.run_batch([(), ()], backend=rx.Scripted("reply"), num_threads=1)
    assert tokens_of(states) == {
        "prompt_tokens": 52,
        "generated_tokens": 20,
        "forced_tokens": 0,
        "cached_tokens": 14 + 9 + 15,
    }
    assert tokens_of([]) == {}
