"""Cases of sampling: rows of every kind at sizes of vocabularies, and rows at the edge of each filter.

At an edge another token is drawn if a comparison keeps one id more or less, or if the noise of a rare id is a
thousandth off. The reference works in float64, on the host: elsewhere no two tokens are so near that rounding
would choose between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.sample import sample

from .case import Case


@dataclass(frozen=True, slots=True)
class Asked:
    """What a row asks for beside its logits."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    key: int = 7
    position: int = 0
    choice: int = 0


KINDS = (
    Asked(0.0),
    Asked(1.0),
    Asked(0.7, top_k=40),
    Asked(1.3, top_p=0.9, min_p=0.05),
    Asked(1.0, top_k=50, top_p=0.8),
)
SMALL_TAILS = ((13061623, 1), (6107189, 2), (1230499, 1), (196659, 3))
"""(position, id) for which key 7 and choice 0 give a tail of 2**-27.6, 2**-24.8, 2**-22.2 and 2**-20.7. Of 1
minus the first a float32 makes 1, and it keeps a few bits of the others."""

_EDGES = (Asked(top_k=2), Asked(top_p=0.5), Asked(min_p=1.0))
"""Of four equal logits these keep two, two and all."""
_DTYPES = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64, torch.int64)


def kinds(logits: Tensor, numbers: Sequence[Tensor]) -> Case:
    """Each row asks for the next of KINDS. numbers: keys, positions and choices."""
    asked = [
        replace(KINDS[i % len(KINDS)], key=key, position=position, choice=choice)
        for i, (key, position, choice) in enumerate(zip(*(one.tolist() for one in numbers), strict=True))
    ]
    return _case("sample", logits, asked)


def edges(vocabulary: int, device: torch.device) -> Case:
    """Four equal logits, far apart, at several positions; and ids of small tails just before and behind."""
    ids = [1, vocabulary // 3, vocabulary // 2, vocabulary - 1]
    equal = torch.full((vocabulary,), -torch.inf).index_fill(0, torch.tensor(ids), 0.5)
    asked = [replace(one, position=position) for one in _EDGES for position in range(12)]
    logits = [equal] * len(asked)
    for position, token in SMALL_TAILS:
        for distance in (-1e-3, 1e-3):
            logits.append(against_rival(vocabulary, position, token, distance))
            asked.append(Asked(position=position))
    return _case("sample at the edges", torch.stack(logits).to(device), asked)


def against_rival(vocabulary: int, position: int, token: int, distance: float) -> Tensor:
    """Logits of two ids, the token and a rival, whose sum with key 7's noise is so much larger."""
    rival = (token + 1) % 4
    noise = reference.gumbel(4, Asked().key, position, Asked().choice)
    logits = torch.full((vocabulary,), -torch.inf)
    logits[token], logits[rival] = 0.0, noise[token] - noise[rival] + distance
    return logits


def _case(name: str, logits: Tensor, asked: Sequence[Asked]) -> Case:
    columns = [
        torch.tensor(column, dtype=dtype, device=logits.device)
        for column, dtype in zip(zip(*map(astuple, asked), strict=True), _DTYPES, strict=True)
    ]

    def expected(dtype: torch.dtype) -> list[Tensor]:
        on_host = [column.cpu() for column in columns]
        return [reference.sample(logits.cpu().double(), *on_host).to(logits.device)]

    return Case(
        f"{name} {' x '.join(map(str, logits.shape))}, float32",
        torch.float32,
        lambda: [sample(logits, *columns)],
        expected,
        is_exact=True,
    )
