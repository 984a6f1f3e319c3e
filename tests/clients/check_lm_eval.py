"""lm-evaluation-harness over /v1/completions: three kinds of task; log-likelihoods against `radixlm score`.

The tasks are files that are written here. Tokens come from a folder, from the server's own tokenizer routes,
or stay text; requests go one by one, in batches, and several at once.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from typing import Any

from checks import KEY, MODEL, SCRATCH, TOKENIZER, V1, main, post, program, run_program

CLOSE = 1e-3
FOLDER = f"tokenizer_backend=huggingface,tokenizer={TOKENIZER}"
TASKS = SCRATCH / "tasks"
QUESTIONS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "Berlin"], "answer": 0},
    {"question": "The opposite of hot is", "choices": ["cold", "warm and humid", "red"], "answer": 0},
    {"question": "Two plus two is", "choices": ["five", "four", "twenty-two"], "answer": 1},
    {"question": "Water is made of hydrogen and", "choices": ["iron", "oxygen"], "answer": 1},
    {"question": "Der größte Planet heißt", "choices": ["Jupiter", "Erde", "der Mond ☾"], "answer": 0},
]
TEXTS = [
    "Paris is the capital and the largest city of France.",
    "Water boils at a hundred degrees.",
    "An evening in September, and nobody had yet lit the lamps in the street behind the station.",
]
_COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
num_fewshot: 0
output_type: {kind}
"""
_CHOICES = """
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
"""
_WRITING = """
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs:
  until: ["\\n", "."]
  max_gen_toks: 12
  do_sample: false
metric_list:
  - metric: exact_match
"""
_ROLLING = """
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
"""


def log_likelihoods_are_those_of_direct_scoring() -> None:
    _expect_scores(_alone()["radixlm_choices"])


def log_likelihoods_of_batches_are_the_same() -> None:
    found = _evaluate("batches", f"{FOLDER},num_concurrent=4", ["radixlm_choices"], "--batch_size", "4")
    _expect_scores(found["radixlm_choices"])


def the_servers_own_tokenizer_gives_the_same() -> None:
    arguments = f"tokenizer_backend=remote,auth_token={KEY},num_concurrent=4"
    _expect_scores(_evaluate("remote", arguments, ["radixlm_choices"])["radixlm_choices"])


def prompts_as_text_give_the_same() -> None:
    arguments = f"{FOLDER},tokenized_requests=False,num_concurrent=4"
    _expect_scores(_evaluate("text", arguments, ["radixlm_choices"])["radixlm_choices"])


def a_question_with_a_likely_answer_is_answered() -> None:
    written = {sample["doc"]["question"]: sample["resps"][0][0] for sample in _alone()["radixlm_writing"]}
    assert len(written) == len(QUESTIONS)
    assert "Paris" in written[QUESTIONS[0]["question"]], written
    assert all("." not in text and "\n" not in text for text in written.values()), written


def a_chat_answers_as_it_does_without_the_harness() -> None:
    more = ("--model", "local-chat-completions", "--apply_chat_template")
    found = _evaluate("chat", "num_concurrent=2", ["radixlm_writing"], *more, route="chat/completions")
    for sample in found["radixlm_writing"]:
        messages = [{"role": "user", "content": sample["doc"]["question"]}]
        asked = {"messages": messages, "temperature": 0, "max_tokens": 12, "stop": ["\n", "."]}
        answer = post("/v1/chat/completions", asked)["choices"][0]["message"]["content"]
        assert sample["resps"] == [[answer]], (sample["resps"], answer)


def whole_texts_have_the_log_likelihood_of_direct_scoring() -> None:
    found = {sample["doc"]["text"]: sample["resps"] for sample in _alone()["radixlm_rolling"]}
    for text, [score] in zip(TEXTS, _direct()[len(QUESTIONS) :], strict=True):
        [[[value]]] = [found[text]]
        assert abs(float(value) - score["logprob"]) < CLOSE, (text, value, score)


# -- parts -----------------------------------------------------------------------------------------


@cache
def _alone() -> dict[str, list[dict[str, Any]]]:
    """All tasks, one request after the other."""
    tasks = ["radixlm_choices", "radixlm_writing", "radixlm_rolling"]
    return _evaluate("alone", f"{FOLDER},num_concurrent=1", tasks)


def _evaluate(
    name: str, arguments: str, tasks: list[str], *more: str, route: str = "completions"
) -> dict[str, list[dict[str, Any]]]:
    """What the harness wrote down of each task's documents."""
    _write_tasks()
    out = SCRATCH / name
    model = f"model={MODEL},base_url={V1}/{route},max_length=2048,max_retries=1,{arguments}"
    words = [
        *("run", "--model", "local-completions", "--model_args", model, "--log_samples"),
        *("--include_path", str(TASKS), "--tasks", ",".join(tasks), "--output_path", str(out)),
        *more,
    ]
    run_program([program("lm_eval"), *words], OPENAI_API_KEY=KEY)
    found: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        [file] = out.rglob(f"samples_{task}_*.jsonl")
        found[task] = [json.loads(line) for line in file.read_text().splitlines()]
    return found


def _write_tasks() -> None:
    TASKS.mkdir(exist_ok=True)
    questions, texts = TASKS / "questions.json", TASKS / "texts.json"
    questions.write_text("\n".join(map(json.dumps, QUESTIONS)))
    texts.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    for name, kind, data, rest in (
        ("radixlm_choices", "multiple_choice", questions, _CHOICES),
        ("radixlm_writing", "generate_until", questions, _WRITING),
        ("radixlm_rolling", "loglikelihood_rolling", texts, _ROLLING),
    ):
        (TASKS / f"{name}.yaml").write_text(_COMMON.format(name=name, kind=kind, data=data) + rest)


def _expect_scores(samples: list[dict[str, Any]]) -> None:
    """That each choice has the log-likelihood of direct scoring, and is greedy where that says so."""
    found = {sample["doc"]["question"]: sample["resps"] for sample in samples}
    for question, scores in zip(QUESTIONS, _direct(), strict=False):
        answers = found[question["question"]]
        for choice, [[value, greedy]], score in zip(question["choices"], answers, scores, strict=True):
            told = (question["question"], choice, value, greedy, score)
            assert abs(float(value) - score["logprob"]) < CLOSE, told
            assert str(greedy) == str(score["is_greedy"]), told


@cache
def _direct() -> list[list[dict[str, Any]]]:
    """The scores of all choices of each question, then of each whole text."""
    items = [(_ids(question["question"]), _continuations(question)) for question in QUESTIONS]
    items += [([_tokenizer().bos_token_id], [_ids(text)]) for text in TEXTS]
    asked, told = SCRATCH / "asked.jsonl", SCRATCH / "told.jsonl"
    lines = [{"context_ids": context, "continuations": rest} for context, rest in items]
    asked.write_text("\n".join(map(json.dumps, lines)))
    run_program([os.environ["RADIXLM_COMMAND"], "score", "--prompts", str(asked), "--output", str(told)])
    return [json.loads(line)["continuations"] for line in told.read_text().splitlines()]


def _continuations(question: dict[str, Any]) -> list[list[int]]:
    context = _ids(question["question"])
    whole = [_ids(f"{question['question']} {choice}") for choice in question["choices"]]
    assert all(ids[: len(context)] == context for ids in whole), "no token crosses the border"
    return [ids[len(context) :] for ids in whole]


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


def _ids(text: str) -> list[int]:
    ids: list[int] = _tokenizer()(text, add_special_tokens=False).input_ids
    return ids


if __name__ == "__main__":
    main(sys.modules[__name__])
