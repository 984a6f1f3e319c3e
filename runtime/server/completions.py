"""POST /v1/completions: texts and token ids continued, or scored by their log-probabilities.

The route only: what a body means is in completion_body.py, what a reply looks like in completion_reply.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import InvalidRequest, TooLarge
from ..text_parts import beginning
from .body import read_object
from .completion_body import FIELDS, CompletionCall, parse
from .completion_reply import EncodedPrompt, encoded_prompt, parts_of, reply_of
from .context import ServerContext, context_of, new_id, tenant
from .engine_face import EngineFace
from .openai_fields import openapi_body
from .openai_reply import Tally, chunk_usage, tally_of
from .replies import CLIENT_GONE, DONE, EventStream, event_of, json_reply, until_gone
from .service import Job
from .token_texts import check_characters, encode_texts

router = APIRouter(tags=["completions"])

_MOST_ENTRIES = 2_000_000
"""Log-probabilities of prompts that one request may ask for: each takes memory until the reply is sent."""

# Any: what the log line of a request is told, see gate.py.
Scope = MutableMapping[str, Any]


@router.post("/v1/completions", openapi_extra=openapi_body(FIELDS, ["prompt"]))
async def completions(request: Request) -> Response:
    """Continue each prompt; the choices of one follow each other."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    call = parse(body, context)
    if call.stream:
        events = _events(context, call, tenant(request), request.scope)
        return EventStream(events)
    reply = await until_gone(request, _whole(context, call, tenant(request), request.scope))
    if reply is None:
        return json_reply(None, CLIENT_GONE)
    return await asyncio.to_thread(json_reply, reply) if _is_large(call) else json_reply(reply)


async def answer(context: ServerContext, body: dict[str, object], tenant: str) -> dict[str, object]:
    """One call, answered in one piece. Raises RadixError."""
    call = parse(body, context)
    if call.stream:
        raise InvalidRequest("stream must be false where one answer is wanted, got True")
    return await _whole(context, call, tenant, {})


async def _whole(
    context: ServerContext, call: CompletionCall, tenant: str, scope: Scope
) -> dict[str, object]:
    tokenizer, head = context.service.engine.tokenizer, _head(context)
    prompts = await _encoded(call, context.service.engine)
    found = await context.service.collect(_jobs(prompts, call, tenant, str(head["id"])))
    scope["radixlm.figures"] = tally_of(found).figures()
    if _is_large(call):
        return await asyncio.to_thread(reply_of, head, prompts, call, tokenizer, found)
    return reply_of(head, prompts, call, tokenizer, found)


async def _events(
    context: ServerContext, call: CompletionCall, tenant: str, scope: Scope
) -> AsyncGenerator[bytes, None]:
    tokenizer, head, tally = context.service.engine.tokenizer, _head(context), Tally()
    prompts = await _encoded(call, context.service.engine)
    parts = parts_of(prompts, call, tokenizer)
    jobs = _jobs(prompts, call, tenant, str(head["id"]))
    try:
        async with aclosing(context.service.run(jobs)) as events:
            async for job, event in events:
                tally.take(job, event)
                part = parts[job][event.index].part(event)
                if part is not None:
                    yield event_of({**head, "choices": [part], **chunk_usage(call.options, tally)})
    finally:
        scope["radixlm.figures"] = tally.figures()
    if call.options.include_usage:
        yield event_of({**head, "choices": [], "usage": tally.usage()})
    yield DONE


def _is_large(call: CompletionCall) -> bool:
    """Whether writing the reply may take so long that the event loop should not wait for it."""
    return call.sampling.logprobs is not None


async def _encoded(call: CompletionCall, engine: EngineFace) -> list[EncodedPrompt]:
    tokenizer = engine.tokenizer
    texts = [prompt for prompt in call.prompts if isinstance(prompt, str)]
    check_characters(engine, max(map(len, texts), default=0))
    encoded = iter(await encode_texts(tokenizer, texts, bos=call.adds_special))
    ids = [
        next(encoded) or beginning(tokenizer) if isinstance(prompt, str) else prompt
        for prompt in call.prompts
    ]
    _check_sizes(ids, call, engine.max_length)

    def prepare() -> list[EncodedPrompt]:
        pairs = zip(call.prompts, ids, strict=True)
        return [encoded_prompt(prompt, each, call, tokenizer) for prompt, each in pairs]

    return await asyncio.to_thread(prepare) if call.echo else prepare()


def _check_sizes(prompts: Sequence[tuple[int, ...]], call: CompletionCall, most: int) -> None:
    """What the engine would refuse as well, but not before texts were made of it, and what it would not."""
    longest = max(map(len, prompts))
    if longest > most:
        raise TooLarge(f"a prompt has {longest} tokens, but context and pool allow {most} with the answer")
    entries = sum(map(len, prompts)) * (1 + (call.sampling.logprobs or 0))
    if call.sampling.prompt_logprobs_start is not None and entries > _MOST_ENTRIES:
        raise InvalidRequest(
            f"echo with logprobs may ask for {_MOST_ENTRIES} log-probabilities of prompts, got {entries}"
        )


def _jobs(prompts: Sequence[EncodedPrompt], call: CompletionCall, tenant: str, name: str) -> list[Job]:
    return [
        Job(prompt.ids, call.sampling, name, call.salt, call.priority, tenant, hint=call.hint)
        for prompt in prompts
    ]


def _head(context: ServerContext) -> dict[str, object]:
    return {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": context.model,
    }
