"""Programs as they were written for SGLang's frontend, with nothing changed but the import."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import radixlm as sgl
from radixlm.frontend.scripted import Scripted


@pytest.fixture(autouse=True)
def _default():
    yield
    sgl.set_default_backend(None)


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


QUESTIONS = {"question_1": "Which capital?", "question_2": "And its river?"}
ANSWERS = {"Which capital?": "Paris", "And its river?": "Seine"}


def test_a_chat_of_several_turns() -> None:
    sgl.set_default_backend(Scripted(ANSWERS))
    state = multi_turn_question.run(**QUESTIONS)
    assert [m["role"] + ": " + m["content"] for m in state.messages()][-1] == "assistant: Seine"
    assert state["answer_1"] == "Paris"


def test_a_chat_that_is_streamed() -> None:
    sgl.set_default_backend(Scripted(ANSWERS))
    state = multi_turn_question.run(**QUESTIONS, stream=True)
    assert "Paris" in "".join(out for out in state.text_iter())

    async def collect():
        state = multi_turn_question.run(**QUESTIONS, stream=True)
        return [out async for out in state.text_async_iter(var_name="answer_2")]

    assert "".join(asyncio.run(collect())) == "Seine"


def test_tips_written_in_parallel() -> None:
    @sgl.function
    def tip_suggestion(s):
        s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Now, expand tip {i + 1} into a paragraph:\n"
            f += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
        s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
        s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary")

    sgl.set_default_backend(Scripted(lambda prompt: "S" if prompt.endswith("summary") else "tip\n\nmore"))
    assert tip_suggestion.run().text().endswith("Tip 1:tip\nTip 2:tip\nIn summaryS")


def test_a_tool_is_chosen() -> None:
    @sgl.function
    def tool_use(s, question):
        s += "To answer this question: " + question + ". "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The math expression is" + sgl.gen("expression")
        elif s["tool"] == "search engine":
            s += "The key word to search is" + sgl.gen("word")

    replies = Scripted(lambda prompt: "search engine" if prompt.endswith("a ") else " cats")
    state = tool_use.run("Which animals?", backend=replies)
    assert state["word"] == " cats"
    assert "expression" not in state


def test_a_character_with_regexes_and_arguments_by_place() -> None:
    @sgl.function
    def regular_expression_gen(s):
        s += "Q: What is the IP address?\n"
        s += "A: " + sgl.gen(
            "answer", temperature=0, regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|\d)"
        )

    assert regular_expression_gen.run(backend=Scripted("8.8.8.8"))["answer"] == "8.8.8.8"


def test_copies_whose_text_is_not_kept() -> None:
    @sgl.function
    def refine(s, doc):
        s += sgl.user(doc)
        for _ in range(3):
            with s.copy() as tmp:
                tmp += sgl.assistant(sgl.gen("artifact", max_tokens=1024))
                artifact = tmp["artifact"].strip()
            s += sgl.assistant(artifact)
        return artifact

    state = refine.run("text", backend=Scripted([" a ", " b ", " c "]))
    assert state.ret_value == "c"
    assert [m["content"] for m in state.messages()] == ["text", "a", "b", "c"]


def test_branches_by_index_a_join_and_an_explicit_sync() -> None:
    @sgl.function
    def judge(s, essay):
        s += sgl.system("Judge.") + sgl.user(essay)
        dimensions = ["clarity", "style"]
        forks = s.fork(len(dimensions))
        forks += lambda i: sgl.user(f"Judge its {dimensions[i]}.") + sgl.assistant(sgl.gen("judgment"))
        forks.join()
        s += sgl.user("Sum up: " + "; ".join(s["judgment"]))
        s += sgl.assistant(sgl.gen("summary", max_tokens=64) + ".")
        s.sync()

    def reply(prompt):
        return "good" if "clarity" in prompt.split("Sum up")[0] and "Sum up" not in prompt else "fine"

    assert judge.run("essay", backend=Scripted(reply)).messages()[-2]["content"] == "Sum up: good; fine"


def test_forks_that_are_appended_to_one_by_one() -> None:
    @sgl.function
    def body(s):
        s += "A"
        forks = s.fork(2)
        forks[0] += "B" + sgl.gen("x")
        forks[1] += "C" + sgl.gen("x")
        forks.join()
        s += str(s["x"])

    assert body.run(backend=Scripted(lambda prompt: prompt[-1].lower())).text() == "A['b', 'c']"


def test_skeletons_that_are_appended() -> None:
    @sgl.function
    def body(s):
        forks = s.fork(2)
        forks += lambda i: f"{i}: " + sgl.gen("line") + "\n"
        forks.join("concate_and_append")

    assert body.run(backend=Scripted("x")).text() == "0: x\n1: x\n"


def test_helpers_without_decorator_and_scopes_and_own_variables() -> None:
    def few_shot(s, n):
        for i in range(n):
            with s.user():
                s += f"Q{i}"
            s.assistant(f"A{i}")

    @sgl.function
    def body(s, **kwargs):
        few_shot(s, 2)
        s.set_var("kwargs", kwargs)
        with s.user():
            s += "Q"
        with s.assistant(), s.var_scope("full"):
            s += "Thought: " + sgl.gen("thought") + "\n"
        assert s.get_var("full").startswith("Thought")
        assert s.get_meta_info("thought")["completion_tokens"] == 1

    state = body.run(extra=1, backend=Scripted("x"))
    assert state["full"] == "Thought: x\n"
    assert state["kwargs"] == {"extra": 1}


def test_typed_generations() -> None:
    @sgl.function
    def body(s):
        s += "Age: " + sgl.gen_int("age") + " " + sgl.gen("name", dtype=str, stop="\n") + sgl.gen_string("s")

    state = body.run(backend=Scripted(["42", '"Ada"', '"b"']))
    assert (state["age"], state["name"]) == ("42", '"Ada"')


def test_a_state_that_is_extended_in_steps_by_a_loop_that_reads() -> None:
    @sgl.function
    def react(s, question):
        s += "Question: " + question + "\n"
        for i in range(1, 4):
            s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop=["\n"])
            if "done" in s[f"thought_{i}"]:
                break
            s += "\n"

    state = react.run("q", backend=Scripted([" a\nb", " done"]))
    assert state.text() == "Question: q\nThought 1: a\nThought 2: done"
    assert "thought_3" not in state


def test_what_people_import_is_there() -> None:
    names = """function gen gen_int gen_string select system user assistant system_begin system_end user_begin
    user_end assistant_begin assistant_end image video set_default_backend flush_cache get_server_info Engine
    Runtime RuntimeEndpoint OpenAI greedy_token_selection token_length_normalized
    unconditional_likelihood_normalized"""
    missing = [name for name in names.split() if name not in sgl._HOME]
    assert not missing


def test_the_language_is_imported_without_heavy_libraries_and_quickly() -> None:
    code = (
        "import sys, time; begun = time.perf_counter(); import radixlm as sgl;"
        "sgl.gen, sgl.function, sgl.select, sgl.user, sgl.set_default_backend, sgl.Scripted, sgl.vote;"
        "body = sgl.function(lambda s: s.append('A' + sgl.gen('x')));"
        "assert body.run(backend=sgl.Scripted('r'))['x'] == 'r';"
        "heavy = {'torch', 'numpy', 'transformers', 'pydantic', 'httpx', 'numba', 'tqdm', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)), time.perf_counter() - begun)"
    )
    times = []
    for _ in range(3):
        found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
        heavy, seconds = found.stdout.rsplit(" ", 1)
        assert heavy == "[]"
        times.append(float(seconds))
    assert min(times) < 1.0  # 0.1 s where nothing else runs
