"""Flags of the command line: one for each field of EngineConfig, and for the common ones of SamplingParams.

A flag is the field's name with dashes; how it is read follows from the field's type unless the table says
otherwise. A field of EngineConfig without a line in the table makes a test fail. Only flags that were given
reach the dataclass: what is allowed, and what a flag is when it is not given, is said there alone.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..byte_size import format_bytes, parse_bytes
from ..config import EngineConfig
from ..errors import InvalidConfig, InvalidRequest
from ..sampling_params import SamplingParams


def byte_count(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `keywords`, where given, go to argparse instead of those that follow from the type; `name` is
    the flag's own where it is not the field's."""

    help: str
    keywords: Mapping[str, Any] = field(default_factory=dict)  # whatever add_argument takes
    show_default: Callable[[Any], str] = str  # of the field's own type
    name: str | None = None


ENGINE_FLAGS: Mapping[str, Flag] = {
    "model": Flag("the embedded model's id, a folder, a .gguf file or a hub id"),
    "load_format": Flag("kind of weights to read; dummy makes random ones for the model's configuration"),
    "device": Flag("where to compute; auto: on a GPU where there is one"),
    "dtype": Flag("number format of weights and cache; auto: bfloat16 on a GPU, else float32"),
    "quantization": Flag("int8 rounds weights and activations to bytes: faster, a little less exact"),
    "attention": Flag("kernels to compute with; auto: triton on a GPU, else cpu"),
    "page_size": Flag("token slots in a page: 1, 4, 8, 16, 32 or 64"),
    "kv_memory": Flag(
        "memory for keys and values, such as 512MiB", {"type": byte_count, "metavar": "SIZE"}, format_bytes
    ),
    "num_pages": Flag("pages in the pool; wins over --kv-memory"),
    "prefix_cache": Flag("reuse what prompts have in common"),
    "eviction": Flag("which unused prefix is dropped first"),
    "policy": Flag("order in which waiting prompts start"),
    "chunk_size": Flag("most tokens one step computes"),
    "max_running": Flag("most sequences that run at a time"),
    "max_running_per_tenant": Flag("most of them for one API key; not given: no such limit"),
    "max_context": Flag("most tokens in a sequence; not given: what the model was made for"),
    "hold_budget": Flag("share of the pool that programs may hold for their next calls"),
    "seed": Flag("seed of random weights, and of prompts without a seed of their own"),
    "threads": Flag("threads to compute with; not given: one for each core"),
}

SAMPLING_FLAGS: Mapping[str, Flag] = {
    "max_tokens": Flag("most tokens to generate"),
    "min_tokens": Flag("tokens to generate before the output may end"),
    "n": Flag("choices for each prompt"),
    "stop": Flag("text that ends the output; may be repeated", {"action": "append", "metavar": "TEXT"}),
    "temperature": Flag("0 takes the most likely token each time"),
    "top_p": Flag("sample from the fewest tokens that have this probability together"),
    "top_k": Flag("sample from the k most likely tokens; -1 for all"),
    "min_p": Flag("sample from tokens at least this likely compared with the most likely one"),
    "frequency_penalty": Flag("lowers a token's score for each time it was generated"),
    "presence_penalty": Flag("lowers a token's score once it was generated"),
    "repetition_penalty": Flag("divides the score of a token that was seen"),
    "ignore_eos": Flag("go on after the model's end-of-text token", {"action": "store_true"}),
    "logprobs": Flag("give log-probabilities, with this many alternatives for each token"),
}


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add_fields(parser.add_argument_group("engine"), EngineConfig, ENGINE_FLAGS)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "the sampling of a line wins over these")
    add_fields(group, SamplingParams, SAMPLING_FLAGS)


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The given engine flags as a config. Raises InvalidConfig."""
    with fields_as_flags(ENGINE_FLAGS):
        return EngineConfig(**given(arguments, ENGINE_FLAGS))


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The given sampling flags, and --seed, as the sampling of a run. Raises InvalidRequest."""
    names = (*SAMPLING_FLAGS, "seed")
    with fields_as_flags(names):
        return SamplingParams.from_mapping(given(arguments, names))


@contextmanager
def fields_as_flags(names: Collection[str]) -> Iterator[None]:
    """What is said of these fields by an InvalidConfig or InvalidRequest from inside is said of their flags.

    A field is known by standing first, or by the underscore in its name.
    """
    known = re.compile(rf"^(?:{'|'.join(names)})\b|\b(?:{'|'.join(name for name in names if '_' in name)})\b")
    try:
        yield
    except (InvalidConfig, InvalidRequest) as error:
        raise type(error)(known.sub(lambda found: _flag(found[0]), str(error))) from error


# What add_argument read has the type of the field, which argparse cannot say: hence Any.
def given(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def add_fields(group: argparse._ArgumentGroup, owner: type, flags: Mapping[str, Flag]) -> None:
    hints = get_type_hints(owner)
    defaults = {item.name: item.default for item in fields(owner)}
    for name, flag in flags.items():
        keywords = flag.keywords or _keywords_of(hints[name])
        text = flag.help + _default_text(defaults[name], flag)
        group.add_argument(
            flag.name or _flag(name), dest=name, default=argparse.SUPPRESS, help=text, **keywords
        )


def _flag(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


def _keywords_of(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of this type; of a union, the first that is not None."""
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if kinds[0] is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": kinds[0], "metavar": {int: "N", float: "X"}.get(kinds[0], "NAME")}


def _default_text(default: object, flag: Flag) -> str:
    if default is None or default == () or default is False:
        return ""
    return f" (default: {'on' if default is True else flag.show_default(default)})"
