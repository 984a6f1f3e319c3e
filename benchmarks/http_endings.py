"""How requests end when the server is told to stop, or fails, while they run.

Runs in the load generator's process; imports nothing but the standard library. An answer is complete, or it
is a clean error: a whole HTTP answer that says so in JSON. Anything else is a problem.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from time import monotonic

from http_client import Reply, begin, request
from http_streams import PATIENCE, SURFACES, stream_request

LATE = 4


async def end_under_load(
    port: int, pid: int, numbers: Sequence[int], prompts: Sequence[str], lengths: Sequence[int]
) -> dict[str, object]:
    """Signals `numbers` to the process when every stream has begun; how each request ended, by its kind.

    Three of four are streams, of both surfaces in turn, the others wait for the whole answer. Some more come
    a little later, when a server that was told to stop takes nothing any more. `signalled` is of the
    monotonic clock, which is the same for all processes.
    """
    sent = [_call(i, prompt, length) for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))]
    replies = await asyncio.gather(*(begin(port, each) for each in sent))
    streams = [reply for i, reply in enumerate(replies) if _is_stream(i)]
    async with asyncio.timeout(PATIENCE):
        while not all(reply.parts or reply.problem for reply in streams):
            await asyncio.sleep(0.01)
    for number in numbers:
        os.kill(pid, number)
    signalled = monotonic()
    await asyncio.sleep(0.3)
    late = await asyncio.gather(*(begin(port, _call(i, "Too late", 4)) for i in range(LATE)))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(reply.whole() for reply in (*replies, *late)))
    answered = monotonic()
    return {
        "signalled": signalled,
        "answered_s": answered - signalled,
        "endings": [ending(reply, _is_stream(i)) for i, reply in enumerate(replies)],
        "late": [ending(reply, _is_stream(i)) for i, reply in enumerate(late)],
    }


def ending(reply: Reply, is_stream: bool) -> str:
    """ "complete", "error: ..." or "problem: ..."."""
    if reply.problem is not None and not reply.parts:
        return f"problem: {reply.problem}"
    if not reply.is_whole:
        return f"problem: breaks off after {len(reply.raw)} bytes: {reply.raw[-100:]!r}"
    try:
        if reply.status != 200:
            return f"error: {reply.status} {reply.json()['error']['message']}"
        return _of_stream(reply) if is_stream else _of_answer(reply)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"problem: {error!r} in {reply.raw[-300:]!r}"


def _of_stream(reply: Reply) -> str:
    *events, last = [data for _, data in reply.events()]
    if last != b"[DONE]":
        return f"problem: the last event is {last[:200]!r}"
    found = [json.loads(data) for data in events]
    errors = [event["error"]["message"] for event in found if "error" in event]
    if errors:
        return f"error: {errors[0]}"
    reasons = [reason for event in found for reason in _reasons(event)]
    if len(reasons) != 1:
        return f"problem: finish reasons {reasons}"
    return "complete" if reasons[0] in ("length", "stop") else f"error: {reasons[0]}"


def _of_answer(reply: Reply) -> str:
    reasons = _reasons(reply.json())
    return "complete" if reasons and reasons[0] in ("length", "stop") else f"error: {reasons}"


def _reasons(body: dict[str, object]) -> list[str]:
    """The finish reasons in an event or answer of either surface."""
    meta, choices = body.get("meta_info"), body.get("choices")
    if isinstance(meta, dict):
        return [meta["finish_reason"]["type"]] if meta["finish_reason"] else []
    assert isinstance(choices, list), "an answer of one of both surfaces"
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def _is_stream(i: int) -> bool:
    return i % 4 != 3


def _call(i: int, prompt: str, length: int) -> bytes:
    if _is_stream(i):
        return stream_request(SURFACES[i % 2], prompt, length)
    body = {"prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
    return request("POST", "/v1/completions", body)
