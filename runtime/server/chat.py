"""POST /v1/chat/completions: conversations answered, with tools, reasoning and structured output.

The route only: what a body means is in chat_body.py, how a prompt is written in chat_prompt.py, how an answer
is held to a form in chat_tools.py, what a reply looks like in chat_reply.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import InvalidRequest
from ..sampling_params import SamplingParams
from .body import read_object
from .chat_body import FIELDS, ChatCall, parse
from .chat_prompt import continued_text, count_characters, prompt_ids
from .chat_reply import ChoiceChunks, reply_of
from .chat_tools import AnswerPlan, form_of, plan_of
from .context import ServerContext, context_of, new_id, tenant
from .openai_fields import openapi_body
from .openai_reply import Tally, chunk_usage, tally_of
from .reasoning import habit_of
from .replies import CLIENT_GONE, DONE, EventStream, event_of, json_reply, until_gone
from .service import Job
from .token_texts import beside, check_characters

router = APIRouter(tags=["chat"])

# Any: what the log line of a request is told, see gate.py.
Scope = MutableMapping[str, Any]


@router.post("/v1/chat/completions", openapi_extra=openapi_body(FIELDS, ["messages"]))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
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


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call that is ready to run. `sampling` is one of its plan's."""

    prompt_ids: tuple[int, ...]
    plan: AnswerPlan
    sampling: SamplingParams


async def _whole(context: ServerContext, call: ChatCall, tenant: str, scope: Scope) -> dict[str, object]:
    head, ready = _head(context), await _prepare(context, call)
    [events] = await context.service.collect([_job(ready, call, tenant, head)])
    scope["radixlm.figures"] = tally_of([events]).figures()
    parts = (head, ready.prompt_ids, ready.plan, call, context.service.engine.tokenizer, events)
    return await asyncio.to_thread(reply_of, *parts) if _is_large(call) else reply_of(*parts)


async def _events(
    context: ServerContext, call: ChatCall, tenant: str, scope: Scope
) -> AsyncGenerator[bytes, None]:
    tokenizer, head, tally = context.service.engine.tokenizer, _head(context), Tally()
    head["object"] = "chat.completion.chunk"
    ready = await _prepare(context, call)
    choices = [ChoiceChunks(index, ready.plan, call, tokenizer) for index in range(call.sampling.n)]
    first: dict[str, object] = {"prompt_token_ids": ready.prompt_ids} if call.returns_ids else {}
    try:
        async with aclosing(context.service.run([_job(ready, call, tenant, head)])) as events:
            async for job, event in events:
                tally.take(job, event)
                for chunk in choices[event.index].chunks(event):
                    yield event_of({**head, "choices": [chunk], **chunk_usage(call.options, tally), **first})
                    first = {}
    finally:
        scope["radixlm.figures"] = tally.figures()
    if call.options.include_usage:
        yield event_of({**head, "choices": [], "usage": tally.usage()})
    yield DONE


async def _prepare(context: ServerContext, call: ChatCall) -> _Prepared:
    ids, plan = await beside(count_characters(call.conversation), partial(_planned, context, call))
    return _Prepared(ids, plan, await _compiled(context, plan))


def _planned(context: ServerContext, call: ChatCall) -> tuple[tuple[int, ...], AnswerPlan]:
    engine, settings = context.service.engine, context.settings
    tokenizer = engine.tokenizer
    form = form_of(call, tokenizer, settings)
    asked, check = call.conversation, partial(check_characters, engine)
    ids = prompt_ids(asked, form, tokenizer, check, offers_tools=call.offers_tools)
    start = habit_of(settings.reasoning_parser, tokenizer).start(tokenizer, ids, continued_text(asked))
    return ids, plan_of(call, form, start, tokenizer)


async def _compiled(context: ServerContext, plan: AnswerPlan) -> SamplingParams:
    """The plan's sampling, or the weaker one where the grammar of the first is refused."""
    spec = plan.sampling.structure
    if plan.form is None or spec is None:
        return plan.sampling  # a refusal comes when it runs, and names what was asked for
    try:
        await asyncio.wrap_future(context.service.engine.compile(spec))
    except InvalidRequest as error:
        if plan.weaker is None:
            raise InvalidRequest(f"tools that are strict cannot be enforced as they are: {error}") from None
        return plan.weaker
    return plan.sampling


def _is_large(call: ChatCall) -> bool:
    """Whether writing the reply may take so long that the event loop should not wait for it."""
    return call.sampling.logprobs is not None


def _job(ready: _Prepared, call: ChatCall, tenant: str, head: dict[str, object]) -> Job:
    name = str(head["id"])
    return Job(ready.prompt_ids, ready.sampling, name, call.salt, call.priority, tenant, hint=call.hint)


def _head(context: ServerContext) -> dict[str, object]:
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": context.model,
    }
