"""Grammars inside the engine, on the default model: texts that validate, steps saved, masks beside the step,
and what others notice of hostile input."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import jsonschema
from common import Report, say
from engine_runs import open_engine

from radixlm.runtime.engine import Engine
from radixlm.runtime.guide import Guide
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Completion, Request
from radixlm.runtime.worker import EngineThread

HOSTILE = (
    {"regex": r"(a|b|ab)*c{900}\w{900}"},
    {"regex": r"(\w{1,60}@\w{1,60}\.){1,20}"},
    {"json_schema": {"type": "string", "pattern": r"^(a+)+\w{400}$"}},
    {"json_schema": {"enum": [f"{i:08d}" for i in range(15_000)]}},
    {"grammar": "start: " + " | ".join(f'"{i}" start' for i in range(3_000))},
    {"choice": [f"{i:x}" * 3 for i in range(15_000)]},
)
"""Each within the limits of size, and dear to compile."""
FIRST = ({"regex": "[ab]+"}, {"json_schema": {"not": {"required": ["a"]}}}, {"json_schema": {}})
"""One for each way of compiling, so that engines and processes are there."""


def schemas_of(data: Path, families: Sequence[str], most: int) -> list[object]:
    """Schemas of the sample whose file names begin so, in the order of their names."""
    names = [p for p in sorted(data.iterdir()) if p.name.startswith(tuple(families))]
    return [json.loads(path.read_text())["schema"] for path in names[:most]]


def json_texts(report: Report, data: Path, count: int) -> None:
    """Texts for schemas of the sample, sampled and greedy, until `count` have ended: they parse and validate.
    A small model may go on within a list or a text without an end; such texts are cut and counted apart."""
    schemas = schemas_of(data, ("BFCL", "Glaive", "Github_trivial"), count)
    prompts = [f"Write a JSON object for this schema: {json.dumps(schema)[:600]}\n" for schema in schemas]
    problems: list[str] = []
    ended = cut = seed = 0
    with open_engine(report.options.threads, max_running=32) as engine:
        while ended < count and seed < 5 * count:
            asked = schemas[: count - ended]
            params = [
                SamplingParams(
                    json_schema=schema,
                    relaxed=True,
                    max_tokens=400,
                    temperature=0.7 * ((seed + i) % 2),
                    seed=seed + i,
                )
                for i, schema in enumerate(asked)
            ]
            done = engine.generate(prompts[: len(asked)], params)
            for schema, completion in zip(asked, done, strict=True):
                cut += completion.finish_reason == "length"
                if completion.finish_reason != "length":
                    ended += 1
                    problems += _wrong(completion, schema)
            seed += len(params) + 1
    report.keep("JSON texts", ended=ended, cut=cut)
    report.holds("JSON texts of the model that ended, parsed and validated", problems, ended)
    report.note("JSON texts cut at 400 tokens beside them", f"{cut}")


def _wrong(completion: Completion, schema: object) -> list[str]:
    if completion.finish_reason != "stop":
        return [f"{completion.id}: {completion.error}"]
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(completion.text))
    except (ValueError, jsonschema.ValidationError) as error:
        return [f"{completion.id}: {str(error)[:200]}: {completion.text[:200]}"]
    return []


def jump_forward(report: Report, data: Path, most: int) -> None:
    """Compact tool calls, greedy: the same texts with forced tokens appended at once and one by one, and the
    steps that saves."""
    schemas = schemas_of(data, ("BFCL",), most)
    prompts = [f"Call the tool with arguments for: {json.dumps(schema)[:500]}\n" for schema in schemas]
    params = [
        SamplingParams(json_schema=schema, compact=True, relaxed=True, max_tokens=300, temperature=0.0)
        for schema in schemas
    ]
    with open_engine(report.options.threads, max_running=1) as engine:
        jumped, steps = _one_by_one(engine, prompts, params)
        with _no_forced_tokens():
            plain, plain_steps = _one_by_one(engine, prompts, params)
    differ = [
        f"{a.text[:300]!r} and {b.text[:300]!r}"
        for a, b in zip(jumped, plain, strict=True)
        if a.text != b.text
    ]
    forced = sum(completion.forced_tokens for completion in jumped)
    tokens = sum(completion.completion_tokens for completion in jumped)
    report.keep("forced tokens", steps=steps, plain_steps=plain_steps, forced=forced, tokens=tokens)
    report.holds("greedy texts with and without forced tokens are equal", differ, len(jumped))
    report.at_least("steps saved by forced tokens, compact tool calls", 1 - steps / plain_steps, 0.10, "%")
    same = sum(a.output_ids == b.output_ids for a, b in zip(jumped, plain, strict=True))
    report.at_least("token ids that are the same without", same / len(jumped), 0.99, "%")


def _one_by_one(
    engine: Engine, prompts: Sequence[str], params: Sequence[SamplingParams]
) -> tuple[list[Completion], int]:
    engine.flush()
    before = engine.stats().steps
    done = [engine.generate(prompt, each)[0] for prompt, each in zip(prompts, params, strict=True)]
    return done, engine.stats().steps - before


@contextmanager
def _no_forced_tokens() -> Iterator[None]:
    forced = Guide.forced
    Guide.forced = lambda *_, **__: []  # type: ignore[method-assign]
    try:
        yield
    finally:
        Guide.forced = forced  # type: ignore[method-assign]


def masks_beside_the_step(report: Report, data: Path) -> None:
    """32 rows with a schema each, and the same rows without: what grammars add to a step."""
    schemas = schemas_of(data, ("BFCL", "Glaive"), 32)
    prompts = [
        f"Question {i}: describe a person with a name, an age and friends as JSON.\n" for i in range(32)
    ]
    plain = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    guided = [
        SamplingParams(json_schema=schema, relaxed=True, max_tokens=64, temperature=0.0) for schema in schemas
    ]
    shares, waits, added = [], [], []
    with open_engine(report.options.threads, max_running=32) as engine:
        engine.generate(prompts, guided)
        for _ in range(1 if report.options.quick else 5):
            times = []
            for params in (plain, guided):
                engine.flush()
                before = engine.stats()
                engine.generate(prompts, params)
                after = engine.stats()
                times.append((after.wall_s - before.wall_s) / (after.steps - before.steps))
                shares.append((after.mask_s - before.mask_s) / (after.wall_s - before.wall_s))
                waits.append((after.mask_wait_s - before.mask_wait_s) / (after.wall_s - before.wall_s))
            added.append(times[1] / times[0])
    report.keep("masks of 32 rows", shares=shares[1::2], waits=waits[1::2], steps=added)
    report.at_most("masks of 32 rows over a step", statistics.median(shares[1::2]), 0.05, "%")
    report.note("waited for behind the forward pass", f"{statistics.median(waits[1::2]):.2%} of a step")
    report.note("a step with 32 grammars over one without", f"{statistics.median(added):.3f}")


def hostile_input(report: Report) -> None:
    """The gap between tokens of somebody else's text while hostile grammars are compiled."""
    with open_engine(report.options.threads) as engine:
        prompt = tuple(engine.tokenizer.encode("Once upon a time"))
        thread = EngineThread(engine)
        try:
            quiet = asyncio.run(_gaps(thread, prompt, ()))
            first = asyncio.run(_gaps(thread, prompt, FIRST))
            engine.prepare_grammars()  # as a server does when it starts
            busy = asyncio.run(_gaps(thread, prompt, HOSTILE))
        finally:
            thread.close()
    report.keep("gaps between tokens", quiet=quiet, first=first, busy=busy)
    report.note("longest gap between tokens, nothing else going on", f"{1000 * max(quiet):.0f} ms")
    report.note("while the first grammars of an engine are compiled", f"{1000 * max(first):.0f} ms")
    report.at_most("longest gap between tokens beside hostile grammars", 1000 * max(busy), 100, "ms")


async def _gaps(
    thread: EngineThread, prompt: tuple[int, ...], hostile: Sequence[dict[str, object]]
) -> list[float]:
    async def ask(i: int, fields: dict[str, object]) -> None:
        params = SamplingParams.from_mapping({"max_tokens": 4, **fields})
        try:
            async for _ in thread.stream(Request(f"beside-{len(hostile)}-{i}", prompt, params)):
                pass
        except Exception as error:
            say(f"  {str(error)[:150]}")

    asked = [asyncio.create_task(ask(i, fields)) for i, fields in enumerate(hostile)]
    gaps, last = [], None
    params = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
    async for _ in thread.stream(Request(f"mine-{len(hostile)}", prompt, params)):
        now = perf_counter()
        if last is not None:
            gaps.append(now - last)
        last = now
    await asyncio.gather(*asked)
    return gaps
