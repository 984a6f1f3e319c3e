"""outlines' clients for SGLang and for vLLM: each sends a structure in its own way."""

from __future__ import annotations

import sys
from typing import Any, Literal

import outlines
from checks import KEY, MODEL, V1, main
from openai import AsyncOpenAI, OpenAI
from outlines.types import CFG, Regex
from pydantic import BaseModel, ConfigDict, Field

OPTIONS: dict[str, Any] = {"base_url": V1, "api_key": KEY, "max_retries": 0, "timeout": 60.0}
CLIENT = OpenAI(**OPTIONS)
MODELS = {
    "sglang": outlines.from_sglang(CLIENT, MODEL),
    "vllm": outlines.from_vllm(CLIENT, MODEL),
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 100}
QUESTION = "Tell me about Paris, the city in France."


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")  # JSON Schema allows others where nothing is said

    name: str = Field(max_length=20)
    size: Literal["small", "large"]
    districts: int = Field(ge=0, le=99)


def sglang_free_text() -> None:
    _expect_free_text("sglang")


def vllm_free_text() -> None:
    _expect_free_text("vllm")


def sglang_json_schema() -> None:
    City.model_validate_json(MODELS["sglang"](QUESTION, City, **GREEDY))


def vllm_json_schema() -> None:
    City.model_validate_json(MODELS["vllm"](QUESTION, City, **GREEDY))


def sglang_regex() -> None:
    assert MODELS["sglang"]("A date:", Regex(r"20[0-9]{2}-[01][0-9]"), **GREEDY)[:2] == "20"


def vllm_regex() -> None:
    assert MODELS["vllm"]("A date:", Regex(r"20[0-9]{2}-[01][0-9]"), **GREEDY)[:2] == "20"


def sglang_choice() -> None:
    assert MODELS["sglang"]("Is Paris in France?", Literal["yes", "no"], **GREEDY) in ("yes", "no")


def vllm_choice() -> None:
    assert MODELS["vllm"]("Is Paris in France?", Literal["yes", "no"], **GREEDY) in ("yes", "no")


def sglang_integer() -> None:
    assert int(MODELS["sglang"]("How many days has a week?", int, temperature=0, max_tokens=10)) is not None


def vllm_integer() -> None:
    assert int(MODELS["vllm"]("How many days has a week?", int, temperature=0, max_tokens=10)) is not None


def sglang_grammar_in_ebnf() -> None:
    grammar = CFG('root ::= "sum: " [0-9] "+" [0-9]')
    assert MODELS["sglang"]("Two and two", grammar, **GREEDY).startswith("sum: ")


def vllm_grammar_in_lark() -> None:
    grammar = CFG('start: "sum: " /[0-9]/ "+" /[0-9]/')
    assert MODELS["vllm"]("Two and two", grammar, **GREEDY).startswith("sum: ")


def choices_of_one_question() -> None:
    found = MODELS["vllm"](QUESTION, Literal["yes", "no"], n=3, max_tokens=5)
    assert len(found) == 3
    assert set(found) <= {"yes", "no"}


def streams_of_both_are_whole_structures() -> None:
    for model in MODELS.values():
        City.model_validate_json("".join(model.stream(QUESTION, City, **GREEDY)))


async def clients_of_both_may_be_asynchronous() -> None:
    async with AsyncOpenAI(**OPTIONS) as client:
        for model in (outlines.from_sglang(client, MODEL), outlines.from_vllm(client, MODEL)):
            City.model_validate_json(await model(QUESTION, City, **GREEDY))


def _expect_free_text(name: str) -> None:
    answer = MODELS[name]("What is the capital of France?", **GREEDY)
    assert answer == "The capital of France is Paris.", answer


if __name__ == "__main__":
    main(sys.modules[__name__])
