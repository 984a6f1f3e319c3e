"""Bodies of OpenAI's routes: what fields come to, and what is refused rather than ignored."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixlm.runtime.errors import InvalidRequest, TooLarge
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.completion_body import FIELDS, parse
from radixlm.runtime.server.context import ServerContext
from radixlm.runtime.server.failures import ModelNotFound, body_of, status_of
from radixlm.runtime.server.metrics import ServerMetrics
from radixlm.runtime.server.openai_body import (
    StreamOptions,
    check_model,
    job_fields,
    sampling_of,
    stream_options,
)
from radixlm.runtime.server.openai_fields import CALL_FIELDS, SAMPLING_FIELDS, STRUCTURE_FIELDS
from radixlm.runtime.server.service import Service
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.types import Hint

SCHEMA = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TAGS = {
    "type": "structural_tag",
    "triggers": ["<f>"],
    "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
}


def context(**settings: Any) -> ServerContext:
    """Of a server that runs nothing, and takes 500 tokens."""
    service = cast(Service, SimpleNamespace(engine=SimpleNamespace(max_length=500)))
    return ServerContext(service, ServerSettings(**settings), cast(ServerMetrics, None), model="org/served")


def sampling(chat: bool = False, **body: Any) -> SamplingParams:
    return sampling_of(body, max_tokens_default=16, context=context(), chat=chat)


def test_every_plain_field_reaches_the_sampling() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "n": 3,
        "seed": 11,
        "min_tokens": 2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    found = sampling(**fields, max_tokens=9, stop="x", stop_token_ids=[4], logit_bias={"5": 1.5})
    assert {name: getattr(found, name) for name in fields} == fields
    assert (found.max_tokens, found.stop, found.stop_token_ids) == (9, ("x",), (4,))
    assert found.logit_bias == ((5, 1.5),)


def test_null_and_unknown_fields_are_the_defaults() -> None:
    nulls = dict.fromkeys(
        ["temperature", "n", "stop", "seed", "max_tokens", "logprobs", "best_of", "suffix", "regex"]
    )
    assert sampling(**nulls, response_format=None, user="me", some_field=[1]) == SamplingParams(max_tokens=16)


def test_values_that_ask_for_nothing_are_taken() -> None:
    neutral = {"suffix": "", "use_beam_search": False, "typical_p": 1.0, "mirostat": 0, "bad_words": []}
    neutral |= {"response_format": {"type": "text"}, "structured_outputs": {}, "regex": "", "best_of": 1}
    assert sampling(**neutral) == SamplingParams(max_tokens=16)


def test_max_completion_tokens_is_max_tokens() -> None:
    assert sampling(max_completion_tokens=5).max_tokens == 5
    assert sampling(max_completion_tokens=5, max_tokens=5).max_tokens == 5
    with pytest.raises(InvalidRequest, match="got 5 and 6"):
        sampling(max_completion_tokens=5, max_tokens=6)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"temperature": "hot"}, "temperature must be a finite number of at least 0, got 'hot'"),
        ({"n": 0}, "n must be an integer from 1 to 1024, got 0"),
        ({"n": True}, "n must be an integer from 1 to 1024, got True"),
        ({"n": 129}, "n must be at most 128, got 129"),
        ({"best_of": 3}, "best_of must be n (1), since all choices are returned, got 3"),
        ({"n": 2, "best_of": 1}, "best_of must be n (2), since all choices are returned, got 1"),
        ({"logprobs": 21}, "logprobs must be at most 20, got 21"),
        ({"logprobs": "5"}, "logprobs must be an integer from 0 to 1000, got '5'"),
        ({"suffix": "tail"}, "suffix is not supported, texts are continued, gaps are not filled; got 'tail'"),
        ({"use_beam_search": True}, "use_beam_search is not supported, ask for n choices; got True"),
        ({"bad_words": ["x"]}, "bad_words is not supported"),
        ({"typical_p": 0.5}, "typical_p is not supported"),
        ({"max_tokens": -1}, "max_tokens must be an integer of at least 0, got -1"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output must be true or false, got 1"),
    ],
)
def test_a_wrong_value_is_quoted_with_what_is_allowed(body: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling(**body)
    assert says in str(caught.value)


def test_log_probabilities_are_a_switch_in_a_chat_and_a_number_elsewhere() -> None:
    assert sampling(logprobs=3).logprobs == 3
    assert sampling(logprobs=0).logprobs == 0
    assert sampling(chat=True, logprobs=True).logprobs == 0
    assert sampling(chat=True, logprobs=True, top_logprobs=4).logprobs == 4
    assert sampling(chat=True, logprobs=False, top_logprobs=0).logprobs is None
    for body, says in (
        ({"logprobs": 3}, "logprobs must be true or false, got 3"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be at most 20, got 21"),
        ({"echo": True}, "echo is not supported in a chat, got True"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            sampling(chat=True, **body)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"guided_choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"structured_outputs": {"choice": ["a", "b"], "json": None}}, "choice", '["a", "b"]'),
        ({"ebnf": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "gbnf", 'root ::= "a"'),
        ({"json_schema": '{"type": "integer"}'}, "json", '{"type":"integer"}'),
        ({"guided_json": {"type": "integer"}}, "json", '{"type":"integer"}'),
        ({"guided_json_object": True}, "json", '{"type":"object"}'),
        ({"structured_outputs": {"json": {"type": "integer"}}}, "json", '{"type":"integer"}'),
        ({"structured_outputs": {"json_object": True}}, "json", '{"type":"object"}'),
        ({"response_format": {"type": "json_object"}}, "json", '{"type":"object"}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "json", "{}"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "json", "{}"),
    ],
)
def test_each_way_to_ask_for_a_form_is_applied(body: dict[str, Any], kind: str, text: str) -> None:
    structure = sampling(**body).structure
    assert structure is not None
    assert (structure.kind, structure.text) == (kind, text)


def test_tags_come_as_an_object_or_as_text() -> None:
    given = sampling(structural_tag=TAGS)
    assert given.structure is not None
    assert given.structure.kind == "tags"
    assert sampling(response_format=TAGS) == given
    assert sampling(structured_outputs={"structural_tag": given.structural_tag}) == given


@pytest.mark.parametrize(("strict", "relaxed"), [(None, True), (False, True), (True, False)])
def test_a_named_schema_is_exact_if_it_is_strict(strict: bool | None, relaxed: bool) -> None:
    named = {"name": "numbers", "schema": SCHEMA, "strict": strict}
    found = sampling(response_format={"type": "json_schema", "json_schema": named})
    assert found.relaxed is relaxed
    assert sampling(guided_json=SCHEMA).relaxed is False
    assert sampling(guided_json=SCHEMA, relaxed=True, compact=True).compact is True


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"regex": "a", "guided_choice": ["b"]}, "in one way only, got regex and guided_choice"),
        (
            {"ebnf": "root ::= 'a'", "response_format": {"type": "json_object"}},
            "got ebnf and response_format",
        ),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "got regex and json_object"),
        ({"structured_outputs": {"lark": "x"}}, "got 'lark'"),
        ({"structured_outputs": "a+"}, "structured_outputs must be an object, got 'a+'"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "got 'whitespace_pattern'"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern is not supported, use compact"),
        ({"response_format": {"type": "xml"}}, "response_format.type must be one of text, json_object"),
        ({"response_format": "json"}, "response_format must be an object, got 'json'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema needs a schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
            "response_format.json_schema.strict must be true or false, got 'yes'",
        ),
        ({"guided_json": [1]}, "guided_json must hold a JSON Schema, an object or its text, got [1]"),
        ({"guided_choice": "a"}, "guided_choice must hold a list of texts, got 'a'"),
        ({"relaxed": True}, "relaxed goes with json_schema or structural_tag"),
    ],
)
def test_a_form_that_is_not_understood_is_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sampling(**body)
    assert says in str(caught.value)


def test_the_served_model_or_none_is_taken() -> None:
    for name in ("org/served", "", None):
        check_model({"model": name}, context())
    check_model({}, context())
    with pytest.raises(ModelNotFound) as caught:
        check_model({"model": "gpt-4"}, context())
    assert status_of(caught.value) == 404
    [error] = body_of(caught.value).values()
    assert isinstance(error, dict)
    assert error["code"] == "model_not_found"
    assert "'gpt-4'" in error["message"]
    assert "'org/served'" in error["message"]
    with pytest.raises(InvalidRequest, match="model must be text, got 7"):
        check_model({"model": 7}, context())


def test_salt_priority_and_hint_are_those_of_the_job() -> None:
    assert job_fields({}) == ("", 0, Hint())
    assert job_fields({"cache_salt": "a", "priority": -3}) == ("a", -3, Hint())
    assert job_fields({"hint": {"program_id": "b", "hold_s": 2}}) == ("", 0, Hint("b", hold_s=2.0))
    wrong: tuple[dict[str, object], ...] = ({"cache_salt": 1}, {"priority": "high"}, {"priority": True})
    for body in (*wrong, {"priority": 1 << 40}, {"hint": 1}, {"hint": {"done": 1}}):
        with pytest.raises(InvalidRequest, match="must be"):
            job_fields(body)


def test_stream_options_need_a_stream() -> None:
    assert stream_options({"stream": True}) == StreamOptions()
    asked = {"include_usage": True, "continuous_usage_stats": True}
    assert stream_options({"stream": True, "stream_options": asked}) == StreamOptions(True, True)
    for body in (
        {"stream_options": asked},
        {"stream": True, "stream_options": 1},
        {"stream": "yes", "stream_options": {}},
        {"stream": True, "stream_options": {"include_usage": 1}},
    ):
        with pytest.raises(InvalidRequest, match="stream"):
            stream_options(body)


ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.5,
    1e300,
    "",
    "\0",
    "1",
    [],
    [0],
    [None],
    [[]],
    {},
    {"": ""},
]


@pytest.mark.parametrize("field", sorted({*FIELDS, *CALL_FIELDS, *SAMPLING_FIELDS, *STRUCTURE_FIELDS}))
def test_any_value_of_any_field_is_read_or_refused(field: str) -> None:
    for value in ODD:
        with suppress(InvalidRequest, ModelNotFound):
            parse({"prompt": "a", field: value}, context())


@pytest.mark.parametrize("outer", ["response_format", "structured_outputs", "stream_options"])
def test_any_value_inside_of_an_object_is_read_or_refused(outer: str) -> None:
    kinds = ("json_object", "json_schema", "structural_tag")
    for value in ODD:
        for kind in kinds:
            inside = {"type": kind, "schema": value, "json_schema": {"schema": value, "strict": value}}
            for body in (inside, {"json_schema": inside["json_schema"], "type": kind}, {kind: value}):
                with suppress(InvalidRequest):
                    parse({"prompt": "a", "stream": True, outer: body}, context())


def test_a_prompt_of_too_many_ids_is_refused_without_a_look_at_them() -> None:
    assert parse({"prompt": [1] * 500}, context()).prompts == ((1,) * 500,)
    with pytest.raises(TooLarge, match=r"prompt\[1\] has 501 tokens, but context and pool hold 500"):
        parse({"prompt": [[1], [None] * 501]}, context())
