"""The programs on a backend whose replies are given: what they ask, when, and what they make of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from radixlm import programs
from radixlm.frontend.errors import Unreachable
from radixlm.frontend.protocol import GenerateCall, ScoreCall
from radixlm.frontend.scripted import Scripted
from radixlm.programs import (
    few_shot_qa,
    generative_agents,
    json_extraction,
    llm_judge,
    multi_turn_chat,
    multiple_choice,
    rag_answer,
    react_agent,
    self_consistency,
    skeleton_of_thought,
    tree_of_thought,
)
from radixlm.programs.shared.items import BUILT_IN, DataError, as_item
from radixlm.programs.shared.library import Library, Passage
from radixlm.programs.shared.report import Figures
from radixlm.programs.shared.task import Task, prepare

FOLDER = Path(programs.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
LIBRARY = Library(
    [
        Passage(0, "a", "The mill stands by the river."),
        Passage(1, "b", "Ruth Ames owns the mill."),
        Passage(2, "c", "The inn has 12 rooms."),
    ]
)


def run(name: str, lines: list[dict[str, object]], backend: Scripted, folder: Path) -> Figures:
    """The program on these items."""
    data = folder / "data.jsonl"
    data.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return prepare(name, data=data).on(backend)


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_each_program_has_a_task_and_data_of_its_own(name: str) -> None:
    module = import_module(f"radixlm.programs.{name}")
    assert isinstance(module.task, Task)
    assert len(prepare(name).items) >= 8
    assert (BUILT_IN / f"{name}.jsonl").exists()


@pytest.mark.parametrize("name", NAMES)
def test_each_docstring_says_what_it_is_in_one_line_and_where_it_comes_from(name: str) -> None:
    first, empty, *rest = (import_module(f"radixlm.programs.{name}").__doc__ or "").split("\n")
    assert first.endswith(".")
    assert empty == ""
    assert re.search(r"Shows ", " ".join(rest))
    assert "`--data`" in " ".join(rest)


def test_a_failed_item_is_a_row_with_its_error_and_others_are_kept(tmp_path: Path) -> None:
    backend = Scripted({"one": " 1", "two": Unreachable("the line is dead"), "####": " 1\n"})
    lines = [{"question": word, "answer": "#### 1"} for word in ("one", "two", "one more: one")]
    figures = run("few_shot_qa", lines, backend, tmp_path)
    assert [row["item"] for row in figures.rows] == [0, 1, 2]
    assert "the line is dead" in str(figures.rows[1]["error"])
    assert [row.get("correct") for row in figures.rows] == [True, None, True]
    assert "correct 100.0% (2 items: too few to compare models by), 1 of 3 failed" in figures.text()


def test_only_the_first_items_are_run_where_that_is_asked_for() -> None:
    assert len(prepare("few_shot_qa", n=3).items) == 3


@pytest.mark.parametrize("n", [0, -1, True, "2"])
def test_a_number_of_items_that_is_none_is_refused(n: object) -> None:
    with pytest.raises(DataError, match=f"n must be a count of at least 1, got {n!r}"):
        prepare("few_shot_qa", n=n)  # type: ignore[arg-type]


def test_more_items_than_there_are_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "two.jsonl"
    data.write_text('{"question": "?", "answer": "1"}\n' * 2)
    with pytest.raises(DataError, match=r"two\.jsonl holds 2 items, and n is 3"):
        prepare("few_shot_qa", data=data, n=3)


BAD = {
    "few_shot_qa": [
        ({"question": "?", "answer": "none at all"}, "answer must end in a number, .* got 'none at all'"),
        ({"question": "?", "answer": "3 + 4 = 7, so #### seven"}, "answer must end in a number"),
        ({"question": " ", "answer": "1"}, 'question must be a text that is not empty, got " "'),
        ({"question": "?", "answer": 7}, "answer must be text, got 7"),
        ({"question": "?"}, "key 'answer' is missing"),
    ],
    "self_consistency": [({"question": "?", "answer": "many"}, "answer must end in a number")],
    "tree_of_thought": [({"question": "?", "answer": "many"}, "answer must end in a number")],
    "rag_answer": [
        ({"question": "?", "answer": ""}, 'answer must be a text, .* got ""'),
        ({"question": "?", "answer": "a||b"}, "none empty"),
        ({"question": "", "answer": "a"}, "question must be"),
    ],
    "react_agent": [
        ({"question": "?", "answer": "a|"}, "none empty"),
        ({"answer": "a"}, "'question' is missing"),
    ],
    "llm_judge": [({"text": ""}, "text must be"), ({"text": ["a"]}, "text must be text")],
    "json_extraction": [
        ({"text": " "}, "text must be"),
        ({"text": "a", "expected": []}, "expected must be an object"),
        ({"text": "a", "schema": "x"}, "schema must be an object or null"),
    ],
    "multi_turn_chat": [
        ({"turns": ["a", ""]}, "a turn must be"),
        ({"turns": ["a"], "expected": ["b", "c"]}, "expected holds 2 texts for 1 turns"),
        ({"turns": ["a"], "expected": ["b|"]}, "none empty"),
        ({"turns": "a"}, "turns must be a list"),
    ],
    "multiple_choice": [
        ({"ctx": "a", "endings": [], "label": 0}, "endings must hold the texts to choose from"),
        ({"ctx": "", "endings": ["b"], "label": 0}, "ctx must be"),
    ],
    "skeleton_of_thought": [
        ({"question": "?", "keywords": ["a", ""]}, "a word of keywords must be"),
        ({"question": ""}, "question must be"),
    ],
    "generative_agents": [({"generate_pronunciatio": None}, "generate_pronunciatio must be an object")],
}


@pytest.mark.parametrize(
    ("name", "line", "said"), [(name, *each) for name, lines in BAD.items() for each in lines]
)
def test_what_no_answer_could_be_held_against_is_refused_with_file_and_line(
    name: str, line: dict[str, object], said: str, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(f"\n{json.dumps(line)}\n")
    with pytest.raises(DataError, match=rf"data\.jsonl, line 2: .*{said}"):
        prepare(name, data=data)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_is_refused(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("\n")
    with pytest.raises(DataError, match=r"data\.jsonl holds no items"):
        prepare(name, data=data)


def test_a_program_that_searches_nothing_takes_no_documents(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="few_shot_qa searches no documents"):
        prepare("few_shot_qa", documents=tmp_path)


def test_documents_are_those_of_the_folder_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("Only this.")
    library = prepare("rag_answer", documents=tmp_path).library
    assert library is not None
    assert [passage.text for passage in library.passages] == ["Only this."]


# -- few_shot_qa, self_consistency ----------------------------------------------------------------


def test_a_worked_answer_ends_in_a_number_of_the_right_form(tmp_path: Path) -> None:
    backend = Scripted([" 2 + 2 = 4.\n#### 4\n\nQuestion: more", " 4\n"])
    [row] = run("few_shot_qa", [{"question": "2 + 2?", "answer": "#### 4"}], backend, tmp_path).rows
    assert (row["answer"], row["expected"], row["correct"]) == ("4", "4", True)
    assert row["reasoning"] == " 2 + 2 = 4."
    first, second = backend.calls
    assert first.prompt == f"{few_shot_qa.EXAMPLES}Question: 2 + 2?\nAnswer:"
    assert second.prompt == f"{first.prompt} 2 + 2 = 4.\n####"
    assert isinstance(second.asked, GenerateCall)
    assert second.asked.sampling.regex == r" -?\d{1,7}\n"


def test_a_wrong_number_is_wrong_and_thousands_may_have_a_comma(tmp_path: Path) -> None:
    backend = Scripted([" So.", " 1200\n", " So.", " 7\n"])
    lines = [{"question": "?", "answer": "#### 1,200"}, {"question": "!", "answer": "#### 8"}]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = prepare("few_shot_qa", data=data).on(backend, num_threads=1).rows
    assert sorted(row["correct"] for row in rows) == [False, True]


def test_the_answer_that_most_paths_give_wins() -> None:
    numbers = iter([" 7\n", " 8\n", " 7\n", " 9\n", " 7\n"])
    backend = Scripted(
        {"Answer:": " So.", "####": lambda prompt: next(numbers), "So.\n####": lambda p: next(numbers)}
    )
    state = self_consistency.answer.run(question="?", paths=5, backend=backend, temperature=0)
    assert state.error() is None
    assert state["answer"] == " 7\n"
    reasoned = [call for call in backend.calls if call.prompt.endswith("Answer:")]
    assert len(reasoned) == 5
    assert all(call.asked.sampling.temperature == 0.7 for call in reasoned)


def test_a_vote_that_is_settled_stops_the_other_paths() -> None:
    backend = Scripted({"Answer:": " So.", "So.\n####": " 7\n"})
    state = self_consistency.answer.run(question="?", paths=4, backend=backend)
    assert state["answer"] == " 7\n"
    state.sync()
    assert any(how == "cancelled" for _, how in backend.ended)


# -- multiple_choice ------------------------------------------------------------------------------


def test_the_likeliest_ending_is_chosen(tmp_path: Path) -> None:
    backend = Scripted(scores={" barks.": -0.5, " sings.": -2.0, " flies.": -3.0})
    line = {"ctx": "The dog", "endings": ["sings.", "barks.", " flies."], "label": "1", "source_id": "x"}
    figures = run("multiple_choice", [line], backend, tmp_path)
    assert figures.rows == [{"item": 0, "answer": " barks.", "expected": " barks.", "correct": True}]
    [call] = backend.calls
    assert call.prompt == f"{multiple_choice.EXAMPLES}The dog"
    assert isinstance(call.asked, ScoreCall)


@pytest.mark.parametrize("answer", [2, "2", "C", "c"])
def test_a_question_with_choices_is_a_context_with_endings(answer: object) -> None:
    item = as_item({"question": "Two?", "choices": ["0", "1", "2"], "answer": answer}, multiple_choice.Choice)
    assert item == multiple_choice.Choice("Question: Two?\nAnswer:", [" 0", " 1", " 2"], 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"ctx": "a", "endings": ["b"], "label": 1}, "label must be from 0 to 0, got 1"),
        ({"ctx": "a", "endings": ["b"], "label": "z"}, "label must be from 0 to 0, got 25"),
        ({"ctx": "a", "endings": ["b"], "label": "two"}, 'label must be a whole number, got "two"'),
        ({"ctx": "a", "endings": "b", "label": 0}, 'endings must be a list .*, got "b"'),
        ({"ctx": "a", "endings": ["b", 3], "label": 0}, "endings must be a list"),
        ({"ctx": "a", "endings": ["b", " b"], "label": 0}, "endings must differ"),
        ({"ctx": "a", "endings": ["b", ""], "label": 0}, "endings must not be empty"),
        ({"ctx": "a", "endings": ["b"]}, "label must be a whole number, got null"),
        ({"endings": ["b"], "label": 0}, "key 'ctx' is missing"),
    ],
)
def test_choices_that_cannot_be_used_are_quoted(line: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_item(line, multiple_choice.Choice)


# -- react_agent ----------------------------------------------------------------------------------


def test_the_agent_uses_its_tools_until_it_answers() -> None:
    thoughts = iter([" I search.\nmore", " I compute.", " Done."])
    actions = iter([" search[who owns the mill]\n", " calculate[3 * 4]\n", " finish[12]\n"])
    backend = Scripted({"Thought:": lambda prompt: next(thoughts), "Action:": lambda prompt: next(actions)})
    state = react_agent.agent.run(question="How?", library=LIBRARY, backend=backend)
    assert state["answer"] == "12"
    assert state.text() == (
        f"{react_agent.EXAMPLES}Question: How?\n"
        "Thought: I search.\nAction: search[who owns the mill]\nObservation: Ruth Ames owns the mill.\n"
        "Thought: I compute.\nAction: calculate[3 * 4]\nObservation: 12\n"
        "Thought: Done.\nAction: finish[12]\n"
    )


def test_the_agents_prefix_is_held_while_a_tool_works_and_given_back_then() -> None:
    backend = Scripted({"Thought:": " So.", "Action:": [" calculate[1]\n", " finish[1]\n"]})
    react_agent.agent.run(question="?", library=LIBRARY, backend=backend).sync()
    held = [call for call in backend.calls if call.asked.hint.hold_s is not None]
    assert [call.asked.hint.hold_s for call in held] == [30.0]
    assert held[0].prompt.endswith("Action: calculate[1]\n")
    assert "released" in {how for _, how in backend.ended}


def test_an_agent_that_never_finishes_stops_after_its_steps(tmp_path: Path) -> None:
    backend = Scripted({"Thought:": " Hm.", "Action:": " search[zebra]\n"})
    figures = run("react_agent", [{"question": "?", "answer": "1"}], backend, tmp_path)
    [row] = figures.rows
    assert (row["answer"], row["finished"], row["correct"], row["steps"]) == (None, False, False, 5)
    assert figures.text().startswith("quality  correct 0.0%, finished 0.0%, steps 5.0")


@pytest.mark.parametrize(
    ("tool", "argument", "observation"),
    [
        ("calculate", "2 +", "error: not arithmetic: '2 +'"),
        ("calculate", "__import__('os')", "error: only numbers, + - * / // % ** and brackets are known"),
        ("search", "../../etc/passwd", "nothing found"),
        ("search", "rooms of the inn", "The inn has 12 rooms."),
    ],
)
def test_a_tool_answers_in_words_whatever_it_is_asked(tool: str, argument: str, observation: str) -> None:
    assert react_agent.use(tool, argument, LIBRARY) == observation


@pytest.mark.parametrize(
    "action", [" open[x]\n", " calculate[]\n", " finish[a]b]\n", " finish[a\nb]\n", "finish[a]\n"]
)
def test_actions_are_held_to_what_there_are_tools_for(action: str) -> None:
    assert re.fullmatch(react_agent.ACTION, " finish[Ruth Ames]\n")
    assert not re.fullmatch(react_agent.ACTION, action)


# -- tree_of_thought ------------------------------------------------------------------------------


def test_the_best_thoughts_are_followed() -> None:
    plans = iter(["plan A", "plan B", "plan C"])
    solutions = iter(f"solution {number}" for number in range(1, 7))

    def reply(prompt: str) -> str:
        return next(plans) if "Now follow the plan" not in prompt else next(solutions)

    def score(prompt: str, choice: str) -> float:
        good = "plan B" in prompt and ("Now follow" not in prompt or "solution 2" in prompt)
        wanted = "5" if good else "3" if "plan C" in prompt else "1"
        return 0.0 if choice == wanted else -1.0

    backend = Scripted(reply, scores=score)
    state = tree_of_thought.think.run(question="?", width=3, beam=2, backend=backend)
    assert state["solution"] == "solution 2"
    kinds = Counter(type(call.asked) for call in backend.calls)
    assert kinds == {GenerateCall: 3 + 6, ScoreCall: 3 + 6}
    followed = [call.prompt for call in backend.calls if isinstance(call.asked, GenerateCall)][3:]
    assert all("plan A" not in prompt for prompt in followed)
    assert all("How good" not in prompt for prompt in followed)


# -- skeleton_of_thought --------------------------------------------------------------------------


def test_each_point_is_written_in_a_branch_and_joined_in_order(tmp_path: Path) -> None:
    backend = Scripted(
        {
            "as a numbered list.": "1. Walk often\n2. Eat well\n3. Sleep long\n",
            "only: Walk often": "Walk to work.",
            "only: Eat well": "Cook at home.",
            "only: Sleep long": "Go to bed.",
        }
    )
    line = {"question": "How do I live well?", "keywords": ["Bed", "work", "money"]}
    [row] = run("skeleton_of_thought", [line], backend, tmp_path).rows
    assert row["answer"] == "Walk often: Walk to work.\n\nEat well: Cook at home.\n\nSleep long: Go to bed."
    assert row["keywords_found"] == pytest.approx(2 / 3)
    assert row["points_differ"] is True
    assert row["words"] == 15


def test_a_point_whose_branch_failed_is_left_out() -> None:
    backend = Scripted(
        {
            "as a numbered list.": "1. Walk often\n2. Eat well\n3. Sleep long\n",
            "only: Walk often": "Walk to work.",
            "only: Eat well": Unreachable("gone"),
            "only: Sleep long": "Go to bed.",
        }
    )
    state = skeleton_of_thought.write.run(question="?", backend=backend)
    assert state["answer"] == "Walk often: Walk to work.\n\nSleep long: Go to bed."


# -- llm_judge ------------------------------------------------------------------------------------


def test_every_side_is_judged_in_a_branch_before_the_verdict(tmp_path: Path) -> None:
    marks = {side: str(place + 1) for place, side in enumerate(llm_judge.SIDES)}

    def reply(prompt: str) -> str:
        if prompt.endswith("The essay is "):
            return "weak"
        side = re.findall(r"Judge the (\w+) in", prompt)[-1]
        return marks[side] if prompt.endswith("\nMark: ") else f"on {side}\nand more"

    figures = run("llm_judge", [{"text": "Bad.", "label": "weak"}], backend := Scripted(reply), tmp_path)
    [row] = figures.rows
    assert row["verdict"] == "weak"
    assert row["agrees"] is True
    assert row["marks"] == marks
    assert row["reasons"] == [f"on {side}" for side in llm_judge.SIDES]
    assert row["mean_mark"] == 2.5
    last = backend.calls[-1].prompt
    assert "Marks: clarity: 1 of 5, evidence: 2 of 5, fairness: 3 of 5, style: 4 of 5." in last
    assert "Judge the" not in last


def test_an_essay_may_have_no_label_and_no_other_than_the_two(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label must be strong or weak, got 'good'"):
        as_item({"text": "x", "label": "good"}, llm_judge.Essay)
    backend = Scripted({"essay is ": "weak", "Mark: ": "1", "": "so"})
    figures = run("llm_judge", [{"text": "x"}], backend, tmp_path)
    assert figures.shares == {}
    assert figures.means == {"mean_mark": 1.0}


# -- multi_turn_chat ------------------------------------------------------------------------------


def test_a_conversation_goes_on_behind_its_answers(tmp_path: Path) -> None:
    backend = Scripted(["Paris.", "It is Rome, I think."])
    line = {"turns": ["France?", "Italy?"], "expected": ["Paris", "Madrid|Rome"], "question_id": 81}
    [row] = run("multi_turn_chat", [line], backend, tmp_path).rows
    assert row["answers"] == ["Paris.", "It is Rome, I think."]
    assert (row["expected_found"], row["ended_by_itself"], row["words_of_an_answer"]) == (1.0, 1.0, 3.0)
    first, second = backend.calls
    assert second.prompt.startswith(f"{first.prompt}Paris.")
    assert second.asked.messages is not None
    assert [message["role"] for message in second.asked.messages][:4] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_answers_are_as_long_as_asked_for(tmp_path: Path) -> None:
    lines = [{"turns": ["Say."], "length": length} for length in multi_turn_chat.STYLES]
    backend = Scripted("x" * 500, limit=True)
    figures = run("multi_turn_chat", lines, backend, tmp_path)
    assert [len(row["answers"][0]) for row in figures.rows] == [32, 192]
    assert figures.shares == {"ended_by_itself": 0.0}


def test_a_conversation_has_turns_and_a_known_length() -> None:
    with pytest.raises(DataError, match="length must be short or long, got 'huge'"):
        as_item({"turns": ["a"], "length": "huge"}, multi_turn_chat.Conversation)
    with pytest.raises(DataError, match="turns must not be empty"):
        as_item({"turns": []}, multi_turn_chat.Conversation)


# -- json_extraction ------------------------------------------------------------------------------


def test_facts_are_held_to_the_schema_and_graded_by_field(tmp_path: Path) -> None:
    facts = {"name": "Ada", "age": 36, "city": "London", "job": "cook"}
    backend = Scripted(json.dumps(facts))
    line = {"text": "Ada.", "expected": {**facts, "job": "mathematician"}}
    [row] = run("json_extraction", [line], backend, tmp_path).rows
    assert (row["facts"], row["is_json"], row["right_fields"], row["all_right"]) == (facts, True, 0.75, False)
    [call] = backend.calls
    assert json.loads(call.asked.sampling.json_schema) == json_extraction.PERSON
    assert call.prompt.endswith("Text: Ada.\nJSON: ")


def test_a_schema_of_ones_own_takes_the_place_of_the_examples(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    backend = Scripted('{"ok": true}')
    figures = run("json_extraction", [{"text": "Fine.", "schema": schema}], backend, tmp_path)
    [call] = backend.calls
    assert json.loads(call.asked.sampling.json_schema) == schema
    assert "Omar" not in call.prompt
    assert figures.shares == {"is_json": 1.0}


def test_an_answer_that_was_cut_is_no_json_and_no_error(tmp_path: Path) -> None:
    class State(dict[str, str]):
        pass

    document = json_extraction.Document("x", {"a": 1})
    row = json_extraction.grade(State(facts='{"a": 1, "b'), document)
    assert (row["is_json"], row["right_fields"], row["all_right"]) == (False, 0.0, False)


@pytest.mark.parametrize("item", prepare("json_extraction").items)
def test_the_built_in_facts_are_of_the_built_in_schema(item: json_extraction.Document) -> None:
    assert set(item.expected) == set(json_extraction.PERSON["required"])


# -- rag_answer -----------------------------------------------------------------------------------


def test_passages_stand_before_the_question_in_the_order_of_the_library() -> None:
    backend = Scripted("Ruth Ames.")
    state = rag_answer.answer.run(
        question="Who owns the mill by the river?", library=LIBRARY, passages=2, backend=backend
    )
    assert state["answer"] == "Ruth Ames."
    assert state["passages"] == ["The mill stands by the river.", "Ruth Ames owns the mill."]
    [call] = backend.calls
    assert (
        call.prompt.index("by the river.") < call.prompt.index("Ruth Ames") < call.prompt.index("Question:")
    )


def test_an_answer_is_right_if_it_has_the_expected_text_in_it(tmp_path: Path) -> None:
    backend = Scripted("I think it was 1874.")
    lines = [{"question": "When was the lighthouse of Verrin built?", "answer": "1874"}]
    [row] = run("rag_answer", lines, backend, tmp_path).rows
    assert (row["correct"], row["answer_was_in_the_passages"]) == (True, True)


@pytest.mark.parametrize("item", prepare("rag_answer").items)
def test_the_built_in_questions_can_be_answered_from_what_is_found(item: rag_answer.Question) -> None:
    state = rag_answer.answer.run(question=item.question, library=Library.of_folder(), backend=Scripted("x"))
    assert rag_answer.grade(state, item)["answer_was_in_the_passages"]


# -- generative_agents ----------------------------------------------------------------------------

CALLS: Mapping[str, tuple[dict[str, str], str]] = {
    "poignancy_event": ({"persona_name": "Al", "persona_iss": "Al is old.", "event": "Al sits"}, " 3"),
    "generate_event_triple": ({"persona_name": "Al", "action": "eating soup"}, " eat, soup)"),
    "generate_pronunciatio": ({"action": "eating soup"}, " 🍲\nmore"),
    "action_location_sector": (
        {
            "persona_name": "Al",
            "living_sector": "the hut",
            "living_sector_areas": "room",
            "current_sector": "the inn",
            "current_sector_areas": "bar",
            "daily_plan": "Al rests",
            "sector_options": "{the hut, the inn, the hut}",
            "current_action": "eating",
            "next_action": "sleeping",
        },
        " the hut",
    ),
    "action_location_object": (
        {
            "persona_name": "Al",
            "target_sector": "the hut",
            "target_sector_areas": "room, yard",
            "current_action": "eating",
            "next_action": "sleeping",
        },
        " room",
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_each_kind_of_call_is_replayed(kind: str, tmp_path: Path) -> None:
    arguments, reply = CALLS[kind]
    figures = run("generative_agents", [{kind: arguments}], Scripted(reply), tmp_path)
    [row] = figures.rows
    assert row["kind"] == kind
    assert row["answer"] == reply.split("\n")[0].strip()


def test_quality_says_why_there_is_none_and_of_how_many_items_it_is(tmp_path: Path) -> None:
    ungraded = {"poignancy_event": CALLS["poignancy_event"][0]}
    figures = run("generative_agents", [ungraded], Scripted(" 3"), tmp_path)
    assert "nothing was measured: none of these items says what a right answer is" in figures.text()
    drawn = {"generate_pronunciatio": {"action": "reading"}}
    backend = Scripted({"reading:": " 📖", "Al sits": " 3"})
    figures = run("generative_agents", [ungraded, drawn], backend, tmp_path)
    assert "drawn 100.0% (of 1 that can be graded)" in figures.text()


def test_places_are_graded_where_they_are_known_and_pictures_by_what_they_are(tmp_path: Path) -> None:
    lines = [
        {"action_location_object": CALLS["action_location_object"][0], "expected": "room"},
        {"action_location_sector": CALLS["action_location_sector"][0], "expected": "the inn"},
        {"generate_pronunciatio": {"action": "reading"}},
    ]
    backend = Scripted(
        {"in the hut": "x", "The hut has: room, yard": " room", "Places:": " the hut", "reading:": " book"}
    )
    figures = run("generative_agents", lines, backend, tmp_path)
    assert figures.shares == {"right_place": 0.5, "drawn": 0.0}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({}, "needs exactly one of poignancy_event, .*, got nothing"),
        ({"dance": {}}, "got dance"),
        ({"generate_pronunciatio": {"action": "a"}, "poignancy_event": {}}, "needs exactly one of"),
        ({"generate_pronunciatio": {"acts": "a"}}, "generate_pronunciatio takes action, got acts"),
        ({"generate_pronunciatio": {"action": 3}}, "generate_pronunciatio must be .*got {'action': 3}"),
        ({"generate_pronunciatio": "run"}, "generate_pronunciatio must be an object .*got 'run'"),
        (
            {"action_location_object": CALLS["action_location_object"][0], "expected": "attic"},
            r"expected must be one of the places \(room, yard\), got 'attic'",
        ),
        (
            {"generate_pronunciatio": {"action": "a"}, "expected": "b"},
            "generate_pronunciatio chooses no place",
        ),
        (
            {
                "action_location_object": {
                    **CALLS["action_location_object"][0],
                    "target_sector_areas": "{ , }",
                }
            },
            "target_sector_areas must name places, got '{ , }'",
        ),
    ],
)
def test_a_line_of_a_trace_that_cannot_be_replayed_is_quoted(line: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_item(line, generative_agents.Call)
