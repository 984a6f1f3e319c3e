"""Few-shot scoring by log-likelihood, and whether numbers are right before anything is timed.

Log-probabilities are compared with transformers' in float32 first. A row that computes in float32 and is
further off than the gate, or any row that is plainly wrong, takes no part in a ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from field import OURS, Field, Line, label
from peers.base import Contender, Item, PeerFailed, Scored
from peers.child import Unavailable
from rows_generate import Setting
from workloads import Encode, gsm8k_windows, mmlu_prompts, shared_stem, with_tails

GATE, OURS_GATE, WRONG = 1e-3, 1e-4, 3.0
EVERY: Mapping[str, int] = {"transformers": 1, "vllm": 2}
"""A peer is asked the first question of every so many subjects; with nothing reused the rate is the same."""


def gate(setting: Setting, reference: Contender) -> None:
    """Continuations of some prompts, of one to three tokens, against transformers in float32."""
    field = setting.field
    stem = shared_stem(setting.encode, 64, 900)
    choices = tuple(tuple(setting.encode(text)) for text in (" A", " B", " the old", " in the harbour"))
    items = [Item(prompt, choices) for prompt in with_tails(setting.encode, stem, 6, seed=900)]
    with field.turn(reference):
        truth = reference.score(items).logprobs
    for contender in field.there:
        if contender is reference or not contender.scores:
            continue
        try:
            with field.turn(contender):
                found = contender.score(items).logprobs
        except (PeerFailed, Unavailable) as error:
            field.report.note(f"log-probabilities of {label(contender)}", f"cannot be told: {error}")
            continue
        _judge(field, contender, truth, found)


def _judge(
    field: Field,
    contender: Contender,
    truth: Sequence[Sequence[float]],
    found: Sequence[Sequence[float]],
) -> None:
    apart, mean = _apart(truth, found), _mean_apart(truth, found)
    name = f"log-probabilities of {label(contender)} apart from transformers'"
    if contender.name == "ours" and contender.exact:
        field.report.at_most(name, apart, OURS_GATE)
    else:
        field.report.note(name, f"at most {apart:.2g}, {mean:.2g} on average", apart)
    if not mean <= WRONG:
        field.wrong.add(label(contender))
        field.report.note(f"{label(contender)} is wrong", f"{mean:.2g} on average: in no ratio")
    elif contender.exact and apart > GATE:
        field.not_exact.add(label(contender))
        field.report.note(f"{label(contender)} is not exact", f"more than {GATE:g} apart: no exact row")


def scoring(setting: Setting, data: Path | None, *, subjects: int, questions: int) -> None:
    """MMLU, five shots, four choices, in file order: items a second.

    A peer's rate is that of its prompt tokens, over the mean length of all prompts: its own may be shorter.
    """
    field = setting.field
    if data is None:
        field.report.note("few-shot scoring", "not measured: it needs --data FOLDER")
        return
    items = mmlu_items(setting.encode, data, subjects, questions)
    line = field.line(f"MMLU 5-shot scoring, {len(items)} questions of four choices", "items/s")
    told: dict[str, Mapping[int, list[float]]] = {}
    computed: dict[str, list[int | None]] = {}

    mean = statistics.fmean(len(item.prompt) for item in items)

    def run(contender: Contender, repeat: int) -> None:
        places = list(range(len(items)))
        if contender.name in EVERY:
            places = places[:: questions * EVERY[contender.name]]
        if repeat < 0:
            places = places[:1]
        done: Scored = contender.score([items[i] for i in places])
        if repeat < 0:
            return
        asked = sum(len(items[i].prompt) for i in places)
        line.add(contender, asked / done.seconds / mean)
        told[label(contender)] = dict(zip(places, done.logprobs, strict=True))
        computed.setdefault(label(contender), []).append(done.computed_tokens)

    able = [c for c in field.there if c.name in (OURS, *EVERY) or label(c) == "openvino default"]
    able = [contender for contender in able if contender.scores]
    field.rounds(able, setting.sizes.repeats, run)
    _tell(field, line, told, computed, items)


def mmlu_items(encode: Encode, data: Path, subjects: int, questions: int) -> list[Item]:
    choices = tuple(tuple(encode(f" {letter}")) for letter in "ABCD")
    assert all(len(choice) == 1 for choice in choices), "a letter is a token"
    prompts = mmlu_prompts(encode, data, subjects=subjects, questions=questions)
    return [Item(prompt, choices) for prompt in prompts]


def _tell(
    field: Field,
    line: Line,
    told: Mapping[str, Mapping[int, list[float]]],
    computed: Mapping[str, Sequence[int | None]],
    items: Sequence[Item],
) -> None:
    field.report.keep(
        "scoring: tokens",
        prompt_tokens=sum(len(item.prompt) for item in items),
        computed=computed,
        questions={name: len(values) for name, values in told.items()},
    )
    truth = told.get("transformers float32")
    for name, values in told.items():
        if truth is None or name == "transformers float32":
            continue
        both = [i for i in values if i in truth]
        apart = _apart([truth[i] for i in both], [values[i] for i in both])
        text = f"{apart:.2g} over {len(both)} questions"
        if name == "ours float32":
            field.report.at_most(f"scoring: {name} apart from transformers'", apart, OURS_GATE)
        else:
            field.report.note(f"scoring: {name} apart from transformers'", text, apart)
    for name in ("transformers float32", "vllm float32"):
        mine, theirs = line.median("ours float32"), line.median(name)
        title = f"{line.name}: items/s of float32 over {name}"
        if mine is None or theirs is None:
            missing = "ours float32" if mine is None else name
            field.report.note(title, f"not measured, at least 4 x asked: no {missing}")
        else:
            field.speed(f"{title} ({theirs:.2f})", mine / theirs, 4.0)


def quality(setting: Setting, data: Path | None, *, windows: int, length: int) -> None:
    """What int8 costs: mean negative log-likelihood of a token of GSM8K, over that of float32."""
    field = setting.field
    if data is None:
        field.report.note("quality of int8", "not measured: it needs --data FOLDER")
        return
    texts = gsm8k_windows(setting.encode, data, windows=windows, length=length)
    items = [Item(text[:1], (text[1:],)) for text in texts]
    losses: dict[str, float] = {}
    for row in ("float32", "int8"):
        contender = field.ours(row)
        if contender is None:
            continue
        try:
            with field.turn(contender):
                found = contender.score(items).logprobs
        except (PeerFailed, Unavailable) as error:
            field.report.note(f"negative log-likelihood, ours {row}", f"not measured: {error}")
            continue
        losses[row] = -statistics.fmean(value for one in found for value in one) / (length - 1)
        name = f"negative log-likelihood of {windows} x {length} tokens of GSM8K, ours {row}"
        field.report.note(name, f"{losses[row]:.4f}", losses[row])
    title = "negative log-likelihood, int8 over float32"
    if len(losses) < 2:
        field.report.note(title, "not measured, at most 0.06 more asked; no speed of int8 counts without it")
        return
    worse = losses["int8"] - losses["float32"]
    field.report.at_most(title, worse, 0.06)
    if worse <= 0.06:
        field.unproven.discard("int8")
    else:
        field.wrong.add("ours int8")


def _mean_apart(truth: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    pairs = zip(truth, found, strict=True)
    return statistics.fmean(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))


def _apart(truth: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    pairs = zip(truth, found, strict=True)
    apart = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
    return math.inf if math.isnan(apart) else apart
