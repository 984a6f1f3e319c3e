"""FakeSglang: SGLang's native API as its servers speak it, over a tokenizer and a model that are made up.

Tokens are the longest known piece, else a character; a token's log-probability is a function of all before
it, so that a test can compute what is right. The first log-probability of a prompt is null, wherever it
starts, none are given without a start, and more than one text comes as a list.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from testkit.fake_http import Asked, Json

_PIECES = (" the", "Hel", "Hello", "lo", " wor", " world", "wo")
BOS = 1


@dataclass(slots=True)
class FakeSglang:
    """Handles requests. It continues every prompt with `reply`. `bos`: every text begins with a token."""

    reply: str = " world"
    bos: bool = True
    model_path: str = "meta-llama/Llama-3.2-1B-Instruct"
    seen: set[tuple[int, ...]] = field(default_factory=set)

    async def __call__(self, asked: Asked) -> None:
        if asked.path == "/get_server_info":
            await asked.json({"version": "0.5.1", "model_path": self.model_path, "internal_states": [{}]})
        elif asked.path == "/get_model_info":
            await asked.json({"model_path": self.model_path, "is_generation": True})
        elif asked.path == "/flush_cache":
            await asked.content(b"Cache flushed.\n")
        elif asked.path != "/generate":
            await asked.json({"detail": "Not Found"}, 404)
        elif asked.body.get("stream"):
            await self._stream(asked)
        else:
            await self._generate(asked)

    def tokens(self, text: str) -> list[int]:
        found = [BOS] if self.bos else []
        while text:
            piece = max((each for each in _PIECES if text.startswith(each)), key=len, default=text[0])
            found.append(100 + _PIECES.index(piece) if piece in _PIECES else 1000 + ord(piece))
            text = text[len(piece) :]
        return found

    def logprob(self, before: list[int], token: int) -> float:
        return -(1 + zlib.crc32(repr((before, token)).encode()) % 1000) / 100

    async def _generate(self, asked: Asked) -> None:
        body, replies = asked.body, []
        many = body.get("text", body.get("input_ids"))
        is_list = isinstance(many, list) and not isinstance(many[0], int)
        n = body["sampling_params"].get("n", 1)
        for prompt in many if is_list else [many]:
            ids = self.tokens(prompt) if isinstance(prompt, str) else prompt
            if not ids:
                await asked.json({"error": {"message": "the input is empty"}}, 400)
                return
            replies += [self._answer(ids, body) for _ in range(n)]
        await asked.json(replies if is_list or n > 1 else replies[0])

    def _answer(self, ids: list[int], body: Json) -> Json:
        text = self.reply if body["sampling_params"].get("max_new_tokens", 128) else ""
        meta: dict[str, Json] = {
            "id": "x",
            "finish_reason": {"type": "stop", "matched": 2} if text else {"type": "length", "length": 0},
            "prompt_tokens": len(ids),
            "completion_tokens": len(text),
            "cached_tokens": max((_common(ids, each) for each in self.seen), default=0),
        }
        self.seen.add(tuple(ids))
        if body.get("return_logprob"):
            start = body.get("logprob_start_len", -1)
            known = [[self.logprob(ids[:at], ids[at]), ids[at], None] for at in range(len(ids))]
            meta["input_token_logprobs"] = (
                [] if start < 0 else [[None, ids[start], None], *known[start + 1 :]]
            )
        return {"text": text, "meta_info": meta}

    async def _stream(self, asked: Asked) -> None:
        answer = self._answer(self.tokens(asked.body["text"]), asked.body)
        await asked.begin()
        for end in range(1, len(self.reply) + 1):
            meta = {**answer["meta_info"], "completion_tokens": end}
            if end < len(self.reply):
                meta["finish_reason"] = None
            await asked.event({"text": self.reply[:end], "meta_info": meta})
        await asked.event("[DONE]")
        await asked.end()


def _common(one: list[int], other: tuple[int, ...]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
