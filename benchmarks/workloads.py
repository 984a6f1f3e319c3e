"""Prompts made in code: plain sentences from word lists, the same for a seed, and few-shot questions of MMLU.

All are token ids, so that both sides of a comparison get the same ones. `encode` is a tokenizer's. What is
not made here lies in a folder of data sets: MMLU's `*_dev.csv` and `*_test.csv` in it or in `mmlu/`, GSM8K's
`test.jsonl` in `gsm8k/`.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

Encode = Callable[[str], list[int]]
Ids = tuple[int, ...]

_WHO = (
    "the gardener|a young engineer|our neighbour|the ferry captain|an old teacher|the night nurse|my sister|"
    "the baker|a travelling musician|the librarian|the bicycle courier|a retired judge|the beekeeper|"
    "the radio operator|a student of geology|the tailor"
)
_DID = (
    "repaired|described|painted|counted|borrowed|measured|forgot|explained|carried|photographed|sold|"
    "collected|watched|rebuilt|sketched|translated"
)
_WHAT = (
    "the broken clock|seven wooden chairs|a map of the coast|the letters from abroad|an electric motor|"
    "the apple harvest|a set of brass weights|the new timetable|three chapters of the manual|a stone bridge|"
    "the water meter|a handful of seeds|the minutes of the meeting|an unusual recipe|the glass roof|"
    "a column of figures"
)
_WHERE = (
    "behind the station|in the harbour|on the second floor|near the old mill|at the edge of the village|"
    "under the railway arch|beside the river|in a small workshop|across the square|above the bakery"
)
_WHEN = (
    "before sunrise|late in October|after the storm|during the lunch break|every other Friday|"
    "while it was snowing|a week later|towards the end of the year|as soon as the rain stopped|that evening"
)
_WHY = (
    "because nobody else had the time|so that the work could go on|although it was hardly worth the trouble|"
    "and wrote the result into a blue notebook|which surprised everyone in the room|"
    "and asked for nothing in return|to see whether the numbers would agree|for the third time that month"
)
_PARTS = [part.split("|") for part in (_WHEN, _WHO, _DID, _WHAT, _WHERE, _WHY)]


def text(rng: random.Random, sentences: int) -> str:
    """Sentences that read like prose and hardly ever repeat."""
    made = []
    for _ in range(sentences):
        when, who, did, what, where, why = (rng.choice(part) for part in _PARTS)
        order = rng.randrange(3)
        if order == 0:
            line = f"{when}, {who} {did} {what} {where}, {why}"
        elif order == 1:
            line = f"{who} {did} {what} {where} {when}, {why}"
        else:
            line = f"{where}, {who} {did} {what} {when}, {why}"
        made.append(line[0].upper() + line[1:] + ".")
    return " ".join(made)


def ids(encode: Encode, count: int, rng: random.Random) -> Ids:
    """`count` token ids of such text."""
    found = encode(text(rng, count // 16 + 4))
    while len(found) < count:
        found += encode(" " + text(rng, 8))
    return tuple(found[:count])


def shared_prompts(
    encode: Encode, count: int, *, shared: int = 1063, private: int = 20, seed: int = 0
) -> list[Ids]:
    """Prompts with exactly `shared` tokens in common and `private`, a fifth more or less, of their own."""
    rng = random.Random(seed)
    stem = ids(encode, shared, rng)
    spread = private // 5
    return [stem + own for own in _unlike(encode, count, private - spread, private + spread, rng)]


def shared_stem(encode: Encode, length: int, seed: int) -> Ids:
    """What many prompts have in common; another one for another seed."""
    return ids(encode, length, random.Random(1000 + seed))


def with_tails(encode: Encode, stem: Ids, count: int, *, private: int = 20, seed: int = 0) -> list[Ids]:
    """`stem` with `private` tokens, a fifth more or less, behind it, which no two prompts begin alike."""
    spread = private // 5
    return [
        stem + own for own in _unlike(encode, count, private - spread, private + spread, random.Random(seed))
    ]


def unique_prompts(encode: Encode, count: int, length: int, *, seed: int = 0) -> list[Ids]:
    """Prompts of `length` tokens that have not even the first one in common."""
    return _unlike(encode, count, length, length, random.Random(seed))


def _unlike(encode: Encode, count: int, least: int, most: int, rng: random.Random) -> list[Ids]:
    """Texts cut to least..most tokens, each with another first token."""
    made: list[Ids] = []
    firsts: set[int] = set()
    while len(made) < count:
        length = rng.randint(least, most)
        skip = rng.randrange(12)  # begin anywhere in a sentence: there are more tokens to begin with
        one = ids(encode, length + skip, rng)[skip:]
        if one[0] not in firsts:
            firsts.add(one[0])
            made.append(one)
    return made


def exact_prompts(encode: Encode, chat: Callable[[list[dict[str, str]]], list[int]], count: int) -> list[Ids]:
    """At most 32 prompts of 4 to 600 tokens: plain and chat, alone, sharing a prefix, forking inside a page.

    Any first few hold some of each kind.
    """
    rng = random.Random(7)
    stem, fork = ids(encode, 260, rng), ids(encode, 190, rng)
    system = "You are a careful assistant. Answer in one or two short sentences."
    questions = (
        "Why is the sky blue?",
        "Give me a name for a cat.",
        "What is 17 plus 26?",
        "Translate 'good evening' into French.",
        "Who wrote Faust?",
        "How do I boil an egg?",
        "Which planet has rings?",
        "Write a line about autumn.",
    )
    cuts = (5, 21, 37, 53, 70, 101, 140, 187)
    groups = (
        [ids(encode, length, rng) for length in (4, 9, 17, 33, 64, 150, 301, 600)],
        [stem + own for own in _unlike(encode, 8, 3, 30, rng)],
        [fork[:cut] + own for cut, own in zip(cuts, _unlike(encode, 8, 4, 20, rng), strict=True)],
        [
            tuple(chat([{"role": "system", "content": system}, {"role": "user", "content": question}]))
            for question in questions
        ],
    )
    return [prompt for some in zip(*groups, strict=True) for prompt in some][:count]


def mmlu_prompts(encode: Encode, folder: Path, *, subjects: int = 16, questions: int = 25) -> list[Ids]:
    """5-shot questions in file order: subject after subject, the first `questions` of each."""
    folder = folder / "mmlu" if (folder / "mmlu").is_dir() else folder
    made: list[Ids] = []
    for dev in sorted(folder.glob("*_dev.csv"))[:subjects]:
        subject = dev.name.removesuffix("_dev.csv")
        shots = "".join(_question(row, solved=True) for row in _rows(dev)[:5])
        head = f"The following are multiple choice questions (with answers) about {_words(subject)}.\n\n"
        for row in _rows(folder / f"{subject}_test.csv")[:questions]:
            made.append(tuple(encode(head + shots + _question(row, solved=False))))
    if not made:
        raise SystemExit(f"{folder} holds no *_dev.csv and *_test.csv")
    return made


def gsm8k_windows(encode: Encode, folder: Path, *, windows: int = 4, length: int = 512) -> list[Ids]:
    """Solved problems in file order as one text, cut into windows."""
    path = folder / "gsm8k" / "test.jsonl"
    if not path.is_file():
        raise SystemExit(f"{folder} holds no gsm8k/test.jsonl")
    found: list[int] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            found += encode(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n")
            if len(found) >= windows * length:
                break
    return [tuple(found[i * length : (i + 1) * length]) for i in range(windows)]


def _rows(path: Path) -> list[list[str]]:
    """The rows below the header: question, four choices, index of the right one."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


def _question(row: Sequence[str], *, solved: bool) -> str:
    question, *choices, answer = row
    lines = [question, *(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True))]
    return "\n".join([*lines, f"Answer: {'ABCD'[int(answer)]}\n\n" if solved else "Answer:"])


def _words(subject: str) -> str:
    return subject.replace("_", " ")
