"""The fields that both of OpenAI's routes share, as JSON Schemas: what /openapi.json tells and what is read.

Every field may also be null, which is its default. Ranges are checked where values are read, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Schema = Mapping[str, object]

TEXT: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": ["number", "null"]}
INTEGER: Schema = {"type": ["integer", "null"]}
SWITCH: Schema = {"type": ["boolean", "null"]}
OBJECT: Schema = {"type": ["object", "null"]}
_TEXTS: Schema = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_IDS: Schema = {"type": ["array", "null"], "items": {"type": "integer"}}
_SCHEMA: Schema = {"type": ["object", "boolean", "string", "null"]}


HINT: Schema = {
    "type": ["object", "null"],
    "properties": {
        "program_id": TEXT,
        "parent_id": TEXT,
        "fork_group": TEXT,
        "hold_s": NUMBER,
        "done": SWITCH,
    },
}


def _said(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


SAMPLING_FIELDS: Mapping[str, Schema] = {
    "temperature": _said(NUMBER, "0 takes the likeliest token; default 1"),
    "top_p": _said(NUMBER, "default 1"),
    "top_k": _said(INTEGER, "-1 or 0 is off, the default"),
    "min_p": _said(NUMBER, "default 0"),
    "n": _said(INTEGER, "choices for each prompt; default 1"),
    "seed": _said(INTEGER, "the same seed gives the same text, whatever else runs"),
    "stop": _said(_TEXTS, "texts that end the answer and are not part of it"),
    "stop_regex": _said(_TEXTS, "patterns that do so"),
    "stop_token_ids": _IDS,
    "no_stop_trim": _said(SWITCH, "the answer keeps the stop text that ended it"),
    "min_tokens": _said(INTEGER, "default 0"),
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "logit_bias": _said(OBJECT, "token ids to biases from -100 to 100"),
    "ignore_eos": SWITCH,
    "skip_special_tokens": _said(SWITCH, "default true"),
}
"""Go into SamplingParams by the same name."""

STRUCTURE_FIELDS: Mapping[str, Schema] = {
    "response_format": _said(OBJECT, "of type text, json_object, json_schema or structural_tag"),
    "structured_outputs": _said(
        OBJECT, "one of json, json_object, regex, choice, grammar and structural_tag"
    ),
    "json_schema": _SCHEMA,
    "regex": TEXT,
    "choice": {"type": ["array", "null"], "items": {"type": "string"}},
    "grammar": TEXT,
    "ebnf": TEXT,
    "structural_tag": {"type": ["object", "string", "null"]},
    "guided_json": _SCHEMA,
    "guided_json_object": SWITCH,
    "guided_regex": TEXT,
    "guided_choice": {"type": ["array", "null"], "items": {"type": "string"}},
    "guided_grammar": TEXT,
    "grammar_kind": _said(TEXT, "lark or gbnf"),
    "relaxed": _said(SWITCH, "what cannot be enforced of a schema is checked in the finished text"),
    "compact": _said(SWITCH, "JSON without whitespace"),
    "grammar_after": _said(TEXT, "free text goes up to this one"),
}
"""What the text must look like: one way of them."""

CALL_FIELDS: Mapping[str, Schema] = {
    "model": _said(TEXT, "the served model; may be left out"),
    "max_tokens": INTEGER,
    "max_completion_tokens": _said(INTEGER, "the same as max_tokens"),
    "include_stop_str_in_output": _said(SWITCH, "the same as no_stop_trim"),
    "stream": _said(SWITCH, "answer by server-sent events"),
    "stream_options": _said(OBJECT, "include_usage, continuous_usage_stats"),
    "cache_salt": _said(TEXT, "requests with different ones share no cached tokens"),
    "priority": _said(INTEGER, "larger ones run first; default 0"),
    "hint": _said(HINT, "what a program tells of the branch that asks"),
    "return_token_ids": _said(SWITCH, "answer with the token ids of prompt and text too"),
}


def openapi_body(properties: Mapping[str, Schema], required: Sequence[str]) -> dict[str, object]:
    """What FastAPI adds to the description of a route whose body is read by hand."""
    schema = {
        "type": "object",
        "properties": {**properties, **CALL_FIELDS, **SAMPLING_FIELDS, **STRUCTURE_FIELDS},
        "required": list(required),
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
