"""Scripted: the fake that users test their programs with."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from radixlm.frontend.call_checks import check_sampling
from radixlm.frontend.errors import InvalidCall, Unreachable
from radixlm.frontend.protocol import Frame, GenerateCall, Generated, Hint, Part, Plain, Sampling, ScoreCall
from radixlm.frontend.scripted import Scripted
from radixlm.runtime.engine_backend import sampling_of
from radixlm.runtime.errors import InvalidRequest


def call(*parts: Part, hint: Hint | None = None, **sampling: object) -> GenerateCall:
    return GenerateCall(parts, Sampling(**sampling), hint or Hint())  # type: ignore[arg-type]


def texts(backend: Scripted, *prompts: str, **sampling: object) -> list[str]:
    async def main() -> list[str]:
        return [each.text for prompt in prompts for each in await backend.generate(call(prompt, **sampling))]

    return asyncio.run(main())


def one(backend: Scripted, asked: GenerateCall) -> Generated:
    (found,) = asyncio.run(backend.generate(asked))
    return found


class TestReplies:
    def test_a_text_is_every_reply_and_a_list_is_one_after_another(self) -> None:
        assert texts(Scripted("yes"), "a", "b") == ["yes", "yes"]
        assert texts(Scripted(["one", "two", "three"]), "a", "b") == ["one", "two"]
        assert texts(Scripted(["one", "two"]), "a", n=2) == ["one", "two"]

    def test_a_mapping_goes_by_what_stands_last_in_the_prompt(self) -> None:
        backend = Scripted({"Paris?": "yes", re.compile(r"\d\?"): ["1", "2"], "": "else", "s?": "short"})
        prompts = ("Is it Paris?\nASSISTANT: ", "3?", "4?", "what", "4? Paris?")
        assert texts(backend, *prompts) == ["yes", "1", "2", "else", "yes"]

    def test_a_function_gets_the_prompt_with_ids_as_text(self) -> None:
        backend = Scripted(lambda prompt: prompt.upper())
        assert one(backend, call("a", (98, 99), Plain("d"))).text == "ABCD"

    def test_an_exception_is_raised(self) -> None:
        with pytest.raises(Unreachable, match="gone"):
            texts(Scripted([Unreachable("gone")]), "a")

    @pytest.mark.parametrize(
        ("replies", "words"),
        [
            ([], "has 0 replies, and this call needs one more"),
            ({"b": "x"}, "no reply to a prompt that ends in 'a'; it knows 'b'"),
            ({"a": []}, "has 0 replies for 'a'"),
            (lambda prompt: 3, "must be a text or an error, got 3"),
        ],
    )
    def test_no_reply_is_said_with_the_end_of_the_prompt(self, replies: object, words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            texts(Scripted(replies), "a")  # type: ignore[arg-type]

    def test_stops_cut_and_limits_cut_if_asked_for(self) -> None:
        assert texts(Scripted("one\ntwo"), "a", stop=("two", "\n")) == ["one"]
        assert texts(Scripted("one22"), "a", stop_regex=(r"\d+",)) == ["one"]
        assert texts(Scripted("long text"), "a", max_new_tokens=4) == ["long text"]
        cut = one(Scripted("long text", limit=True), call("a", max_new_tokens=4))
        assert (cut.text, cut.finish_reason) == ("long", "length")

    def test_reading_a_prompt_takes_no_reply(self) -> None:
        backend = Scripted(["only"])
        assert texts(backend, "a", max_new_tokens=0) == [""]
        assert texts(backend, "a") == ["only"]

    def test_a_reply_must_have_the_form_that_is_asked_for(self) -> None:
        with pytest.raises(InvalidCall, match="does not match the regex"):
            texts(Scripted("x"), "a", regex="[0-9]+")
        with pytest.raises(InvalidCall, match="no JSON"):
            texts(Scripted("x"), "a", json_schema="{}")
        assert texts(Scripted("7"), "a", regex="[0-9]+") == ["7"]
        assert texts(Scripted("x"), "a", regex=r"\p{L}") == ["x"], "Python's own dialect does not know this"


class TestCounts:
    def test_tokens_are_characters_and_the_next_call_reuses_all_but_the_last(self) -> None:
        backend = Scripted("reply")
        first = one(backend, call("prompt"))
        assert first.parts == (tuple(map(ord, "reply")),)
        assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (6, 0, 5)
        second = one(backend, call("prompt", *first.parts, " more"))
        assert (second.prompt_tokens, second.cached_tokens) == (16, 10)
        assert one(backend, call("prompt")).cached_tokens == 5, "the last token is always computed"
        assert one(backend, call("proof")).cached_tokens == 3

    def test_flush_forgets(self) -> None:
        backend = Scripted("reply")
        one(backend, call("prompt"))
        asyncio.run(backend.flush())
        assert one(backend, call("prompt")).cached_tokens == 0

    def test_holds_and_endings_are_recorded(self) -> None:
        backend = Scripted("reply")
        assert one(backend, call("prompt", hint=Hint("p", hold_s=1.0))).held_tokens == 10
        backend.end(["p", "q"], "done")
        assert backend.ended == [(("p", "q"), "done")]

    def test_calls_are_recorded_with_what_became_of_them(self) -> None:
        backend = Scripted(["ok", ValueError("no")])
        texts(backend, "a")
        with pytest.raises(ValueError, match="no"):
            texts(backend, "b")
        assert backend.prompts == ["a", "b"]
        assert [each.state for each in backend.calls] == ["answered", "failed"]

    def test_log_probabilities_have_sglang_s_form(self) -> None:
        meta = one(Scripted("xy"), call("ab", return_logprob=True, logprob_start_len=0)).meta
        assert meta["input_token_logprobs"] == [[None, 97, None], [-1.0, 98, None]]
        assert meta["output_token_logprobs"] == [[-1.0, 120, None], [-1.0, 121, None]]


class TestScores:
    @staticmethod
    def score(backend: Scripted, *choices: str) -> list[tuple[float, ...]]:
        scored = asyncio.run(backend.score(ScoreCall(("prompt",), choices)))
        assert scored.prompt_tokens == 6
        return [choice.logprobs for choice in scored.choices]

    def test_a_number_is_that_of_every_character(self) -> None:
        assert self.score(Scripted(scores={"ab": -1, "c": [-2.0]}), "ab", "c") == [(-1.0, -1.0), (-2.0,)]

    def test_a_function_gets_prompt_and_choice(self) -> None:
        backend = Scripted(scores=lambda prompt, choice: -float(len(prompt + choice)))
        assert self.score(backend, "a", "b") == [(-7.0,), (-7.0,)]

    def test_without_scores_the_reply_is_the_choice(self) -> None:
        assert self.score(Scripted("no"), "yes", "no") == [(-1.0,) * 3, (0.0,) * 2]

    @pytest.mark.parametrize(
        ("backend", "words"),
        [
            (Scripted("maybe"), "'maybe' is none of the choices"),
            (Scripted(scores={"yes": 0.0}), r"no score for \['no'\]"),
            (Scripted(scores={"yes": 0.0, "no": [1.0]}), "one for each of its 2 characters, got 1"),
        ],
    )
    def test_scores_that_are_missing_are_said(self, backend: Scripted, words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            self.score(backend, "yes", "no")

    def test_an_error_in_the_place_of_a_reply_is_raised(self) -> None:
        with pytest.raises(Unreachable):
            self.score(Scripted([Unreachable("x")]), "a")

    def test_no_choices_are_refused(self) -> None:
        with pytest.raises(InvalidCall, match="choices"):
            self.score(Scripted())


class TestTime:
    def test_a_stream_comes_in_pieces(self) -> None:
        async def main() -> None:
            deltas = [delta async for delta in Scripted("abcdefgh", piece=3).stream(call("p"))]
            assert [delta.text for delta in deltas] == ["abc", "def", "gh", ""]
            assert deltas[-1].done is not None
            assert deltas[-1].done.text == "abcdefgh"

        asyncio.run(main())

    def test_failures_on_demand_take_no_reply(self) -> None:
        backend = Scripted(["reply"])
        backend.fail_next(Unreachable("later"), times=2)
        for _ in range(2):
            with pytest.raises(Unreachable, match="later"):
                texts(backend, "a")
        assert texts(backend, "a") == ["reply"]

    def test_calls_wait_while_it_is_paused_whoever_resumes_it(self) -> None:
        backend = Scripted("reply")
        backend.pause()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(texts, backend, "a")
            backend.wait_for_calls(1)
            assert not found.done()
            with pytest.raises(InvalidCall, match="1 calls run"):
                asyncio.run(backend.flush())
            threading.Thread(target=backend.resume).start()
            assert found.result(10) == ["reply"]

    def test_a_stream_may_be_paused_in_the_middle_and_left(self) -> None:
        async def main() -> None:
            backend = Scripted("abcdef", piece=2)
            backend.pause(after=2)
            stream = backend.stream(call("p"))
            assert [(await anext(stream)).text for _ in range(2)] == ["ab", "cd"]
            third = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            assert not third.done()
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
            assert backend.calls[0].state == "cancelled"
            backend.resume()
            await backend.aclose()

        asyncio.run(main())

    def test_a_call_that_is_cancelled_is_recorded_so(self) -> None:
        async def main() -> None:
            backend = Scripted("reply")
            backend.pause()
            task = asyncio.create_task(backend.generate(call("p")))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert backend.calls[0].state == "cancelled"

        asyncio.run(main())

    def test_waiting_for_calls_that_do_not_come_ends(self) -> None:
        with pytest.raises(TimeoutError, match="0 of 1 calls"):
            Scripted().wait_for_calls(1, timeout=0.01)


def test_frames_are_plain_unless_named_and_info_says_what_it_is() -> None:
    assert asyncio.run(Scripted().frame(("user",))) == Frame("USER: ", "\n")
    assert asyncio.run(Scripted(chat_template="chatml").frame(("user",))).before == "<|im_start|>user\n"
    assert asyncio.run(Scripted().info()) == {"runtime": "scripted", "calls": 0}


def test_a_piece_must_have_a_character() -> None:
    with pytest.raises(InvalidCall, match="piece"):
        Scripted(piece=0)


WRONG: dict[str, list[object]] = {
    "max_new_tokens": [-1, 1.5, "3", True],
    "min_new_tokens": [-1, 129, "3"],
    "n": [0, 1025, "2"],
    "stop": [("",), ("x" * 1025,), ("x",) * 33, (3,), ("\ud83d",)],
    "stop_regex": [("a*",), ("",)],
    "stop_token_ids": [(-1,), ("a",), (True,)],
    "temperature": [-0.1, float("nan"), float("inf"), "1"],
    "top_p": [0, 1.1, "1"],
    "top_k": [-2, 1.5],
    "min_p": [-0.1, 1.5],
    "frequency_penalty": [-2.5, 2.5],
    "presence_penalty": [-2.5, 2.5],
    "repetition_penalty": [0, -1.0],
    "ignore_eos": [1, "yes"],
    "seed": [2**64, -(2**63) - 1, "1", 1.0],
    "json_schema": ["{", "[]", "3"],  # what stands in one, an engine tells when it compiles it: see below
    "regex": ["x" * 9000],
    "choice": [(), ("",), (1,)],
    "relaxed": [True, 1],
    "compact": [True],
}
RIGHT: dict[str, list[object]] = {
    "max_new_tokens": [0, 10**6],
    "min_new_tokens": [0, 128, None],
    "n": [1, 2],
    "stop": [("x",), ("x" * 1024,), ("x",) * 32],
    "stop_regex": [("a+",), (r"\p{L}",)],
    "stop_token_ids": [(), (0, 5)],
    "temperature": [0, 0.0, 5],
    "top_p": [0.1, 1, None],
    "top_k": [-1, 0, 5, None],
    "min_p": [0, 1],
    "frequency_penalty": [-2, 2],
    "presence_penalty": [-2, 2],
    "repetition_penalty": [0.1, 50],
    "ignore_eos": [True],
    "seed": [-1, 2**64 - 1, None],
    "json_schema": ["{}", "true"],
    "regex": ["1"],
    "grammar": ['root ::= "1"'],
    "choice": [("1", "2")],
}


class TestChecks:
    """What engines refuse is refused: a test must not pass with a call that no engine takes."""

    @pytest.mark.parametrize(("name", "value"), [(name, each) for name in WRONG for each in WRONG[name]])
    def test_what_the_engine_refuses_is_refused_by_its_name(self, name: str, value: object) -> None:
        asked = call("a", **{name: value})
        with pytest.raises(InvalidRequest):
            sampling_of(asked.sampling)
        with pytest.raises(InvalidCall, match=name):
            one(Scripted("1"), asked)

    @pytest.mark.parametrize(("name", "value"), [(name, each) for name in RIGHT for each in RIGHT[name]])
    def test_what_the_engine_takes_is_taken(self, name: str, value: object) -> None:
        options = {name: value, **({"max_new_tokens": 128} if name == "min_new_tokens" else {})}
        sampling_of(Sampling(**options))  # type: ignore[arg-type]
        check_sampling(Sampling(**options))  # type: ignore[arg-type]

    @pytest.mark.parametrize("hold_s", [-1.0, 3601, float("nan"), "5", True])
    def test_a_hold_that_no_engine_grants_is_refused(self, hold_s: object) -> None:
        with pytest.raises(InvalidCall, match="hold_s must be a number of seconds from 0 to 3600"):
            one(Scripted("1"), call("a", hint=Hint("p", hold_s=hold_s)))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ('{"type": "strin"}', r"json_schema is no schema: 'strin' is not valid .* at /type"),
            (
                '{"properties": {"a": {"minLength": "2"}}}',
                "'2' is not of type 'integer' at /properties/a/min",
            ),
            ('{"$schema": 5}', r"5 is not of type 'string' at /\$schema"),
            ('{"not": ' * 400 + "{}" + "}" * 400, "json_schema is nested too deep"),
        ],
    )
    def test_what_is_no_schema_is_refused_as_engines_do(self, schema: str, words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            one(Scripted("{}"), call("a", json_schema=schema))

    @pytest.mark.parametrize(
        "schema",
        ['{"pattern": "\\\\p{L}+", "format": "no such"}', '{"$schema": "no such", "type": "object"}'],
    )
    def test_patterns_and_formats_are_left_to_engines(self, schema: str) -> None:
        assert texts(Scripted("{}"), "a", json_schema=schema) == ["{}"]

    def test_what_checks_schemas_is_loaded_with_the_first_one(self) -> None:
        code = "import sys, radixlm.frontend.scripted; print('jsonschema' in sys.modules)"
        done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == "False"

    def test_two_forms_are_refused_and_so_is_a_stream_of_two_texts(self) -> None:
        with pytest.raises(InvalidCall, match=r"at most one of .* got regex and choice"):
            one(Scripted("1"), call("a", regex="1", choice=("1",)))

        async def stream() -> None:
            async for _ in Scripted("1").stream(call("a", n=2)):
                pass

        with pytest.raises(InvalidCall, match="a stream has one text, got n 2"):
            asyncio.run(stream())

    def test_a_refused_call_takes_no_reply_and_is_recorded_as_failed(self) -> None:
        backend = Scripted(["only"])
        with pytest.raises(InvalidCall, match="top_p"):
            one(backend, call("a", top_p=2.0))
        assert one(backend, call("a")).text == "only"
        assert [each.state for each in backend.calls] == ["failed", "answered"]

    def test_a_reply_is_one_of_the_choices(self) -> None:
        with pytest.raises(InvalidCall, match="'3' is none of the choices"):
            one(Scripted("3"), call("a", choice=("1", "2")))

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"replies": 3}, "replies must be a text, .*, got 3"),
            ({"replies": {3: "x"}}, "a key of replies must be .*, got 3"),
            ({"replies": [3]}, "a scripted reply must be a text or an error, got 3"),
            ({"piece": "3"}, "piece must be a count of at least 1, got '3'"),
            ({"piece": 0}, "piece must be a count of at least 1, got 0"),
            ({"limit": "no"}, "limit must be True or False, got 'no'"),
            ({"scores": [1.0]}, r"scores must map .*, got \[1.0\]"),
            ({"chat_template": 3}, "chat_template must be one of .*, got 3"),
        ],
    )
    def test_wrong_arguments_are_quoted(self, arguments: dict[str, object], words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            one(Scripted(**{"replies": "x", **arguments}), call("a"))  # type: ignore[arg-type]
