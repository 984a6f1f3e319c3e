"""The routes of RadixLM's own server: parts as they are, hints, scores, frames. Knows no connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from .http_calls import HttpCalls
from .json_values import as_count, as_ids, as_list, as_logprob, as_mapping, as_text
from .native_api import GrowingText, Reply, call_fields, deltas, read_texts
from .protocol import (
    ChoiceScore,
    Delta,
    Ending,
    Frame,
    GenerateCall,
    Generated,
    Hint,
    Part,
    Plain,
    ScoreCall,
    Scored,
)


class RadixApi:
    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls
        self._where = f"{calls.base_url}/generate"

    async def generate(self, call: GenerateCall) -> list[Generated]:
        reply = await self._calls.post("/generate", _body(call))
        return read_texts(reply, call.sampling.n, _output_parts, self._where)

    def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        chunks = self._calls.stream("/generate", _body(call, stream=True))
        return deltas(chunks, GrowingText(_output_parts, self._where), self._where)

    async def score(self, call: ScoreCall) -> Scored:
        body = {
            "input_parts": _parts_on_wire(call.parts),
            "choices": list(call.choices),
            **({"unconditional": True} if call.unconditional else {}),
            **_hint_fields(call.hint),
        }
        reply = as_mapping(await self._calls.post("/score", body), "scores")
        return Scored(
            tuple(_choice(as_mapping(each, "choice")) for each in as_list(reply.get("choices"), "choices")),
            prompt_tokens=as_count(reply.get("prompt_tokens"), "prompt_tokens"),
            cached_tokens=as_count(reply.get("cached_tokens"), "cached_tokens"),
            computed_tokens=as_count(reply.get("computed_tokens"), "computed_tokens"),
        )

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        reply = as_mapping(
            await self._calls.post("/chat_frame", {"roles": list(roles)}, changes_nothing=True), "frame"
        )
        return Frame(as_text(reply.get("before"), "before"), as_text(reply.get("after"), "after"))

    async def end(self, program_ids: list[str], how: Ending) -> None:
        await self._calls.tell("/end_programs", {"program_ids": program_ids, "how": how})


def hint_on_wire(hint: Hint) -> dict[str, object]:
    """What is set of it."""
    fields = {name: getattr(hint, name) for name in ("program_id", "parent_id", "fork_group")}
    found: dict[str, object] = {name: value for name, value in fields.items() if value}
    if hint.hold_s is not None:
        found["hold_s"] = hint.hold_s
    if hint.done:
        found["done"] = True
    return found


def _body(call: GenerateCall, *, stream: bool = False) -> dict[str, object]:
    return {
        "input_parts": _parts_on_wire(call.parts),
        **call_fields(call.sampling, stream=stream),
        **_hint_fields(call.hint),
    }


def _hint_fields(hint: Hint) -> dict[str, object]:
    found = hint_on_wire(hint)
    return {"hint": found} if found else {}


def _parts_on_wire(parts: Sequence[Part]) -> list[object]:
    return [
        part if isinstance(part, str) else list(part) if isinstance(part, tuple) else {"plain": part.text}
        for part in parts
    ]


def _output_parts(reply: Reply, text: str) -> tuple[Part, ...]:
    return tuple(_part(each) for each in as_list(reply.get("output_parts"), "output_parts"))


def _part(value: object) -> Part:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return Plain(as_text(value.get("plain"), "plain part"))
    return as_ids(value, "part")


def _choice(reply: Reply) -> ChoiceScore:
    return ChoiceScore(
        as_ids(reply.get("token_ids"), "token_ids"),
        _logprobs(reply.get("logprobs")),
        _logprobs(reply.get("unconditional") or []),
    )


def _logprobs(values: object) -> tuple[float, ...]:
    return tuple(as_logprob(value, "log-probability") for value in as_list(values, "log-probabilities"))
