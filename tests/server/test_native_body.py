"""Bodies of /generate: what they ask for, what is ignored, what is refused and how."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.native_body import NativeCall, NativePrompt, parse_call
from radixlm.runtime.server.settings import ServerSettings

SETTINGS = ServerSettings(max_prompts=4, max_choices=6)


def parse(**body: Any) -> NativeCall:
    return parse_call(body, SETTINGS)


def one(**body: Any) -> NativePrompt:
    [prompt] = parse(**{"text": "a", **body}).prompts
    return prompt


def sampled(**options: Any) -> SamplingParams:
    return one(sampling_params=options).sampling


def refusal(**body: Any) -> str:
    if "input_ids" not in body:
        body = {"text": "a", **body}
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    return str(caught.value)


def test_a_text_alone_has_the_defaults_of_this_surface() -> None:
    call = parse(text="a")
    assert call == NativeCall(
        (NativePrompt("a", SamplingParams(max_tokens=128, temperature=1.0), None, "", ""),),
        is_list=False,
        stream=False,
        with_text=False,
        priority=0,
    )


def test_null_is_the_default_everywhere() -> None:
    names = ("sampling_params", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream")
    more = ("return_text_in_logprobs", "priority", "extra_key", "cache_salt", "session_id", "input_ids")
    assert parse(text="a", **dict.fromkeys((*names, *more))) == parse(text="a")
    options = dict.fromkeys(("max_new_tokens", "temperature", "stop", "regex", "n", "no_stop_trim", "seed"))
    assert sampled(**options) == SamplingParams()


def test_options_have_the_names_of_sglang() -> None:
    params = sampled(
        max_new_tokens=5,
        min_new_tokens=2,
        n=3,
        stop=["x", "y"],
        stop_token_ids=[7],
        stop_regex="z+",
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        ebnf='root ::= "a"',
        ignore_eos=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        no_stop_trim=True,
        logit_bias={"3": 1.5},
        sampling_seed=9,
    )
    assert params == SamplingParams(
        max_tokens=5,
        min_tokens=2,
        n=3,
        stop=("x", "y"),
        stop_token_ids=(7,),
        stop_regex=("z+",),
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        grammar='root ::= "a"',
        ignore_eos=True,
        skip_special_tokens=False,
        no_stop_trim=True,
        logit_bias=((3, 1.5),),
        seed=9,
    )


def test_what_a_client_of_the_frontend_language_sends_is_taken() -> None:
    params = sampled(
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        max_new_tokens=16,
        min_new_tokens=0,
        n=1,
        stop=[],
        stop_token_ids=[],
        stop_regex=[],
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        ignore_eos=False,
        regex=None,
        json_schema=None,
    )
    assert params == SamplingParams(max_tokens=16)


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_an_empty_text_asks_for_no_structure(name: str) -> None:
    assert sampled(**{name: ""}).structure is None


def test_structure_is_asked_for_once() -> None:
    assert sampled(json_schema='{"type": "object"}').structure is not None
    assert "regex and grammar" in refusal(sampling_params={"regex": "a", "ebnf": 'root ::= "a"'})


def test_unknown_fields_are_ignored_at_the_top_and_in_the_options() -> None:
    assert parse(text="a", foo=1, bar={"x": []}, model="m") == parse(text="a")
    assert sampled(foo=1, custom_params={"a": 1}, stream_interval=3) == SamplingParams()


def test_options_that_fields_of_the_body_stand_for_are_ignored() -> None:
    assert sampled(logprobs=3, prompt_logprobs_start=0) == SamplingParams()


@pytest.mark.parametrize(
    "name",
    ["guided_decoding_backend", "response_format", "jsonschema", "structured_outputs", "JSON_mode", "lark"],
)
def test_what_looks_like_structured_output_is_never_dropped(name: str) -> None:
    message = refusal(sampling_params={name: "x"})
    assert name in message
    assert "'x'" in message
    assert sampled(**{name: None}) == SamplingParams()
    assert name in refusal(**{name: {"a": 1}})


def test_structure_beside_the_options_is_refused() -> None:
    assert "'regex' is unknown beside sampling_params" in refusal(regex="[ab]")


@pytest.mark.parametrize("name", ["image_data", "input_embeds", "lora_path", "session_params"])
def test_what_would_change_the_answer_and_is_not_there_is_refused(name: str) -> None:
    assert f"{name} is not supported" in refusal(**{name: "x"})
    assert parse(**{"text": "a", name: None}) == parse(**{"text": "a", name: []}) == parse(text="a")


def test_prompts_are_texts_or_ids_one_or_several() -> None:
    assert [prompt.content for prompt in parse(text=["a", ""]).prompts] == ["a", ""]
    assert [prompt.content for prompt in parse(input_ids=[1, 2]).prompts] == [(1, 2)]
    assert [prompt.content for prompt in parse(input_ids=[[1], [2, 3]]).prompts] == [(1,), (2, 3)]


@pytest.mark.parametrize(
    ("body", "is_list"),
    [
        ({"text": "a"}, False),
        ({"input_ids": [1]}, False),
        ({"text": ["a"]}, True),
        ({"input_ids": [[1]]}, True),
        ({"text": "a", "sampling_params": {"n": 2}}, True),
        ({"text": "a", "sampling_params": [{"n": 1}]}, False),
    ],
)
def test_the_reply_is_a_list_for_a_list_or_for_several_choices(body: dict[str, Any], is_list: bool) -> None:
    assert parse(**body).is_list == is_list


def test_one_value_is_for_all_prompts_and_a_list_has_one_for_each() -> None:
    first, second = parse(
        text=["a", "b"],
        sampling_params=[{"n": 2}, None],
        rid=["x", None],
        return_logprob=[True, False],
        logprob_start_len=[2, -1],
        top_logprobs_num=5,
        cache_salt="s",
        extra_key=["k", "l"],
    ).prompts
    assert first == NativePrompt("a", SamplingParams(n=2, logprobs=5, prompt_logprobs_start=2), "x", "s", "k")
    assert second == NativePrompt("b", SamplingParams(), None, "s", "l")
    assert first.reports
    assert not second.reports


@pytest.mark.parametrize(
    ("fields", "logprobs", "start"),
    [
        ({}, None, None),
        ({"top_logprobs_num": 3, "logprob_start_len": 1}, None, None),
        ({"return_logprob": True}, 0, None),
        ({"return_logprob": True, "top_logprobs_num": 3}, 3, None),
        ({"return_logprob": True, "logprob_start_len": 0}, 0, 0),
        ({"return_logprob": True, "logprob_start_len": 7}, 0, 7),
        ({"return_logprob": True, "logprob_start_len": -1}, 0, None),
        ({"return_logprob": True, "sampling_params": {"max_new_tokens": 0}}, 0, 0),
        ({"return_logprob": True, "logprob_start_len": -1, "sampling_params": {"max_new_tokens": 0}}, 0, 0),
        ({"return_logprob": True, "logprob_start_len": 2, "sampling_params": {"max_new_tokens": 0}}, 0, 2),
    ],
)
def test_log_probabilities_begin_where_they_are_asked_for(
    fields: dict[str, Any], logprobs: int | None, start: int | None
) -> None:
    params = one(**fields).sampling
    assert (params.logprobs, params.prompt_logprobs_start) == (logprobs, start)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": None}, "one of text, input_ids and input_parts is needed, got none"),
        ({"text": "a", "input_ids": [1]}, "got text and input_ids"),
        ({"text": 5}, "text must be a text or a list of them that is not empty, got 5"),
        ({"text": []}, "got []"),
        ({"text": ["a", None]}, "text must be text, got None"),
        ({"text": ["a"] * 5}, "text may hold 4 prompts, got 5"),
        ({"input_ids": []}, "input_ids must be a list of token ids"),
        ({"input_ids": "a"}, "got 'a'"),
        ({"input_ids": [1, "a"]}, "input_ids must be a list of token ids that is not empty, got [1, 'a']"),
        ({"input_ids": [True]}, "got [True]"),
        ({"input_ids": [[1], []]}, "got []"),
        ({"input_ids": [[1], 2]}, "got 2"),
        ({"input_ids": [[1]] * 5}, "input_ids may hold 4 prompts, got 5"),
        ({"sampling_params": 5}, "sampling_params must be an object, got 5"),
        ({"sampling_params": [{}, {}]}, "sampling_params must hold one entry a prompt, 1 in all, got 2"),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_tokens must be an integer of at least 0, got -1"),
        ({"sampling_params": {"temperature": "hot"}}, "got 'hot'"),
        ({"sampling_params": {"stop": ["x"] * 33}}, "33"),
        ({"sampling_params": {"spaces_between_special_tokens": 1}}, "must be true or false, got 1"),
        ({"sampling_params": {"n": 7}}, "a request may ask for 6 texts, got 7 by n"),
        ({"text": ["a"] * 4, "sampling_params": {"n": 2}}, "got 8 by n"),
        ({"rid": ""}, "rid must be a text that is not empty"),
        ({"rid": 5}, "rid must be text, got 5"),
        ({"rid": ["a", "b"]}, "rid must hold one entry a prompt"),
        ({"return_logprob": 1}, "return_logprob must be true or false, got 1"),
        ({"logprob_start_len": -2}, "logprob_start_len must be an integer from -1"),
        ({"top_logprobs_num": 101}, "top_logprobs_num must be an integer from 0 to 100, got 101"),
        ({"return_text_in_logprobs": "yes"}, "got 'yes'"),
        ({"stream": "true"}, "stream must be true or false, got 'true'"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"extra_key": 5}, "extra_key must be text, got 5"),
        ({"cache_salt": ["a", "b"]}, "cache_salt must hold one entry a prompt"),
        ({"session_id": {}}, "session_id must be text, got {}"),
    ],
)
def test_a_wrong_value_is_named_and_quoted(body: dict[str, Any], said: str) -> None:
    assert said in refusal(**body)


def test_prompts_without_choices_are_bounded_by_their_own_limit() -> None:
    settings = ServerSettings(max_prompts=40, max_choices=6)
    assert len(parse_call({"text": ["a"] * 40}, settings).prompts) == 40


NAMES = (
    "text",
    "input_ids",
    "sampling_params",
    "rid",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "stream",
    "priority",
    "extra_key",
    "cache_salt",
    "session_id",
    "max_new_tokens",
    "stop",
    "regex",
    "n",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(NAMES), part, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_whatever_comes_is_taken_or_refused(body: dict[str, Any]) -> None:
    for given_body in (body, {"text": "a", **body}):
        with suppress(InvalidRequest):
            assert parse_call(given_body, SETTINGS).prompts
