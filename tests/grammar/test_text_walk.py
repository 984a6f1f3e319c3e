"""Where a text leaves a grammar, over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import pytest

from radixlm.runtime.grammar.text_walk import Fault, find_fault
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_tokenizer import VOCAB_SIZE, build_byte_tokenizer
from testkit.text_grammar import Texts


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary.of(build_byte_tokenizer(), VOCAB_SIZE)


@pytest.mark.parametrize("text", ["yes", "in the house", "и日本"])
def test_a_text_of_the_grammar_has_no_fault_whatever_its_tokens(
    vocabulary: GrammarVocabulary, text: str
) -> None:
    assert find_fault(Texts(("yes", "in the house", "и日本")), vocabulary, text) is None


@pytest.mark.parametrize(
    ("text", "place", "shown"),
    [
        ("no", 0, "'no'"),
        ("in the mouse", 7, "'mouse'"),
        ("in theatre", 6, "'atre'"),
        ("и日木 and more than is shown of it", 2, "'木 and more than is s'"),
        ("yes!", 3, "'!'"),
    ],
)
def test_the_first_character_that_cannot_stand_is_named(
    vocabulary: GrammarVocabulary, text: str, place: int, shown: str
) -> None:
    found = find_fault(Texts(("yes", "in the house", "и日本")), vocabulary, text)
    assert found == Fault(place, f"{shown} cannot stand here")


@pytest.mark.parametrize("text", ["", "i", "in the hous"])
def test_a_beginning_is_not_finished(vocabulary: GrammarVocabulary, text: str) -> None:
    found = find_fault(Texts(("in the house",)), vocabulary, text)
    assert found == Fault(len(text), "the text is not finished")


def test_what_masks_do_not_enforce_is_a_fault_of_the_whole(vocabulary: GrammarVocabulary) -> None:
    assert find_fault(Texts(("yes",), wrong="odd"), vocabulary, "yes") == Fault(None, "odd: yes")
    assert find_fault(Texts(("yes",), wrong="odd"), vocabulary, "ye") == Fault(2, "the text is not finished")


def test_an_engine_that_gives_up_is_named(vocabulary: GrammarVocabulary) -> None:
    found = find_fault(Texts(("yes",), gives_up_after=2), vocabulary, "yes")
    assert found is not None
    assert found.character is None
    assert found.reason.startswith("the grammar cannot go on: ")
