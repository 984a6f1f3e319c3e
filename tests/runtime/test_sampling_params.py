"""SamplingParams: what is accepted, what each refusal says, and the spellings of other engines."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.spec import GrammarSpec
from radixlm.runtime.sampling_params import SamplingParams

NAN = math.nan


def test_defaults_are_valid_and_hashable() -> None:
    assert hash(SamplingParams()) == hash(SamplingParams())
    assert SamplingParams() == SamplingParams.from_mapping({})


# Each refusal must quote what came and say what is allowed.
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_tokens", -1, "integer of at least 0"),
        ("max_tokens", 1.0, "integer of at least 0"),
        ("max_tokens", True, "integer of at least 0"),
        ("max_tokens", "5", "integer of at least 0"),
        ("min_tokens", -1, "integer of at least 0"),
        ("min_tokens", 129, "at most max_tokens (128)"),
        ("n", 0, "from 1 to 1024"),
        ("n", 10**9, "from 1 to 1024"),
        ("n", True, "from 1 to 1024"),
        ("stop", "", "non-empty text"),
        ("stop", ["a", ""], "non-empty text"),
        ("stop", [1], "non-empty text"),
        ("stop", 5, "non-empty text"),
        ("stop_token_ids", 5, "list of token ids"),
        ("stop_token_ids", [-1], "integer of at least 0"),
        ("stop_token_ids", [True], "integer of at least 0"),
        ("stop_regex", "(", "must be a valid pattern"),
        ("stop_regex", "a*", "must not match the empty text"),
        ("temperature", -0.1, "finite number of at least 0"),
        ("temperature", NAN, "finite number of at least 0"),
        ("temperature", math.inf, "finite number of at least 0"),
        ("temperature", 10**400, "finite number of at least 0"),
        ("temperature", False, "finite number of at least 0"),
        ("temperature", "1", "finite number of at least 0"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_p", NAN, "above 0 and at most 1"),
        ("top_k", -2, "integer of at least -1"),
        ("top_k", 2.5, "integer of at least -1"),
        ("min_p", -0.1, "at least 0 and at most 1"),
        ("min_p", 2, "at least 0 and at most 1"),
        ("min_p", NAN, "at least 0 and at most 1"),
        ("frequency_penalty", 2.1, "at least -2 and at most 2"),
        ("frequency_penalty", NAN, "at least -2 and at most 2"),
        ("presence_penalty", -2.1, "at least -2 and at most 2"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", NAN, "above 0"),
        ("repetition_penalty", math.inf, "above 0"),
        ("logit_bias", {1: 101}, "at most 100"),
        ("logit_bias", {1: -101}, "at least -100"),
        ("logit_bias", {1: NAN}, "at least -100"),
        ("logit_bias", {1: "2"}, "at least -100"),
        ("logit_bias", {-1: 1}, "integer of at least 0"),
        ("logit_bias", {"x": 1}, "integer of at least 0"),
        ("logit_bias", {"²": 1}, "integer of at least 0"),
        ("logit_bias", {True: 1}, "integer of at least 0"),
        ("logit_bias", [1, 2], "map token ids to numbers"),
        ("logit_bias", 3, "map token ids to numbers"),
        ("ignore_eos", 1, "true or false"),
        ("skip_special_tokens", None, "true or false"),
        ("no_stop_trim", "yes", "true or false"),
        ("seed", 2**64, "from -9223372036854775808 to 18446744073709551615"),
        ("seed", -(2**63) - 1, "from -9223372036854775808"),
        ("seed", True, "integer"),
        ("seed", 0.0, "integer"),
        ("logprobs", -1, "from 0 to 1000"),
        ("logprobs", 1001, "from 0 to 1000"),
        ("logprobs", True, "from 0 to 1000"),
        ("prompt_logprobs_start", -1, "integer of at least 0"),
        ("regex", 5, "must be text"),
        ("regex", "a" * 9000, "1 to 8,192 bytes, got 9,000"),
        ("json_schema", "{", "must be JSON"),
        ("json_schema", "[]", "must be a JSON object (or true or false)"),
        ("json_schema", {"const": math.nan}, "JSON values only"),
        ("choice", [], "a list of one text or more"),
        ("choice", ["a", ""], "no empty text"),
        ("choice", ["a", 1], "must be text"),
        ("grammar", "", "1 to 262,144 bytes"),
        ("grammar_kind", "lark", "goes with grammar"),
        ("structural_tag", "tag", "must be JSON"),
        ("relaxed", True, "goes with json_schema or structural_tag"),
        ("compact", 1, "true or false"),
        ("grammar_after", "</think>", "goes with one of regex, json_schema"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_allowed(
    name: str, value: object, allowed: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{name: value})
    assert name in str(refusal.value)
    assert allowed in str(refusal.value)
    assert "got " in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("n", 1024),
        ("temperature", 0),
        ("temperature", 1e300),
        ("top_p", 1e-9),
        ("top_p", 1),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 10**6),
        ("min_p", 1),
        ("frequency_penalty", -2),
        ("presence_penalty", 2),
        ("repetition_penalty", 1e-300),
        ("logit_bias", {0: 100, 5: -100}),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
        ("logprobs", 0),
        ("logprobs", 1000),
        ("prompt_logprobs_start", 0),
        ("stop", ["x"] * 32),
        ("stop_regex", r"\d+\."),
    ],
)
def test_the_edges_of_each_range_are_accepted(name: str, value: object) -> None:
    SamplingParams(**{name: value})


def test_no_more_than_32_stops_are_accepted() -> None:
    for name in ("stop", "stop_regex"):
        with pytest.raises(InvalidRequest, match="at most 32 texts, got 33"):
            SamplingParams(**{name: [str(i) for i in range(33)]})


def test_two_grammars_at_once_are_named_both() -> None:
    with pytest.raises(InvalidRequest, match=r"at most one of .* got regex and choice"):
        SamplingParams(regex="a", choice=("b",))


def test_a_long_value_is_quoted_in_short() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(stop_token_ids="x" * 1_000_000)
    assert len(str(refusal.value)) < 200


def test_an_integer_too_long_to_print_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidRequest, match="n must be an integer from 1 to 1024"):
        SamplingParams(n=10**5000)


def test_spellings_of_the_same_value_are_equal() -> None:
    one = SamplingParams(stop="x", logit_bias={"3": 1, 1: 2}, temperature=1, stop_token_ids=[4, 4])
    other = SamplingParams(stop=["x"], logit_bias=((1, 2.0), (3, 1.0)), temperature=1.0, stop_token_ids=(4,))
    assert one == other
    assert hash(one) == hash(other)
    assert one.logit_bias == ((1, 2.0), (3, 1.0))
    assert SamplingParams(stop=None, stop_regex=(), logit_bias=None, stop_token_ids=None) == SamplingParams()


def test_one_token_biased_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="got 1 twice"):
        SamplingParams(logit_bias={"1": 2, 1: 3})


def test_a_copy_and_a_pickled_value_are_the_same_value() -> None:
    params = SamplingParams(stop="x", logit_bias={1: 2.0}, seed=3)
    assert replace(params) == params
    assert pickle.loads(pickle.dumps(params)) == params


def test_greedy_begins_below_a_millionth() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=9e-7).greedy
    assert not SamplingParams(temperature=1e-6).greedy


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_any_penalty_needs_history(name: str) -> None:
    assert SamplingParams(**{name: 0.5}).needs_history
    assert not SamplingParams().needs_history


def test_ids_outside_the_vocabulary_are_refused_when_it_is_known() -> None:
    SamplingParams(logit_bias={9: 1}, stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(InvalidRequest, match="logit_bias must hold token ids below 9, got 9"):
        SamplingParams(logit_bias={9: 1}).check_vocabulary(9)
    with pytest.raises(InvalidRequest, match="stop_token_ids must hold token ids below 9, got 9"):
        SamplingParams(stop_token_ids=[9]).check_vocabulary(9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_new_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"min_new_tokens": 2}, {"min_tokens": 2}),
        ({"sampling_seed": 5}, {"seed": 5}),
        ({"guided_json": {"type": "null"}}, {"json_schema": {"type": "null"}}),
        ({"guided_regex": "[a-c]+"}, {"regex": "[a-c]+"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"', "grammar_kind": "gbnf"}),
        ({"guided_json": None, "guided_regex": "", "ebnf": ""}, {}),
        ({"max_tokens": None, "max_new_tokens": 7, "stop": None, "seed": None}, {"max_tokens": 7}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"logit_bias": {"7": -100}}, {"logit_bias": ((7, -100.0),)}),
        ({"regex": "", "json_schema": "", "grammar": "", "choice": None}, {}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": False, "top_logprobs": None}, {}),
        ({"logprobs": 3}, {"logprobs": 3}),
    ],
)
def test_other_spellings_give_the_same_params(
    options: dict[str, object], expected: dict[str, object]
) -> None:
    assert SamplingParams.from_mapping(options) == SamplingParams(**expected)


def test_options_are_laid_over_a_base_and_null_keeps_it() -> None:
    base = SamplingParams(max_tokens=9, temperature=0.5, logprobs=2)
    options = {"max_new_tokens": 4, "temperature": None, "logprobs": False}
    assert SamplingParams.from_mapping(options, base) == SamplingParams(max_tokens=4, temperature=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "unknown sampling option 'temprature'; did you mean temperature"),
        ({"guided_regex": "a", "regex": "b"}, "guided_regex and regex are the same option"),
        ({"response_format": {"type": "json_object"}}, "unknown sampling option 'response_format'"),
        ({"zzzz": None}, "unknown sampling option 'zzzz'; known are max_tokens, min_tokens"),
        ({5: 1}, "unknown sampling option 5"),
        ({"max_tokens": 1, "max_new_tokens": 1}, "max_tokens and max_new_tokens are the same option"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs to be true, got None"),
        ({"logprobs": 2, "top_logprobs": 3}, "top_logprobs needs logprobs to be true, got 2"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs must be an integer from 0 to 1000"),
        ([1], r"sampling options must be an object, got \[1\]"),
        ({"regex": "a", "choice": ["a"]}, "at most one of regex, json_schema"),
        ({"grammar": "start: /a/", "grammar_kind": "yacc"}, "one of lark, gbnf, ebnf"),
    ],
)
def test_a_mapping_that_cannot_be_understood_is_refused(options: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams.from_mapping(options)  # type: ignore[arg-type]


NAMES = st.sampled_from([*SamplingParams.__dataclass_fields__, "max_new_tokens", "top_logprobs", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("019a", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_gives_params_or_an_invalid_request_and_nothing_else(options: dict[str, object]) -> None:
    try:
        params = SamplingParams.from_mapping(options)
    except InvalidRequest:
        return
    assert hash(params) == hash(replace(params))


def test_the_module_loads_no_torch() -> None:
    code = "import sys, radixlm.runtime.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def nested(depth: int) -> dict[str, object]:
    return {} if depth == 0 else {"not": nested(depth - 1)}


def test_a_schema_may_be_text_or_an_object_and_keeps_the_order_of_its_keys() -> None:
    by_text = SamplingParams(json_schema=' {"b": 1, "a": "é"} ')
    by_object = SamplingParams(json_schema={"b": 1, "a": "é"})
    assert by_text == by_object
    assert by_object.json_schema == '{"b":1,"a":"é"}'
    assert by_text.structure == GrammarSpec("json", '{"b":1,"a":"é"}')
    assert SamplingParams(json_schema=True).structure == GrammarSpec("json", "true")


def test_what_is_asked_for_becomes_one_value() -> None:
    assert SamplingParams().structure is None
    assert SamplingParams(regex="a+").structure == GrammarSpec("regex", "a+")
    assert SamplingParams(choice=["x", "y", "x"]).structure == GrammarSpec("choice", '["x", "y"]')
    assert SamplingParams(grammar="start: /a/").structure == GrammarSpec("lark", "start: /a/")
    for kind in (None, "ebnf", "gbnf"):
        found = SamplingParams(grammar='root ::= "a"', grammar_kind=kind).structure
        assert found == GrammarSpec("gbnf", 'root ::= "a"')
    found = SamplingParams(structural_tag={"a": 1}, relaxed=True, compact=True, grammar_after="x").structure
    assert found == GrammarSpec("tags", '{"a":1}', relaxed=True, compact=True, after="x")


def test_a_schema_is_limited_in_size_and_depth_before_anything_looks_at_it() -> None:
    SamplingParams(json_schema=nested(60))
    with pytest.raises(InvalidRequest, match="at most 64 levels"):
        SamplingParams(json_schema=nested(70))
    loop: dict[str, object] = {}
    loop["not"] = loop
    with pytest.raises(InvalidRequest, match="at most 64 levels"):
        SamplingParams(json_schema=loop)
    with pytest.raises(InvalidRequest, match="must be JSON"):
        SamplingParams(json_schema="[" * 100_000)
    with pytest.raises(InvalidRequest, match="1 to 262,144 bytes"):
        SamplingParams(json_schema={"const": "a" * 300_000})
    with pytest.raises(InvalidRequest, match="at most 20,000 texts"):
        SamplingParams(choice=[str(i) for i in range(20_001)])


def test_an_empty_text_for_structure_is_unset_and_changed_params_are_normalised_again() -> None:
    assert SamplingParams.from_mapping({"regex": "", "grammar_kind": ""}) == SamplingParams()
    base = SamplingParams(json_schema={"type": "object"}, compact=True)
    assert replace(base, max_tokens=5).structure == base.structure
