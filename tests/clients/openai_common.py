"""What the checks of the openai package have in common: the client, and what is asked."""

from __future__ import annotations

from typing import Any, Literal

from checks import KEY, MODEL, V1
from openai import OpenAI
from pydantic import BaseModel, Field

OPTIONS: dict[str, Any] = {"base_url": V1, "max_retries": 0, "timeout": 60.0}
client = OpenAI(api_key=KEY, **OPTIONS)
FRANCE = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
CITY = [{"role": "user", "content": "Tell me about Paris, the city in France."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str = Field(max_length=20)
    size: Literal["small", "large"]
    districts: int = Field(ge=0, le=99)


CITY_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "strict": True,
        "schema": {**City.model_json_schema(), "additionalProperties": False},
    },
}


def named(tool: str) -> Any:
    return {"type": "function", "function": {"name": tool}}
