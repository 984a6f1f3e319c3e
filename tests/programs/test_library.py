"""The search over text files: what it finds, what it reads, and what it never reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm.programs.shared import library as library_module
from radixlm.programs.shared.items import DataError
from radixlm.programs.shared.library import Library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "documents"
    home.mkdir()
    (home / "b.txt").write_text("Cats sleep all day.\n\nDogs run\nafter cats.\n\n\n")
    (home / "a.txt").write_text("The ferry leaves at noon.")
    (home / "notes.md").write_text("The ferry is late.")
    return home


def test_passages_are_paragraphs_in_the_order_of_the_files(folder: Path) -> None:
    passages = Library.of_folder(folder).passages
    assert [(each.place, each.source, each.text) for each in passages] == [
        (0, "a", "The ferry leaves at noon."),
        (1, "b", "Cats sleep all day."),
        (2, "b", "Dogs run after cats."),
    ]


def test_the_best_passage_comes_first_and_what_has_nothing_in_common_does_not_come(folder: Path) -> None:
    found = Library.of_folder(folder).search("Which DOG runs after a cat?", 3)
    assert [each.text for each in found] == ["Dogs run after cats.", "Cats sleep all day."]


def test_equal_passages_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one word\n\none word\n\none word")
    assert [each.place for each in Library.of_folder(tmp_path).search("word", 2)] == [0, 1]


def test_the_built_in_documents_answer_their_questions() -> None:
    [found] = Library.of_folder().search("How many steps lead up the lighthouse?")
    assert "212 steps" in found.text


@pytest.mark.parametrize("query", ["", " ", "?!", "../../etc/passwd", "/etc/passwd", "a\0b", "[", "\ud800"])
def test_a_query_is_only_ever_words(folder: Path, query: str) -> None:
    assert Library.of_folder(folder).search(query) == []


def test_links_that_lead_out_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the password is swordfish")
    (folder / "link.txt").symlink_to(secret)
    (folder / "deep.txt").symlink_to(Path("..") / "secret.txt")
    (folder / "gone.txt").symlink_to(tmp_path / "nothing.txt")
    assert Library.of_folder(folder).search("password swordfish") == []


def test_folders_and_other_names_are_not_read(folder: Path) -> None:
    (folder / "inner.txt").mkdir()
    assert {each.source for each in Library.of_folder(folder).passages} == {"a", "b"}


def test_bytes_that_are_no_text_do_not_stop_the_search(folder: Path) -> None:
    (folder / "c.txt").write_bytes(b"\xff\xfe broken but \xc3\xa9legant")
    [found] = Library.of_folder(folder).search("broken")
    assert "élegant" in found.text


def test_a_folder_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"holds no \.txt files with text"):
        Library.of_folder(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the folder .*nowhere"):
        Library.of_folder(tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    with pytest.raises(DataError, match="cannot read the folder"):
        Library.of_folder(tmp_path / "file")
    with pytest.raises(DataError, match="cannot read the folder"):
        Library.of_folder(Path("a\0b"))


def test_more_text_than_can_be_searched_is_refused_unread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "MOST_BYTES", 10)
    with pytest.raises(DataError, match="at most 10 are searched"):
        Library.of_folder(folder)
