"""ChatTemplate: conversations to prompts, by the template that comes with a model's tokenizer.

The template is the model's code and writes control tokens; what callers typed is text and stays text,
whatever it spells. The ids of a prompt are those of the rendered text, nothing is added. Where a caller typed
the spelling of a control token, the ids of that place alone are exchanged, for those of the same characters
as text.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from .chat import arguments_as_text, check_messages
from .chat_marks import Marked, Marks, any_of, texts_in
from .errors import InvalidRequest
from .text import quote, require_text

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

_TAG = re.compile(r"<\S+>|\[\S+\]")
_OF_CALLERS = {"documents", "kwargs"}
_SHORT = 2000
"""Characters up to which other threads may wait for a text to be tokenized; longer ones let them run."""
Encode = Callable[[str], list[int]]
Place = tuple[int, int]
"""The first character, and one past the last."""


class ChatOptions(TypedDict, total=False):
    """`tools` and `template_kwargs` are the template's. With `continue_final_message` the prompt ends where
    the content of the last message does, and no header of an answer follows. `check_length` is told how many
    characters the prompt has, before they are encoded, and may refuse it."""

    tools: Sequence[object] | None
    template_kwargs: Mapping[str, object] | None
    continue_final_message: bool
    check_length: Callable[[int], None]


class ChatTemplate:
    """Of one tokenizer. `encode` gives the ids of a text, `as_text` those of one in which control tokens are
    not read; neither adds anything."""

    def __init__(self, fast: PreTrainedTokenizerFast, encode: Encode, as_text: Encode) -> None:
        self._fast = fast
        self._encode = encode
        self._core: tokenizers.Tokenizer = fast.backend_tokenizer
        self._as_text = as_text

    def source(self, *, tools: bool = False) -> str | None:
        """The template itself, the one for tools if the model has several; None if it has none."""
        if not self._fast.chat_template:
            return None
        try:
            found: str = self._fast.get_chat_template(tools=[] if tools else None)
        except ValueError:  # it has several, and none of them is for this
            return None
        return found

    def render(
        self, messages: object, add_generation_prompt: bool = True, **options: Unpack[ChatOptions]
    ) -> Marked:
        """The prompt as text, and where callers typed spellings of control tokens in it. Raises
        InvalidRequest for malformed messages, for a model without a template, and for what the template
        itself refuses."""
        conversation, tools = check_messages(messages), options.get("tools")
        more = dict(options.get("template_kwargs") or {})
        self._check_kwargs(more)
        if not self._fast.chat_template:
            raise InvalidRequest("this model has no chat template: send a text prompt instead of messages")
        texts = list(texts_in([conversation, tools, more]))
        marks = Marks.absent_from([*texts, *self._sources])
        ends_early = options.get("continue_final_message", False)
        if ends_early:
            _mark_end(conversation, marks)
        if any(self._typed_by_others.search(text) for text in texts):
            conversation, tools, more = self._marked(conversation, tools, more, marks)
        text = self._rendered_somehow(conversation, add_generation_prompt and not ends_early, tools, more)
        found = marks.take(text, self._typed_by_others)
        if ends_early:
            found = _up_to_cut(found)
        if "check_length" in options:
            options["check_length"](len(found.text))
        return found

    def encode(self, prompt: Marked) -> list[int]:
        """The ids of a rendered prompt. Raises InvalidRequest for what is no Unicode."""
        if not prompt.typed:
            return self._encode(prompt.text)
        return self.encode_typed(require_text("messages", prompt.text), prompt.typed)

    def spelled(self, text: str, plain: Sequence[Place]) -> tuple[Place, ...]:
        """Where control tokens are spelled out, all or in part, in these places of a text."""
        reach, found = self._longest_spelling - 1, set()
        for begin, end in plain:
            for match in self._anywhere.finditer(text, max(0, begin - reach), end + reach):
                if match.start() < end and match.end(1) > begin:
                    found.add((match.start(), match.end(1)))
        return tuple(sorted(found))

    def encode_typed(self, text: str, typed: Sequence[Place], *, bos: bool = False) -> list[int]:
        """The ids of a text in which the spellings at some places, in their order, were typed."""
        if len(text) > _SHORT:
            encoding = self._core.encode_batch([text], add_special_tokens=bos)[0]
        else:
            encoding = self._core.encode(text, add_special_tokens=bos)
        ids: list[int] = []
        literals: dict[str, list[int]] = {}
        places = iter(typed)
        place = next(places, None)
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while place is not None and place[1] <= begin:
                place = next(places, None)
            if place is not None and token_id in self._control_ids and end > place[0]:
                spelling = text[begin:end]
                if spelling not in literals:
                    literals[spelling] = self._literal(spelling)
                ids += literals[spelling]
            else:
                ids.append(token_id)
        return ids

    def _rendered_somehow(
        self,
        conversation: Sequence[Mapping[str, object]],
        add_generation_prompt: bool,
        tools: object,
        more: Mapping[str, object],
    ) -> str:
        """Most templates want arguments of calls as objects, and some as the text that the model wrote."""
        try:
            return self._rendered(conversation, add_generation_prompt, tools, more)
        except InvalidRequest:
            in_text = arguments_as_text(conversation)
            if in_text == conversation:
                raise
        return self._rendered(in_text, add_generation_prompt, tools, more)

    def _rendered(
        self, messages: object, add_generation_prompt: bool, tools: object, more: Mapping[str, object]
    ) -> str:
        apply: Any = self._fast.apply_chat_template
        try:
            text = apply(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False, **more
            )
        except Exception as error:  # a template is the model's code: it can fail in any way
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise InvalidRequest(f"the chat template failed: {reason}") from error
        assert isinstance(text, str), "one conversation renders to one text"
        return text

    def _check_kwargs(self, more: Mapping[str, object]) -> None:
        wrong = next((name for name in more if name in self._own_names), None)
        if wrong is not None:
            raise InvalidRequest(f"chat_template_kwargs must not hold {quote(wrong)}, which is set otherwise")

    def _marked(
        self,
        conversation: list[dict[str, object]],
        tools: object,
        more: Mapping[str, object],
        marks: Marks,
    ) -> tuple[Any, Any, Any]:
        """Any: what goes in has the same form. What an assistant said may hold tags that are the model's
        own."""
        try:
            messages = [marks.put(message, self._spellings(message)) for message in conversation]
            return messages, marks.put(tools, self._typed_by_others), marks.put(more, self._typed_by_others)
        except RecursionError:
            raise InvalidRequest("messages or tools are nested too deeply") from None

    def _spellings(self, message: Mapping[str, object]) -> re.Pattern[str]:
        return self._typed_by_model if message["role"] == "assistant" else self._typed_by_others

    def _literal(self, text: str) -> list[int]:
        """Ids of the characters of a control token, which some tokenizers find even in plain text."""
        for pieces in ((text,), (text[:1], text[1:])):
            ids = [token_id for piece in pieces for token_id in self._in_the_middle(piece)]
            if self._control_ids.isdisjoint(ids):
                return ids
        raise InvalidRequest(f"the tokenizer cannot write {quote(text)} as text")

    def _in_the_middle(self, text: str) -> list[int]:
        """As they are behind other text: some tokenizers put a space before a text that begins."""
        head, ids = self._as_text("\n"), self._as_text(f"\n{text}")
        return ids[len(head) :] if ids[: len(head)] == head else self._as_text(text)

    @cached_property
    def _own_names(self) -> frozenset[str]:
        named = inspect.signature(self._fast.apply_chat_template).parameters.keys() - _OF_CALLERS
        return frozenset({*named, *self._fast.special_tokens_map, "messages"})

    @cached_property
    def _sources(self) -> list[str]:
        return [source for source in (self.source(), self.source(tools=True)) if source is not None]

    @cached_property
    def _added(self) -> dict[int, tuple[str, bool]]:
        tokens = self._core.get_added_tokens_decoder()
        return {token_id: (token.content, token.special) for token_id, token in tokens.items()}

    @cached_property
    def _typed_by_model(self) -> re.Pattern[str]:
        return any_of(spelling for spelling, special in self._added.values() if special)

    @cached_property
    def _typed_by_others(self) -> re.Pattern[str]:
        """Special tokens, and tags that the template writes, such as those around calls of tools."""
        return any_of(self._added[token_id][0] for token_id in self._control_ids)

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        """The longest spelling that begins at a place, in its group; matches may overlap."""
        return re.compile(f"(?=({self._typed_by_others.pattern}))")

    @cached_property
    def _longest_spelling(self) -> int:
        return max((len(self._added[token_id][0]) for token_id in self._control_ids), default=1)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(
            token_id
            for token_id, (spelling, special) in self._added.items()
            if special or (_TAG.fullmatch(spelling) and any(spelling in source for source in self._sources))
        )


def _mark_end(conversation: list[dict[str, object]], marks: Marks) -> None:
    last = conversation[-1]
    if "tool_calls" in last:
        raise InvalidRequest("a last message with tool_calls cannot be continued")
    last["content"] = f"{last['content']}{marks.cut}"


def _up_to_cut(found: Marked) -> Marked:
    if found.cut is None:
        raise InvalidRequest("the chat template does not write the last message, so it cannot be continued")
    typed = tuple(place for place in found.typed if place[1] <= found.cut)
    return Marked(found.text[: found.cut], typed, None)
