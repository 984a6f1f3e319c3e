"""The seam between programs and what runs their calls: values to ask with, values that come back, Backend.

A program's text is a sequence of parts, so that what was generated is carried as token ids and never
tokenized again (RadixAttention finds exact tokens only). Neighbouring texts are one text and are tokenized as
one; ids stand as they are. Everything here is plain data and knows no event loop, no model and no wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

FinishReason = Literal["stop", "length", "abort"]
Ending = Literal["released", "done", "cancelled"]
"""released: what is held for the branch need not be held any longer. done: it also asks for nothing any more,
so what only it has cached may go first. cancelled: that goes at once, and what it runs is aborted."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Text in which the spelling of a control token is text: what a person or a tool said in a role block."""

    text: str


Ids: TypeAlias = tuple[int, ...]
"""Token ids as they are."""
Part: TypeAlias = str | Plain | Ids
"""A str may spell control tokens, as templates do."""
Message: TypeAlias = Mapping[str, str]
"""{"role": ..., "content": ...}"""


def text_of(parts: Iterable[Part]) -> str:
    """The texts among the parts; ids have none here."""
    return "".join(
        part if isinstance(part, str) else part.text for part in parts if not isinstance(part, tuple)
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """What a program tells the tree. It changes when things run and what is kept, never a result.

    `program_id` names a branch, `parent_id` the one it was forked from, `fork_group` those forked together.
    `hold_s` asks to keep the prefix, with what this call generates, for so many seconds after it, in the
    place of an earlier hold of this branch. `done`: the branch asks for nothing after this.
    """

    program_id: str = ""
    parent_id: str = ""
    fork_group: str = ""
    hold_s: float | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one call generates, in the names of SGLang's frontend. None: the backend's own default.

    Of regex, json_schema (JSON text), grammar and choice at most one is set; relaxed and compact are those of
    docs/structured-output.md. `seed` is what the call draws with,
    already told apart by branch. Values are the backend's to check.
    """

    max_new_tokens: int = 128
    min_new_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | None = None
    relaxed: bool = False
    compact: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """Continue `parts`. `messages` is the same as a conversation, None where text stands outside of role
    blocks; its last message is the assistant's, as far as it is written, where that one is being continued.
    With max_new_tokens 0 the prompt is only read, which fills the tree."""

    parts: tuple[Part, ...]
    sampling: Sampling
    hint: Hint = Hint()
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """One of the n texts. `parts` are what continues the prompt with exactly `text`: ids as far as whole
    tokens go, and text where a stop cut one. Counts are tokens; `prompt_tokens` and `cached_tokens` are the
    prompt's, 0 in all but the first of n. `held_tokens`: how much a hold that was asked for keeps, 0 if it
    was refused. `meta` is the rest of what the backend tells (SGLang's meta_info). `tells_cached`: without it
    `cached_tokens` is not a count but unknown."""

    text: str
    parts: tuple[Part, ...]
    finish_reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    held_tokens: int | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    tells_cached: bool = True


@dataclass(frozen=True, slots=True)
class Delta:
    """News of a streamed call: what the text grew by; `meta` is cumulative. Joined texts are the final one.
    The last one has `done`."""

    text: str
    meta: Mapping[str, object] = field(default_factory=dict)
    done: Generated | None = None


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """How likely each choice is after `parts`. With `unconditional` also after nothing but the token that
    begins a text."""

    parts: tuple[Part, ...]
    choices: tuple[str, ...]
    hint: Hint = Hint()
    unconditional: bool = False
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Raw natural log-probabilities of the tokens of one choice, and the ids. Prompt and choice are tokenized
    as one text. All choices of a call begin at the same place: the first token that any of them changes at
    the end of the prompt, so that sums can be compared. `unconditional` are those of the same ids after
    nothing, empty if they were not asked for."""

    token_ids: Ids
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """In the order of the choices. `computed_tokens`: what was computed for prompt and choices together.
    `tells_cached` as in Generated. A backend that can have one chosen and knows no scores gives the place of
    that one as `chosen`, and no choices."""

    choices: tuple[ChoiceScore, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    tells_cached: bool = True
    chosen: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the content of the last of some messages: `before` from the end of the message
    before it (of an assistant: the header of an answer), `after` to where the message ends."""

    before: str
    after: str


class Backend(Protocol):
    """Runs calls. Coroutines are run on the one loop of loop.py; cancelling one aborts what it asked for.

    Whoever made a backend closes it; programs never do. Raises BackendError (errors.py): Unsupported for what
    it cannot do, which is never ignored, InvalidCall for bad values, Unreachable where trying again may help.
    """

    async def generate(self, call: GenerateCall) -> list[Generated]:
        """The n texts, in order."""
        ...

    def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        """The same for n = 1, as it comes. Closing the generator aborts."""
        ...

    async def score(self, call: ScoreCall) -> Scored: ...

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        """Around the last message of a conversation with these roles, by the model's own chat template, or by
        a plain one where it has none."""
        ...

    async def info(self) -> Mapping[str, object]:
        """What is served, and figures."""
        ...

    async def flush(self) -> None:
        """Forget what is cached. Raises InvalidCall while anything runs."""
        ...

    def end(self, program_ids: Sequence[str], how: Ending) -> None:
        """What becomes of these branches. From any thread; returns at once and never raises."""
        ...
