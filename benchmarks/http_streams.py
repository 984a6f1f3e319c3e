"""Streams of both surfaces as a client sees them, many at once, and probes beside streams that never stop.

Runs in the load generator's process; imports nothing but the standard library. Everything is greedy and has a
fixed length. A reading is plain data, since it crosses a pipe.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, pairwise
from time import perf_counter
from typing import Any

from http_client import Reply, ask, begin, request

SURFACES = ("/v1/completions", "/generate")
PATIENCE = 300.0
"""Seconds after which a stream is given up."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer. `problem` None: it is whole and ended as it should; seconds are from before connecting."""

    problem: str | None
    seconds: float
    first_s: float = 0.0
    gaps: Sequence[float] = ()
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def stream_request(
    surface: str, prompt: str, max_tokens: int, key: str | None = None, **more: object
) -> bytes:
    return request("POST", surface, _body(surface, prompt, max_tokens) | more, key=key)


def _body(surface: str, prompt: str, max_tokens: int) -> dict[str, object]:
    if surface == "/generate":
        params = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return {"text": prompt, "sampling_params": params, "stream": True}
    return {
        "model": "smollm2-135m",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def read_stream(surface: str, reply: Reply) -> Reading:
    """What a stream came to. Any problem is said, and the first one counts."""
    problem = reply.problem or _problem(reply)
    if problem is not None:
        return Reading(problem, reply.seconds)
    *events, (_, last) = reply.events()
    if last != b"[DONE]":
        return Reading(f"the last event is {last[:100]!r}", reply.seconds)
    found = [(time, json.loads(data)) for time, data in events]
    return _of_generate(reply, found) if surface == "/generate" else _of_completions(reply, found)


def _problem(reply: Reply) -> str | None:
    if reply.status != 200:
        return f"status {reply.status}: {reply.body[:200]!r}"
    if not reply.is_whole:
        return f"the answer breaks off after {len(reply.raw)} bytes"
    return None if reply.events() else f"no events: {reply.body[:200]!r}"


# Any: events are JSON.
def _of_completions(reply: Reply, events: Sequence[tuple[float, Any]]) -> Reading:
    told = [(time, event["choices"][0]) for time, event in events if event.get("choices")]
    errors = [event["error"] for _, event in events if "error" in event]
    usage = next((event["usage"] for _, event in events if event.get("usage")), None)
    ended = [choice["finish_reason"] for _, choice in told if choice["finish_reason"]]
    if errors or usage is None or ended != ["length"]:
        return Reading(f"ended with {errors or ended}, usage {usage}", reply.seconds)
    times = [time for time, choice in told if choice["text"]]
    return Reading(
        None,
        reply.seconds,
        times[0] - reply.started,
        [b - a for a, b in pairwise(times)],
        "".join(choice["text"] for _, choice in told),
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
    )


def _of_generate(reply: Reply, events: Sequence[tuple[float, Any]]) -> Reading:
    last = events[-1][1]
    finish = last.get("meta_info", {}).get("finish_reason")
    if not finish or finish["type"] != "length":
        return Reading(f"ended with {last.get('error') or finish}", reply.seconds)
    times, length = [], 0
    for time, event in events:
        if len(event["text"]) > length:
            times.append(time)
            length = len(event["text"])
    meta = last["meta_info"]
    return Reading(
        None,
        reply.seconds,
        times[0] - reply.started,
        [b - a for a, b in pairwise(times)],
        last["text"],
        meta["prompt_tokens"],
        meta["cached_tokens"],
        meta["completion_tokens"],
    )


async def at_once(port: int, surface: str, prompts: Sequence[str], max_tokens: int) -> dict[str, object]:
    """A stream for each prompt, all begun together. `cpu_s` is this process's own."""
    sent = [stream_request(surface, prompt, max_tokens) for prompt in prompts]
    used, start = _cpu_seconds(), perf_counter()
    replies = await asyncio.gather(*(ask(port, each, PATIENCE) for each in sent))
    seconds = max(reply.started + reply.seconds for reply in replies) - start
    cpu_s = _cpu_seconds() - used
    readings = [asdict(read_stream(surface, reply)) for reply in replies]
    return {"seconds": seconds, "cpu_s": cpu_s, "readings": readings}


async def probes(
    port: int, prompt: str, count: int, others: Sequence[str], load: int, load_tokens: int, seed: int
) -> dict[str, object]:
    """Readings of `count` streams of one prompt, one after the other, while `load` streams of the other
    prompts decode all the time. Pauses of random length keep probes from running in step with the engine."""
    draw = random.Random(seed)
    closed_loop = _ClosedLoop(port, others, load_tokens)
    tasks = [asyncio.create_task(closed_loop.run()) for _ in range(load)]
    try:
        await closed_loop.all_decode(load, tasks)
        sent = stream_request("/v1/completions", prompt, 2)
        for _ in range(2):
            await ask(port, sent, PATIENCE)
        readings, start, before = [], perf_counter(), closed_loop.tokens
        for _ in range(count):
            await asyncio.sleep(draw.uniform(0.0, 0.15))
            readings.append(asdict(read_stream("/v1/completions", await ask(port, sent, PATIENCE))))
        rate = (closed_loop.tokens - before) / (perf_counter() - start)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None
    return {
        "readings": readings,
        "gaps": closed_loop.gaps,
        "load_tokens_s": rate,
        "problems": closed_loop.problems,
    }


class Pace:
    """Seconds between pieces of a stream of /v1/completions that carry text, read while it runs."""

    def __init__(self) -> None:
        self._last: float | None = None

    def after(self, reply: Reply) -> float | None:
        """Since the piece before the one that has just come; None for the first, and for one without text."""
        time, data = reply.parts[-1]
        if b'"choices":[{' not in data:
            return None
        gap = None if self._last is None else time - self._last
        self._last = time
        return gap


class _ClosedLoop:
    """Streams that begin again when they end, prompt after prompt. `tokens`: those with a gap before them."""

    def __init__(self, port: int, prompts: Sequence[str], max_tokens: int) -> None:
        self._sent = [stream_request("/v1/completions", prompt, max_tokens) for prompt in prompts]
        self._port, self._next = port, count()
        self._decoding: set[Reply] = set()
        self.tokens, self.gaps, self.problems = 0, list[float](), list[str]()

    async def run(self) -> None:
        while True:
            sent = self._sent[next(self._next) % len(self._sent)]
            reply = await begin(self._port, sent, partial(self._note, Pace()))
            await reply.whole()
            self._decoding.discard(reply)
            problem = read_stream("/v1/completions", reply).problem
            if problem is not None:
                self.problems.append(problem)
                return

    async def all_decode(self, number: int, tasks: Sequence[asyncio.Task[None]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self._decoding) < number and not any(task.done() for task in tasks):
                await asyncio.sleep(0.02)

    def _note(self, pace: Pace, reply: Reply) -> None:
        self._decoding.add(reply)
        if (gap := pace.after(reply)) is not None:
            self.tokens += 1
            self.gaps.append(gap)


async def one_by_one(port: int, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Each call alone: seconds to the end of its answer, status and body."""
    found = []
    for call in calls:
        reply = await ask(port, request("POST", call["path"], call["body"], key=call.get("key")), PATIENCE)
        body = reply.json() if reply.is_whole and reply.body else None
        found.append({"seconds": reply.seconds, "status": reply.status, "body": body})
    return found


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
