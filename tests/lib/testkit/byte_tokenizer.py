"""A tiny real byte-level tokenizer, built in code: two control tokens, 256 bytes, a few merges.

Token ids: 0 <bos>, 1 <eos>, 2 + b for byte b, then the merges. It runs through the same libraries as
that of a real model, so tests of the runtime need no files and no network.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.tokenizer import Tokenizer

BOS_ID, EOS_ID, FIRST_BYTE_ID = 0, 1, 2
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ġ", "a"), ("Ð", "¸"))
VOCAB_SIZE = FIRST_BYTE_ID + 256 + len(MERGES)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role ' + message.role + ' is not supported') }}{% endif %}"
    "[{{ message.role }}] {{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def build_byte_tokenizer(*, adds_bos: bool = True, chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """The tokenizer itself; `adds_bos` says whether plain text gets a first <bos>, as Llama's does."""
    return Tokenizer(_build_fast(adds_bos, chat_template))


def save_byte_tokenizer(
    folder: Path, *, adds_bos: bool = True, chat_template: str | None = CHAT_TEMPLATE
) -> None:
    """Write the tokenizer's files into a model folder, beside whatever else is there."""
    _build_fast(adds_bos, chat_template).save_pretrained(str(folder))


def _build_fast(adds_bos: bool, chat_template: str | None) -> PreTrainedTokenizerFast:
    core = Core(models.BPE(vocab=_vocabulary(), merges=list(MERGES)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in ("<bos>", "<eos>")])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS_ID)]
        )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", chat_template=chat_template
    )


def _vocabulary() -> dict[str, int]:
    names = ["<bos>", "<eos>", *_byte_characters(), *("".join(pair) for pair in MERGES)]
    return {name: i for i, name in enumerate(names)}


def _byte_characters() -> list[str]:
    """How byte-level vocabularies spell each byte: visible Latin-1 as itself, the others from U+0100 on."""
    hidden = [b for b in range(256) if not (0x21 <= b <= 0x7E or 0xA1 <= b <= 0xFF) or b == 0xAD]
    return [chr(0x100 + hidden.index(b)) if b in hidden else chr(b) for b in range(256)]
