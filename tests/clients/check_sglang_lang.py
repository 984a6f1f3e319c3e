"""SGLang's frontend language over /generate: what its own programs do, by its own RuntimeEndpoint.

The package is installed without what it needs to serve; 0.5.9 is its last version that can be imported so.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import requests
import sglang
from checks import KEY, URL, main, raised
from sglang.lang.choices import greedy_token_selection, unconditional_likelihood_normalized

backend = sglang.RuntimeEndpoint(URL, api_key=KEY)
sglang.set_default_backend(backend)
GREEDY: dict[str, Any] = {"temperature": 0}
EXAMPLES = "France: Paris\nItaly: Rome\nSpain: Madrid\nJapan: Tokyo\nEgypt: Cairo\n"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["city", "old"],
    "additionalProperties": False,
}


@sglang.function
def _capital(s: Any, country: str) -> None:
    s += EXAMPLES + country + ":"
    s += sglang.gen("city", max_tokens=8, stop="\n", **GREEDY)


@sglang.function
def _chosen(s: Any, question: str, choices: list[str], method: Any) -> None:
    s += question + sglang.select("answer", choices, choices_method=method)


@sglang.function
def _shaped(s: Any) -> None:
    s += "A day has"
    s += sglang.gen("hours", dtype=int, max_tokens=6, **GREEDY)
    s += " hours. A date: "
    s += sglang.gen("date", regex=r"20[0-9]{2}-[01][0-9]", max_tokens=20, **GREEDY)
    s += " Paris as JSON: "
    s += sglang.gen("json", json_schema=json.dumps(SCHEMA), max_tokens=60, **GREEDY)


@sglang.function
def _forked(s: Any) -> None:
    s += EXAMPLES
    forks = s.fork(3)
    for fork, country in zip(forks, ("Germany", "Greece", "Russia"), strict=True):
        fork += country + ":" + sglang.gen("city", max_tokens=8, stop="\n", **GREEDY)
    forks.join("concate_and_append")
    s += "".join(fork["city"] for fork in forks)


@sglang.function
def _talk(s: Any) -> None:
    s += sglang.system("Answer in one sentence.")
    s += sglang.user("What is the capital of France?")
    s += sglang.assistant(sglang.gen("answer", max_tokens=20, stop="<|im_end|>", **GREEDY))
    s += sglang.user("And of Italy?")
    s += sglang.assistant(sglang.gen("second", max_tokens=20, stop="<|im_end|>", **GREEDY))


def a_program_generates() -> None:
    state = _capital.run("Germany")
    assert state["city"].strip() == "Berlin", state["city"]
    assert state.get_meta_info("city")["finish_reason"]["type"] == "stop"


def a_program_streams_what_it_gives_otherwise() -> None:
    state = _capital.run("Germany", stream=True)
    assert "".join(state.text_iter()) == _capital.run("Germany").text()


def many_runs_share_their_beginning() -> None:
    backend.flush_cache()
    countries = ["Germany", "Greece", "Russia", "Norway", "Austria", "Poland"]
    states = _capital.run_batch([{"country": country} for country in countries], num_threads=4)
    assert [state["city"] for state in states] == [_capital.run(country)["city"] for country in countries]
    found = [state.get_meta_info("city")["cached_tokens"] for state in states]
    prefix = states[0].get_meta_info("city")["prompt_tokens"] - 4
    assert sum(cached >= prefix - 2 for cached in found) >= len(found) - 1, (prefix, found)


def a_choice_is_the_likeliest_by_each_method() -> None:
    question = "Q: What is the capital of France?\nA: The capital of France is"
    for method in (
        sglang.token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
    ):
        state = _chosen.run(question, [" Paris", " a red car", " nine"], method)
        assert state["answer"] == " Paris", (type(method).__name__, state["answer"])


def log_probabilities_of_a_choice_are_those_of_its_tokens() -> None:
    question, choices = "The capital of France is", [" Paris", " Rome, of course"]
    state = _chosen.run(question, choices, sglang.token_length_normalized)
    told = state.get_meta_info("answer")["input_token_logprobs"]
    for choice, entries in zip(choices, told, strict=True):
        assert "".join(text for _, _, text in entries).endswith(choice), entries
        scored = _scored(question + choice)
        assert [value for value, _, _ in entries] == scored[-len(entries) :], (entries, scored)


def structures_are_kept_to() -> None:
    state = _shaped.run()
    int(state["hours"])
    assert len(state["date"]) == 7, state["date"]
    assert sorted(json.loads(state["json"])) == ["city", "old"], state["json"]


def forks_go_on_from_what_they_share() -> None:
    state = _forked.run()
    for city in ("Berlin", "Athens", "Moscow"):
        assert city in state.text(), state.text()


def roles_are_written_as_a_template_says() -> None:
    own = sglang.RuntimeEndpoint(URL, api_key=KEY, chat_template_name="chatml")
    state = _talk.run(backend=own)
    assert "Paris" in state["answer"], state["answer"]
    assert "Rome" in state["second"], state["second"]


def log_probabilities_of_what_is_generated_come_with_text() -> None:
    @sglang.function
    def told(s: Any) -> None:
        s += "The capital of France is"
        s += sglang.gen(
            "answer",
            max_tokens=4,
            return_logprob=True,
            top_logprobs_num=2,
            logprob_start_len=0,
            return_text_in_logprobs=True,
            **GREEDY,
        )

    state = told.run()
    meta = state.get_meta_info("answer")
    assert "".join(text for _, _, text in meta["output_token_logprobs"]) == state["answer"]
    assert meta["input_token_logprobs"][0][0] is None
    for chosen, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert top[0] == chosen
        assert len(top) == 2


def samples_are_drawn_as_asked() -> None:
    @sglang.function
    def drawn(s: Any) -> None:
        s += "My favourite word is"
        s += sglang.gen(
            "word", max_tokens=6, temperature=1.2, top_p=0.9, top_k=40, min_p=0.02, ignore_eos=True
        )

    states = drawn.run_batch([{}] * 4, num_threads=4)
    assert all(state.get_meta_info("word")["completion_tokens"] == 6 for state in states)
    assert len({state["word"] for state in states}) > 1


def a_wrong_request_is_told_to_the_program() -> None:
    @sglang.function
    def wrong(s: Any) -> None:
        s += "A" + sglang.gen("b", temperature=-1, max_tokens=4)

    state = wrong.run()
    error = raised(Exception, state.get_var, name="b")
    assert "temperature" in f"{error}{state.error()}", (error, state.error())


def the_server_tells_about_itself() -> None:
    assert isinstance(backend.get_server_info()["internal_states"], list)
    assert backend.get_model_name()


def _scored(text: str) -> list[float]:
    """Log-probabilities of the tokens of a text, by completions."""
    body = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = requests.post(f"{URL}/v1/completions", json=body, headers=headers, timeout=60).json()
    found: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"]
    return found


if __name__ == "__main__":
    main(sys.modules[__name__], note="installed without the packages that serve")
