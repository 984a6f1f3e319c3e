"""Role blocks: as expressions, as pairs and as with-statements; messages of a state; what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest

import radixlm as rx
from radixlm.frontend.errors import InvalidCall, Unsupported
from radixlm.frontend.scripted import Scripted

TEXT = (
    "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    "<|im_start|>assistant\nreply<|im_end|>\n"
)
MESSAGES = [
    {"role": "system", "content": "brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "reply"},
]


def run(body, backend=None, **options):
    return rx.function(body).run(backend=backend or Scripted("reply", chat_template="chatml"), **options)


def as_expressions(s):
    s += rx.system("brief")
    s += rx.user("hi")
    s += rx.assistant(rx.gen("x"))


def as_a_sum(s):
    s += rx.system("brief") + rx.user("hi") + rx.assistant(rx.gen("x"))


def as_pairs(s):
    s += rx.system_begin() + "brief" + rx.system_end()
    s += rx.user_begin()
    s += "h"
    s += "i"
    s += rx.user_end()
    s += rx.assistant_begin()
    s += rx.gen("x")
    s += rx.assistant_end()


def as_methods(s):
    s.system("brief")
    s.user("hi")
    s.assistant(rx.gen("x"))


def as_with_statements(s):
    with s.system():
        s += "brief"
    with s.user():
        s += "hi"
    with s.assistant():
        s += rx.gen("x")


@pytest.mark.parametrize("body", [as_expressions, as_a_sum, as_pairs, as_methods, as_with_statements])
def test_all_ways_to_write_blocks_give_the_same_text_and_messages(body) -> None:
    backend = Scripted("reply", chat_template="chatml")
    state = run(body, backend)
    assert state.text() == TEXT
    assert state.messages() == MESSAGES
    assert state["x"] == "reply"
    assert backend.prompts == [TEXT[: TEXT.index("reply")]]


def test_calls_in_a_conversation_carry_it_as_messages() -> None:
    def body(s):
        s += rx.user("hi") + rx.assistant("so: " + rx.gen("x"))
        s += rx.user("more") + rx.assistant_begin() + rx.gen("y")

    backend = Scripted("reply")
    run(body, backend).sync()
    assert [call.asked.messages for call in backend.calls] == [
        ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "so: "}),
        (
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "so: reply"},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": ""},
        ),
    ]


def test_text_outside_of_blocks_is_no_conversation() -> None:
    def body(s):
        s += rx.user("hi")
        s += "loose" + rx.gen("x")
        s += rx.assistant(rx.gen("y"))

    backend = Scripted("reply")
    state = run(body, backend)
    state.sync()
    assert [call.asked.messages for call in backend.calls] == [None, None]
    assert len(state.messages()) == 2


def test_what_is_generated_in_a_users_block_is_no_conversation_to_be_continued() -> None:
    backend = Scripted("reply")
    state = run(lambda s: s.append(rx.user(rx.gen("x"))), backend)
    assert state.messages() == [{"role": "user", "content": "reply"}]
    assert backend.calls[0].asked.messages is None


def test_a_block_that_is_open_is_no_message_yet() -> None:
    state = run(lambda s: s.append(rx.user("hi") + rx.assistant_begin() + "so"))
    assert state.messages() == [{"role": "user", "content": "hi"}]
    assert state.text().endswith("<|im_start|>assistant\nso")


def test_empty_blocks_are_messages_without_content() -> None:
    state = run(lambda s: s.append(rx.system() + rx.user("")))
    assert state.messages() == [{"role": "system", "content": ""}, {"role": "user", "content": ""}]


def test_branches_have_the_messages_of_their_parent_and_their_own() -> None:
    def body(s):
        s += rx.user("hi")
        forks = s.fork(2)
        forks += [rx.assistant("a"), rx.assistant("b")]
        s.set_var("found", [fork.messages() for fork in forks])

    found = run(body)["found"]
    assert [messages[-1]["content"] for messages in found] == ["a", "b"]
    assert [messages[0]["content"] for messages in found] == ["hi", "hi"]


def test_messages_that_were_given_out_are_the_callers() -> None:
    state = run(as_expressions)
    state.messages()[0]["content"] = "changed"
    assert state.messages() == MESSAGES


@pytest.mark.parametrize(
    ("append", "message"),
    [
        (lambda: rx.user(rx.assistant("a")), "an assistant block cannot begin inside a user block"),
        (lambda: rx.user_begin() + rx.user_begin(), "a user block cannot begin inside a user block"),
        (lambda: rx.user_end(), "a user block cannot end here: no block is open"),
        (lambda: rx.user_begin() + rx.system_end(), "a system block cannot end here: a user block is open"),
    ],
)
def test_nested_and_crossed_blocks_are_errors(append, message) -> None:
    error = run(lambda s: s.append(append())).error()
    assert isinstance(error, InvalidCall)
    assert message in str(error)


def test_a_block_ends_even_if_what_stands_inside_raises() -> None:
    def body(s):
        with suppress(ValueError), s.user():
            s += "half"
            raise ValueError("tool")
        s += rx.assistant("ok")

    assert [message["content"] for message in run(body).messages()] == ["half", "ok"]


def test_what_a_template_has_no_role_for_is_said() -> None:
    class Strict(Scripted):
        async def frame(self, roles):
            raise Unsupported(f"no role {roles[-1]!r}")

    assert "no role 'system'" in str(run(lambda s: s.append(rx.system("a")), Strict()).error())


def test_a_template_is_asked_with_all_roles_so_far() -> None:
    asked = []

    class Noting(Scripted):
        async def frame(self, roles):
            asked.append(roles)
            return await super().frame(roles)

    run(as_expressions, Noting("reply")).sync()
    assert asked == [("system",), ("system", "user"), ("system", "user", "assistant")]
