"""Programs: what the language costs above the engine, and what its hints are worth below it.

    python -P benchmarks/bench_programs.py --out benchmarks/results/bench_programs.json

Parts can be chosen with --only: forks, cancels, holds, overhead, throughput, select, programs. All of them
use the default model on this machine's CPU; `programs` runs every ready program on its built-in data.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from common import MODEL, ROOT, Report, command_line, interleave, ratio, say, seconds_of

import radixlm as rx
from radixlm.frontend.choices import METHODS, choose
from radixlm.frontend.loop import run_on_loop
from radixlm.frontend.protocol import ChoiceScore, GenerateCall, Sampling, ScoreCall, Scored
from radixlm.programs.shared.task import prepare
from radixlm.runtime.embedded import resolve_model
from testkit.exactness import load_gguf_reference

PARTS = ("forks", "cancels", "holds", "overhead", "throughput", "select", "programs")
STORY = "the river ran past the old mill and the children watched boats in the morning sun"
WORDS = STORY.split()


def text_of_tokens(engine: rx.Engine, count: int, seed: int) -> str:
    """English-looking text of so many tokens."""
    words = [WORDS[(seed * 7 + i * i + i // 3) % len(WORDS)] for i in range(2 * count)]
    ids = engine.tokenizer.encode(f"Story {seed}: " + " ".join(words))[:count]
    return engine.tokenizer.decode(ids)


@contextlib.contextmanager
def opened(report: Report, **options: Any) -> Iterator[rx.Engine]:  # Any: options of an engine
    with rx.Engine(MODEL, threads=report.options.threads, **options) as engine:
        engine.warm_up()
        yield engine


# -- forks -----------------------------------------------------------------------------------------


@rx.function
def branches(s, text, count, length):  # type: ignore[no-untyped-def]
    s += text
    group = s.fork(count)
    group += rx.gen("out", max_tokens=length, ignore_eos=True, temperature=0.7)
    group.join()
    return s["out"]


def forks(report: Report) -> None:
    repeats = 3 if report.options.quick else 9
    with opened(report) as engine:
        warm = text_of_tokens(engine, 1000, 0)
        branches.run(warm, 1, 1, backend=engine)
        places = iter(range(1, 10_000))
        cold = lambda: text_of_tokens(engine, 1000, next(places))  # noqa: E731

        def run(text: str, count: int) -> float:
            return seconds_of(lambda: branches.run(text, count, 32, backend=engine))

        runs = interleave(
            repeats,
            one_warm=lambda: run(warm, 1),
            eight_warm=lambda: run(warm, 8),
            one_cold=lambda: run(cold(), 1),
            eight_cold=lambda: run(cold(), 8),
        )
    report.keep("forks", seconds=runs)
    what = "fork of 8 over 1,000 tokens, 32 tokens each, over one branch"
    report.at_most(f"{what}, state to be read first", ratio(runs, "eight_cold", "one_cold"), 1.6)
    report.at_most(f"{what}, state in the cache", ratio(runs, "eight_warm", "one_warm"), 1.6)


# -- cancels ---------------------------------------------------------------------------------------


@rx.function
def race(s, text):  # type: ignore[no-untyped-def]
    s += text
    group = s.fork(8)
    group += [rx.gen("out", max_tokens=4 if i == 3 else 2000, ignore_eos=True) for i in range(8)]
    group.join("first").wait()


def cancels(report: Report) -> None:
    """Steps between the end of a `first` join and the release of what the others held."""
    found = []
    with opened(report) as engine:
        backend: Any = engine.endpoint
        for seed in range(3 if report.options.quick else 20):
            race.run(text_of_tokens(engine, 200, seed), backend=engine)
            look = lambda: (engine.stats().steps, engine.cache.leased_pages)  # noqa: E731
            first = backend.call(look)
            steps, leased = first
            while leased:
                steps, leased = backend.call(look)
            found.append(steps - first[0])
        held = backend.call(lambda: engine.cache.stats())
    report.keep("cancels", steps=found, after=str(held))
    report.at_most("steps until the pages of cancelled branches are free, most of all", max(found), 2)


# -- holds -----------------------------------------------------------------------------------------

POOL, BUDGET = 128, 0.5


@rx.function
async def agent(s, text, held, pause, noise):  # type: ignore[no-untyped-def]
    s += text
    s += rx.gen("plan", max_tokens=16, ignore_eos=True, temperature=0)
    await s.var("plan")
    if held:
        async with s.hold(60.0) as hold:
            await noise(pause)
        s.set_var("granted", hold.tokens)
    else:
        await noise(pause)
    s += " The tool answers: 42." + rx.gen("answer", max_tokens=8, ignore_eos=True, temperature=0)
    await s.var("answer")


def holds(report: Report) -> None:
    """An agent whose tool takes 2 s, beside traffic that goes through a small pool several times."""
    pause = 2.0
    shares: dict[bool, list[float]] = {False: [], True: []}
    answers: dict[bool, list[object]] = {False: [], True: []}
    most_held = 0
    with opened(report, num_pages=POOL, hold_budget=BUDGET) as engine:
        backend: Any = engine.endpoint

        async def noise(seconds: float) -> None:
            nonlocal most_held
            until, seed = monotonic() + seconds, 1000
            while monotonic() < until or seed < 1012:  # 12 texts of 19 pages are nearly two pools
                texts = [text_of_tokens(engine, 300, seed := seed + 1) for _ in range(4)]
                # Without a hint, as from anyone: of programs that are over, pages go before the agent's.
                calls = [GenerateCall((text,), Sampling(max_new_tokens=4)) for text in texts]
                await asyncio.gather(*(asyncio.wrap_future(run_on_loop(backend.generate(c))) for c in calls))
                pages = backend.call(lambda: engine.cache.stats().held_pages)
                most_held = max(most_held, pages)

        for round_ in range(2 if report.options.quick else 5):
            for held in (False, True):
                text = text_of_tokens(engine, 800, round_)
                state = agent.run(text, held, pause, noise, backend=engine)
                call = state.cache_report().calls[-1]
                shares[held].append(1 - call.reused / call.prompted)
                answers[held].append(state["answer"])
        asked, granted = 12, 0
        for seed in range(asked):  # each would keep 50 pages, of 64 that may be kept
            pinned = pin.run(text_of_tokens(engine, 800, 50 + seed), backend=engine)
            granted += bool(pinned["tokens"])
            pages = backend.call(lambda: engine.cache.stats().held_pages)
            most_held = max(most_held, pages)
    report.keep("holds", recomputed_without=shares[False], recomputed_with=shares[True], granted=granted)
    report.at_most("recomputed after a pause of 2 s, with a hold", max(shares[True]), 0.05, "%")
    report.at_least("recomputed without one", min(shares[False]), 0.5, "%")
    report.equal(
        "answers with and without a hold that differ",
        sum(a != b for a, b in zip(*answers.values(), strict=True)),
        0,
    )
    report.at_most(f"pages held at most, of {POOL} with a budget of {BUDGET:.0%}", most_held, POOL * BUDGET)
    report.note(f"holds of 50 pages granted, of {asked} asked for", str(granted), granted)


@rx.function
def pin(s, text):  # type: ignore[no-untyped-def]
    s += text
    s.set_var("tokens", s.pin(30.0))


# -- overhead and throughput -----------------------------------------------------------------------


@rx.function
def small(s, i):  # type: ignore[no-untyped-def]
    s += f"Item {i}: say something." + rx.gen("out", max_tokens=8)


@rx.function
async def small_async(s, i):  # type: ignore[no-untyped-def]
    s += f"Item {i}: say something." + rx.gen("out", max_tokens=8)
    await s.var("out")


def overhead(report: Report) -> None:
    """1,000 programs of one call on a backend that answers at once: all of it is the language."""
    count = 200 if report.options.quick else 1000
    items = [{"i": i} for i in range(count)]
    backend = rx.Scripted(replies="fine")

    def run(program: Any) -> float:  # Any: a Program, whose calls have no types
        states = program.run_batch(items, backend=backend)
        assert all(state.error() is None and state["out"] == "fine" for state in states), "each item is done"
        return 0.0

    runs = interleave(
        3 if report.options.quick else 7,
        plain=lambda: seconds_of(lambda: run(small)) / count,
        async_=lambda: seconds_of(lambda: run(small_async)) / count,
    )
    report.keep("overhead", seconds=runs)
    for name, word in (("plain", "plain bodies"), ("async_", "async bodies")):
        report.at_most(
            f"a call of {count:,} programs in one batch, {word}",
            1000 * sorted(runs[name])[len(runs[name]) // 2],
            2.0,
            "ms",
        )


@rx.function
def item(s, shared, question, length):  # type: ignore[no-untyped-def]
    s += shared + question
    s += rx.gen("out", max_tokens=length, ignore_eos=True, temperature=0)


def throughput(report: Report) -> None:
    count, length = (32, 16) if report.options.quick else (200, 32)
    with opened(report) as engine:
        backend: Any = engine.endpoint
        shared = text_of_tokens(engine, 400, 0)
        questions = [" Question: " + text_of_tokens(engine, 30, 100 + i) for i in range(count)]
        sampling = rx.SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.0)
        texts: dict[str, list[object]] = {}

        def direct() -> None:
            found = engine.generate([shared + question for question in questions], sampling)
            texts["direct"] = [each.text for each in found]

        def batch() -> None:
            items = [{"shared": shared, "question": question, "length": length} for question in questions]
            states = item.run_batch(items, backend=engine)
            texts["batch"] = [state["out"] for state in states]

        def timed(run: Any) -> float:
            backend.call(engine.flush)
            return seconds_of(run)

        runs = interleave(
            2 if report.options.quick else 5, direct=lambda: timed(direct), batch=lambda: timed(batch)
        )
    report.keep("throughput", seconds=runs)
    differ = sum(a != b for a, b in zip(texts["direct"], texts["batch"], strict=True))
    report.at_least(
        "throughput of run_batch over the engine's own generate", ratio(runs, "direct", "batch"), 0.9, "%"
    )
    report.equal(f"of {count} texts of both, those that differ", differ, 0)


# -- select ----------------------------------------------------------------------------------------

PROMPTS = (
    ("The capital of France is", (" Paris", " London", " Rome", " the city of Paris")),
    ("The capital of France is ", ("Paris", "London", "Rome")),  # the space merges with the choice
    ("1 + 1 = ", ("2", "3", "11", "22")),
    ("unbeliev", ("able", "er", "ing")),  # inside a word
    ("I like ca", ("ts", "rs", "kes", "tsup and cats")),
    ("x", ("y", "xx", " y")),  # one token
    ("Emoji: \U0001f600", ("\U0001f601", "\U0001f602", "!")),
    ("Tokio heisst ", ("東京", "京都", "Tokyo")),
)


@rx.function
def chosen(s, prompt, choices, method):  # type: ignore[no-untyped-def]
    s += prompt
    s += rx.select("choice", choices, choices_method=method)


def select(report: Report) -> None:
    """Every method against log-probabilities that a plain forward pass of transformers gives."""
    model = load_gguf_reference(resolve_model(MODEL))

    def direct(before: list[int], ids: list[int]) -> tuple[float, ...]:
        """The log-probabilities of `ids` after `before`."""
        with torch.inference_mode():
            found = model(torch.tensor([[*before, *ids]])).logits[0].log_softmax(-1)
        return tuple(float(found[len(before) + i - 1, token]) for i, token in enumerate(ids))

    problems: list[str] = []
    wrong: list[str] = []
    worst, compared = 0.0, 0
    with opened(report) as engine:
        encode, nothing = engine.tokenizer.encode, [engine.tokenizer.bos_id]
        for prompt, choices in PROMPTS:
            wholes = [encode(prompt + choice) for choice in choices]
            border = min(common(encode(prompt), whole) for whole in wholes)
            expected = [
                ChoiceScore(
                    tuple(whole[border:]),
                    direct(whole[:border] or nothing, whole[border:]),
                    direct(nothing, whole[border:]),
                )
                for whole in wholes
            ]
            scored = run_on_loop(engine.endpoint.score(ScoreCall((prompt,), choices, unconditional=True)))
            for ours, theirs in zip(scored.result().choices, expected, strict=True):
                numbers = zip(
                    (*ours.logprobs, *ours.unconditional),
                    (*theirs.logprobs, *theirs.unconditional),
                    strict=True,
                )
                off = max(abs(a - b) for a, b in numbers)
                worst, compared = max(worst, off), compared + 1
                if off > 1e-4 or ours.token_ids != theirs.token_ids:
                    problems.append(f"{prompt!r}: {ours} is not {theirs}")
            for name, method in METHODS.items():
                state = chosen.run(prompt, choices, name, backend=engine)
                best = choose(method, choices, Scored(tuple(expected))).text
                if state["choice"] != best:
                    wrong.append(f"{name} after {prompt!r}: {state['choice']!r} is not {best!r}")
    report.keep("select", worst=worst)
    report.holds("scores of choices as a plain forward pass has them, to 1e-4", problems, compared)
    report.holds("selections as these numbers have them, by every method", wrong, len(PROMPTS) * len(METHODS))
    report.note("largest difference of a log-probability", f"{worst:.1e}", worst)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- programs --------------------------------------------------------------------------------------


def programs(report: Report) -> None:
    """Each ready program on its built-in data, of what a cache that never forgets would find."""
    names = sorted(path.stem for path in (ROOT / "programs").glob("*.py") if path.stem != "__init__")
    for name in names:
        with opened(report) as engine:
            figures = prepare(name, n=3 if report.options.quick else None).on(engine.endpoint)
        report.keep(
            name,
            tokens=figures.tokens,
            shares=figures.shares,
            means=figures.means,
            seconds=figures.seconds,
            failed=len(figures.failed),
        )
        say(figures.text())
        share = figures.reuse_of_optimal
        assert share is not None, "an engine of this process counts its tokens"
        report.at_least(f"{name}: reuse of optimal", share, 0.96, "%")
        report.equal(f"{name}: items that failed", len(figures.failed), 0)


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it runs")
    options = parser.parse_args()
    report = Report("bench_programs", options)
    parts = {
        "forks": forks,
        "cancels": cancels,
        "holds": holds,
        "overhead": overhead,
        "throughput": throughput,
        "select": select,
        "programs": programs,
    }
    for name in options.only:
        say(f"{name}")
        parts[name](report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
