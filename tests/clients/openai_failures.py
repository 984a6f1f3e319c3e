"""The openai package: what is refused, and as which of its errors."""

from __future__ import annotations

from typing import Any

import openai
from checks import MODEL, raised
from openai import OpenAI
from openai_common import FRANCE, OPTIONS, QUESTION, WEATHER, client, named

PICTURE: Any = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
]


def failures_are_the_clients_own_kinds() -> None:
    chat, complete = client.chat.completions.create, client.completions.create
    bad = openai.BadRequestError
    raised(bad, chat, messages=[], model=MODEL)
    raised(bad, chat, messages=QUESTION, model=MODEL, temperature=-1)
    raised(bad, chat, messages=QUESTION, model=MODEL, n=100_000)
    raised(bad, chat, messages=QUESTION, model=MODEL, stream=True, max_tokens=-1)
    raised(bad, complete, prompt=FRANCE, model=MODEL, suffix="!")
    raised(bad, complete, prompt=[1, 10**9], model=MODEL)
    raised(bad, complete, prompt=FRANCE, model=MODEL, best_of=3)
    raised(bad, chat, messages=PICTURE, model=MODEL)
    raised(bad, chat, messages=QUESTION, model=MODEL, response_format={"type": "json_schema"})
    raised(bad, chat, messages=QUESTION, model=MODEL, tools=[WEATHER], tool_choice=named("none_such"))
    raised(bad, chat, messages=QUESTION, model=MODEL, top_logprobs=3)
    raised(openai.NotFoundError, chat, messages=QUESTION, model="another")
    error = raised(bad, complete, prompt="word " * 20_000, model=MODEL)
    assert error.body is not None
    assert error.body["message"], "what came and what is allowed"
    raised(bad, chat, messages=QUESTION, model=MODEL, extra_body={"regex": "("})
    raised(bad, client.embeddings.create, input="text", model=MODEL)
    raised(openai.NotFoundError, client.responses.retrieve, response_id="resp_1")


def a_wrong_key_is_refused() -> None:
    stranger = OpenAI(api_key="another", **OPTIONS)
    raised(openai.AuthenticationError, stranger.models.list)
    raised(openai.AuthenticationError, stranger.chat.completions.create, messages=QUESTION, model=MODEL)
