"""Workloads of generation: a long shared prefix, nothing shared, one stream, prompts, a chat.

Every repeat has texts of its own, so that a cold cache is one that has never seen them, and a warm one has
seen the shared part and not the private one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from field import Field, Line, label
from machine import Roofline
from peers.base import Contender, Run
from workloads import Encode, Ids, ids, shared_stem, unique_prompts, with_tails


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is run. A quick run shows that everything works and nothing about speed."""

    repeats: int
    shared: int = 1063
    private: int = 20
    tokens: int = 64
    requests: int = 32
    at_once: int = 16
    turns: int = 8


QUICK = {"shared": 96, "tokens": 8, "requests": 6, "at_once": 3, "turns": 3}


@dataclass(frozen=True, slots=True)
class Setting:
    """What every workload needs."""

    field: Field
    encode: Encode
    sizes: Sizes
    roofline: Roofline | None


def shared_prefix(setting: Setting) -> None:
    """Requests that begin with the same long text, in two widths, warm; and once cold, which takes those who
    share nothing between requests that run at once minutes."""
    field, encode, sizes = setting.field, setting.encode, setting.sizes
    half = sizes.tokens // 2
    many = f"{sizes.requests} requests x {half}, {sizes.at_once} at a time"
    few = f"{sizes.at_once} requests x {sizes.tokens}"
    cold = field.line(f"{sizes.at_once} requests x {half}, {sizes.shared:,} shared, cache cold")
    warm = field.line(f"{many}, {sizes.shared:,} shared, cache warm")
    wide = field.line(f"{few}, {sizes.shared:,} shared, cache warm")
    for line, tokens in ((warm, half), (wide, sizes.tokens)):
        _bound(setting, line, sizes.at_once, sizes.shared, sizes.private + tokens / 2)

    seen, warm_up = shared_stem(encode, sizes.shared, 0), shared_stem(encode, sizes.shared, 1)

    def run(contender: Contender, repeat: int) -> None:
        stem = warm_up if repeat < 0 else seen

        def batch(count: int, tokens: int, seed: int) -> float:
            prompts = with_tails(encode, stem, count, private=sizes.private, seed=seed)
            return count * tokens / contender.generate(prompts, tokens, sizes.at_once).seconds

        if repeat < 0:
            batch(2 if contender.reuses else 1, 2, 0)
            return
        if repeat == 0 and contender.reuses:
            cold.add(contender, batch(sizes.at_once, half, 1))
        warm.add(contender, batch(sizes.requests, half, 10 * repeat + 2))
        wide.add(contender, batch(sizes.at_once, sizes.tokens, 10 * repeat + 3))

    field.rounds(field.there, sizes.repeats, run)
    field.over_best(warm, "int8", 2.0, exact=False)
    field.over_best(wide, "int8", 1.3, exact=False)
    field.over_best(warm, "float32", 1.5, exact=True)
    field.over_best(wide, "float32", 1.5, exact=True)


def nothing_shared(setting: Setting) -> None:
    """As many requests at once that have nothing in common; the tokens of all contenders are compared."""
    field, sizes = setting.field, setting.sizes
    line = field.line(f"{sizes.at_once} requests x {sizes.tokens}, nothing shared")
    _bound(setting, line, sizes.at_once, 0, sizes.private + sizes.tokens / 2)
    outputs: dict[str, list[list[int]]] = {}

    def run(contender: Contender, repeat: int) -> None:
        prompts = unique_prompts(setting.encode, sizes.at_once, sizes.private, seed=100 + repeat)
        done = contender.generate(prompts, sizes.tokens if repeat >= 0 else 4, sizes.at_once)
        if repeat >= 0:
            line.add(contender, _amount(done) / done.seconds)
        if repeat == 0:
            outputs[label(contender)] = done.outputs

    field.rounds(field.there, sizes.repeats, run)
    _compare(setting, outputs)
    field.over_best(line, "int8", 1.2, exact=False)
    field.over_best(line, "float32", 1.2, exact=True)


def one_stream(setting: Setting) -> None:
    """One request at a time after a short prompt."""
    field, sizes = setting.field, setting.sizes
    line = field.line(f"one stream, prompt of 24, {sizes.tokens} generated")
    _bound(setting, line, 1, 0, 24 + sizes.tokens / 2)

    def run(contender: Contender, repeat: int) -> None:
        prompt = ids(setting.encode, 24, random.Random(200 + repeat))
        done = contender.generate([prompt], sizes.tokens if repeat >= 0 else 8, 1)
        if repeat >= 0:
            line.add(contender, _amount(done) / done.seconds)

    field.rounds(field.there, sizes.repeats, run)
    field.over_best(line, "int8", 0.5, exact=False)
    field.over_best(line, "float32", 1.0, exact=True)


def prompt_processing(setting: Setting) -> None:
    """A prompt that nobody has seen, up to its first token."""
    field, sizes = setting.field, setting.sizes
    line = field.line(f"prompt processing, {sizes.shared:,} tokens")
    if setting.roofline is not None:
        line.bounds = {
            row: sizes.shared / setting.roofline.prompt(sizes.shared, row) for row in ("float32", "int8")
        }

    def run(contender: Contender, repeat: int) -> None:
        prompt = ids(setting.encode, sizes.shared, random.Random(300 + repeat))
        done = contender.generate([prompt], 1, 1)
        if repeat >= 0:
            line.add(contender, len(prompt) / done.seconds)

    field.rounds(field.there, sizes.repeats, run)


def chat(setting: Setting) -> None:
    """Turn after turn of one conversation; everybody goes on from what they said themselves."""
    field, encode, sizes = setting.field, setting.encode, setting.sizes
    tokens = sizes.tokens // 4
    name = f"chat, {sizes.turns} turns of 60 tokens and {tokens} generated"
    first = field.line(f"{name}: first token of later turns", "ms")
    speed = field.line(f"{name}: generated over wall")
    by_turn: dict[str, list[list[float]]] = {}

    def run(contender: Contender, repeat: int) -> None:
        told: Ids = ()
        waits: list[float] = []
        seconds = 0.0
        for turn in range(sizes.turns if repeat >= 0 else 1):
            told += _turn(encode, 400 + 50 * repeat + turn, begins=turn == 0)
            done = contender.stream(told, tokens)
            told += tuple(done.output)
            waits.append(1000 * done.first_s)
            seconds += done.seconds
        if repeat >= 0:
            first.add(contender, sum(waits[1:]) / len(waits[1:]))
            speed.add(contender, sizes.turns * tokens / seconds)
            by_turn.setdefault(label(contender), []).append(waits)

    able = [contender for contender in field.there if "continuous" not in contender.row]
    field.rounds(able, sizes.repeats, run)
    field.report.keep("chat, milliseconds to the first token by turn", repeats=by_turn)


def _turn(encode: Encode, seed: int, *, begins: bool) -> Ids:
    said = ids(encode, 60, random.Random(seed))
    opening = ids(encode, 200, random.Random(1)) if begins else tuple(encode("<|im_end|>\n"))
    return (*opening, *encode("<|im_start|>user\n"), *said, *encode("<|im_end|>\n<|im_start|>assistant\n"))


def _bound(setting: Setting, line: Line, rows: int, shared: int, private: float) -> None:
    """What the machine could decode at most, prompts not counted."""
    if setting.roofline is not None:
        for row in ("float32", "int8"):
            line.bounds[row] = rows / setting.roofline.step(rows, shared, private, row)


def _amount(done: Run) -> int:
    return sum(map(len, done.outputs))


def _compare(setting: Setting, outputs: dict[str, list[list[int]]]) -> None:
    """Share of tokens equal to the float32 ones. Fewer than a fifth of the first tokens: a row is wrong."""
    field = setting.field
    truth = next((name for name in ("transformers float32", "ours float32") if name in outputs), None)
    if truth is None:
        return
    for name, rows in outputs.items():
        if name == truth:
            continue
        pairs = list(zip(outputs[truth], rows, strict=True))
        share = sum(_common(a, b) / len(a) for a, b in pairs) / len(pairs)
        first = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
        text = f"{100 * share:.0f} % until the first other one; first tokens {100 * first:.0f} %"
        field.report.note(f"tokens equal to {truth}'s: {name}", text, share)
        if first < 0.2:
            field.wrong.add(name)
            field.report.note(f"{name} is wrong", "its tokens are not those of the model: in no ratio")


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


WORKLOADS: dict[str, Callable[[Setting], None]] = {
    "shared": shared_prefix,
    "unique": nothing_shared,
    "stream": one_stream,
    "prefill": prompt_processing,
    "chat": chat,
}
