"""The fields of SGLang's own routes and of those about tokens as JSON Schemas, which /openapi.json tells.

Every field may also be null, which is its default. Ranges are checked where values are read, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .openai_fields import HINT, INTEGER, NUMBER, OBJECT, SWITCH, TEXT, Schema

_TEXTS: Schema = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_IDS: Schema = {"type": ["array", "null"], "items": {"type": "integer"}}
_ID_LISTS: Schema = {"type": ["array", "null"], "items": {"type": ["integer", "array"]}}
PARTS: Schema = {
    "type": ["array", "null"],
    "items": {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"plain": {"type": "string"}}, "required": ["plain"]},
            {"type": "array", "items": {"type": "integer"}},
        ]
    },
}
_JSON: Schema = {"type": ["object", "boolean", "string", "null"]}

_SAMPLING: Mapping[str, Schema] = {
    "max_new_tokens": {**INTEGER, "description": "default 128; 0 reads the prompt into the cache"},
    "min_new_tokens": INTEGER,
    "n": {**INTEGER, "description": "texts for each prompt; default 1"},
    "stop": _TEXTS,
    "stop_token_ids": _IDS,
    "stop_regex": _TEXTS,
    "temperature": {**NUMBER, "description": "0 takes the likeliest token; default 1"},
    "top_p": NUMBER,
    "top_k": {**INTEGER, "description": "-1 is off, the default"},
    "min_p": NUMBER,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "json_schema": _JSON,
    "regex": TEXT,
    "ebnf": TEXT,
    "structural_tag": {"type": ["object", "string", "null"]},
    "ignore_eos": SWITCH,
    "skip_special_tokens": {**SWITCH, "description": "default true"},
    "spaces_between_special_tokens": {**SWITCH, "description": "of no effect: none are ever put there"},
    "no_stop_trim": {**SWITCH, "description": "the text keeps the stop text that ended it"},
    "logit_bias": OBJECT,
    "sampling_seed": INTEGER,
}

_SWITCHES: Schema = {"type": ["boolean", "array", "null"], "items": {"type": "boolean"}}
_INTEGERS: Schema = {"type": ["integer", "array", "null"], "items": {"type": "integer"}}
_OPTIONS: Schema = {"type": ["object", "null"], "properties": _SAMPLING}

_GENERATE: Mapping[str, Schema] = {
    "text": {**_TEXTS, "description": "a prompt or a list of them, instead of input_ids"},
    "input_ids": {**_ID_LISTS, "description": "token ids of a prompt or of each of several"},
    "sampling_params": {"anyOf": [_OPTIONS, {"type": "array", "items": _OPTIONS}]},
    "rid": {**_TEXTS, "description": "the name to abort it by"},
    "return_logprob": _SWITCHES,
    "logprob_start_len": {
        **_INTEGERS,
        "description": "first position of the prompt to report; -1: none",
    },
    "top_logprobs_num": {**_INTEGERS, "description": "alternatives a token"},
    "return_text_in_logprobs": SWITCH,
    "stream": SWITCH,
    "priority": {**INTEGER, "description": "larger ones run first; default 0"},
    "extra_key": {**_TEXTS, "description": "prompts with different ones share no cached tokens"},
    "cache_salt": {**_TEXTS, "description": "the same"},
    "input_parts": {**PARTS, "description": "a prompt in parts, instead of text; answered by output_parts"},
    "hint": {**HINT, "description": "what a program tells of the branch that asks"},
    "session_id": {**TEXT, "description": "of no effect: all that can be shared is shared anyway"},
}
_ABORT: Mapping[str, Schema] = {
    "rid": TEXT,
    "abort_all": {**SWITCH, "description": "all of the same key"},
}
_TOKENIZE: Mapping[str, Schema] = {
    "prompt": _TEXTS,
    "messages": {"type": ["array", "null"], "items": {"type": "object"}},
    "add_special_tokens": {**SWITCH, "description": "default true, false for messages"},
    "add_generation_prompt": {**SWITCH, "description": "of messages; default true"},
    "return_token_strs": SWITCH,
}
_DETOKENIZE: Mapping[str, Schema] = {
    "tokens": _ID_LISTS,
    "skip_special_tokens": {**SWITCH, "description": "default true"},
}


def _body(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> dict[str, object]:
    """What FastAPI adds to the description of a route whose body is read by hand."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_SCORE: Mapping[str, Schema] = {
    "input_parts": PARTS,
    "choices": {"type": "array", "items": {"type": "string"}},
    "unconditional": {**SWITCH, "description": "also behind nothing but what begins a text"},
    "hint": HINT,
    "cache_salt": TEXT,
    "priority": {**INTEGER, "description": "larger ones run first; default 0"},
}
_CHAT_FRAME: Mapping[str, Schema] = {"roles": {"type": "array", "items": {"type": "string"}}}
_END_PROGRAMS: Mapping[str, Schema] = {
    "program_ids": {"type": "array", "items": {"type": "string"}},
    "how": {"type": "string", "enum": ["released", "done", "cancelled"]},
}

GENERATE_BODY = _body(_GENERATE)
ABORT_BODY = _body(_ABORT)
TOKENIZE_BODY = _body(_TOKENIZE)
DETOKENIZE_BODY = _body(_DETOKENIZE, ["tokens"])
SCORE_BODY = _body(_SCORE, ["input_parts", "choices"])
CHAT_FRAME_BODY = _body(_CHAT_FRAME, ["roles"])
END_PROGRAMS_BODY = _body(_END_PROGRAMS, ["program_ids", "how"])
