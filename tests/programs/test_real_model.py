"""Every program with two of its own items on the default model: it runs, ends, and finds what it could."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from radixlm.programs.shared.task import prepare
from radixlm.runtime.engine import Engine

pytestmark = pytest.mark.thorough

PROGRAMS = (
    "few_shot_qa",
    "generative_agents",
    "json_extraction",
    "llm_judge",
    "multi_turn_chat",
    "multiple_choice",
    "rag_answer",
    "react_agent",
    "self_consistency",
    "skeleton_of_thought",
    "tree_of_thought",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("smollm2-135m") as opened:
        yield opened


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_on_the_default_model(engine: Engine, name: str) -> None:
    figures = prepare(name, n=2).on(engine.endpoint)
    assert figures.failed == []
    assert len(figures.rows) == 2
    assert figures.shares or name == "generative_agents"  # its first two calls have no grade
    assert figures.tokens["prompt_tokens"] > 0
    assert figures.reuse_of_optimal is not None
    assert figures.reuse_of_optimal > 0.9  # of two items only, which have less to share than all
