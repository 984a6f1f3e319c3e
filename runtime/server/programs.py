"""The routes that programs call beside /generate: choices scored, frames of chat messages, branches ended.

A body is read by part_fields.py; what is done with it is the runtime's, the same as in process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..chat_frames import MOST_ROLES, frame_of
from ..choice_scores import ContinuationScores, nothing_before, read_scores
from ..errors import InvalidRequest, TooLarge
from ..hints import NO_HINT
from ..score import SCORING
from ..text import quote, require_text
from ..text_parts import Ids, PartsEncoder
from ..types import Ending, Hint
from .body import read_object
from .context import ServerContext, context_of, new_id, tenant
from .field_values import read_integer, read_switch
from .native_fields import CHAT_FRAME_BODY, END_PROGRAMS_BODY, SCORE_BODY
from .openai_reply import tally_of
from .part_fields import InputParts, read_choices, read_hint, read_names, read_parts
from .replies import CLIENT_GONE, json_reply, until_gone
from .service import Job
from .token_texts import beside, check_characters

router = APIRouter(tags=["programs"])

_PRIORITIES = 1 << 31
_MOST_PROGRAMS = 10_000

# Any: what the log line of a request is told, see gate.py.
Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScoreBody:
    """What is asked of /score."""

    prompt: InputParts
    choices: tuple[str, ...]
    unconditional: bool
    hint: Hint
    salt: str
    priority: int


@router.post("/score", openapi_extra=SCORE_BODY)
async def score(request: Request) -> Response:
    """How likely each choice is behind a prompt; prompt and choice are tokenized as one text."""
    context = context_of(request)
    body = _score_body(await read_object(request, context.settings.max_body_bytes), context)
    reply = await until_gone(request, _scored(context, body, tenant(request), request.scope))
    return json_reply(None, CLIENT_GONE) if reply is None else json_reply(reply)


def _score_body(body: Mapping[str, object], context: ServerContext) -> ScoreBody:
    salt = body.get("cache_salt")
    return ScoreBody(
        read_parts("input_parts", body.get("input_parts")),
        read_choices(body.get("choices"), context.settings.max_choices),
        read_switch("unconditional", body.get("unconditional")),
        read_hint(body.get("hint")),
        "" if salt is None else require_text("cache_salt", salt),
        read_integer("priority", body.get("priority"), 0, least=-_PRIORITIES, most=_PRIORITIES),
    )


async def _scored(context: ServerContext, body: ScoreBody, whose: str, scope: Scope) -> dict[str, object]:
    before, continuations = await _encoded(context, body)
    name = new_id("score")

    def job(ids: Ids, hint: Hint) -> Job:
        return Job(
            ids, SCORING, name, body.salt, body.priority, whose, hint=hint, continuations=continuations
        )

    jobs = [job(before, body.hint)]
    if body.unconditional:
        jobs.append(job(nothing_before(context.service.engine.tokenizer), NO_HINT))
    found = await context.service.collect(jobs)
    scope["radixlm.figures"] = tally_of(found).figures()
    results = [
        read_scores(continuations, each.prompt_ids, events) for each, events in zip(jobs, found, strict=True)
    ]
    return _reply(before, continuations, results)


async def _encoded(context: ServerContext, body: ScoreBody) -> tuple[Ids, tuple[Ids, ...]]:
    engine = context.service.engine
    characters = body.prompt.characters + max(map(len, body.choices))
    check_characters(engine, characters)

    def encode() -> tuple[Ids, tuple[Ids, ...]]:
        encoder = PartsEncoder(engine.tokenizer, remembered=characters)
        tokens = len(encoder.ids(body.prompt.parts))
        if tokens > engine.max_length:  # each choice may cost as much again
            raise TooLarge(f"the prompt has {tokens} tokens, but context and pool hold {engine.max_length}")
        return encoder.joint(body.prompt.parts, body.choices)

    return await beside(characters * len(body.choices), encode)


def _reply(
    before: Ids, continuations: tuple[Ids, ...], results: list[ContinuationScores]
) -> dict[str, object]:
    alone = results[1].logprobs if len(results) > 1 else ((),) * len(continuations)
    return {
        "choices": [
            {"token_ids": ids, "logprobs": values, "unconditional": others}
            for ids, values, others in zip(continuations, results[0].logprobs, alone, strict=True)
        ],
        "prompt_tokens": len(before),
        "cached_tokens": results[0].cached_tokens,
        "computed_tokens": sum(result.computed_tokens for result in results),
    }


@router.post("/chat_frame", openapi_extra=CHAT_FRAME_BODY)
async def chat_frame(request: Request) -> Response:
    """What the model's chat template writes around the content of the last of some messages."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    roles = read_names("roles", body.get("roles"), MOST_ROLES)
    found = await asyncio.to_thread(frame_of, context.service.engine.tokenizer, roles)
    return json_reply(asdict(found))


@router.post("/end_programs", openapi_extra=END_PROGRAMS_BODY)
async def end_programs(request: Request) -> Response:
    """Say what becomes of branches. Of no effect on those that are not known."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    names = read_names("program_ids", body.get("program_ids"), _MOST_PROGRAMS)
    await asyncio.wrap_future(context.service.end_programs(names, _ending(body.get("how")), tenant(request)))
    return json_reply({})


def _ending(value: object) -> Ending:
    for how in get_args(Ending):
        if value == how:
            ending: Ending = how
            return ending
    raise InvalidRequest(f"how must be one of {', '.join(get_args(Ending))}, got {quote(value)}")
