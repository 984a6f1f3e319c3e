"""Queries and keys turned and written in Triton: as exact as torch, into their slots, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.kv_write import turn_and_write
from testkit.compiled import fused
from testkit.paged import is_as_exact
from testkit.small_ops import fresh_memory_is_nan, normal, within_nan

EPS = 1e-6
PAGES, SLOTS, POSITIONS = 6, 4, 50


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    with fresh_memory_is_nan():
        yield


@dataclass(frozen=True)
class Case:
    """One call without its pages. Strides of the pages: heads or pages together."""

    qkv: Tensor
    norms: tuple[Tensor, Tensor, float] | None
    angles: tuple[Tensor, Tensor] | None
    positions: Tensor
    slots: Tensor
    heads: int
    kv_heads: int
    size: int

    def pool(self, together: str = "heads", dtype: torch.dtype = torch.float32) -> Tensor:
        """(2, P, G, S, D) of NaN, a part of more pages than are used."""
        if together == "pages":
            shape = (2, PAGES + 1, self.kv_heads, SLOTS, self.size)
            return torch.full(shape, torch.nan, dtype=dtype)[:, 1:]
        shape = (2, self.kv_heads, PAGES + 1, SLOTS, self.size)
        return torch.full(shape, torch.nan, dtype=dtype).transpose(1, 2)[:, 1:]

    def to(self, dtype: torch.dtype) -> Case:
        norms, angles = self.norms, self.angles
        if norms is not None:
            norms = (norms[0].to(dtype), norms[1].to(dtype), norms[2])
        if angles is not None:
            angles = (angles[0].to(dtype), angles[1].to(dtype))
        return replace(self, qkv=self.qkv.to(dtype), norms=norms, angles=angles)

    def take(self, rows: slice) -> Case:
        return replace(self, qkv=self.qkv[rows], positions=self.positions[rows], slots=self.slots[rows])

    def run(self, op: Callable[..., Tensor], pool: Tensor, **options: bool) -> Tensor:
        arguments = (self.qkv, self.norms, self.angles, self.positions, self.slots, pool[0], pool[1])
        return op(*arguments, num_heads=self.heads, **options)


def make_case(
    count: int = 17,
    size: int = 64,
    heads: int = 6,
    kv_heads: int = 2,
    *,
    norms: bool = True,
    angles: bool = True,
) -> Case:
    generator = torch.Generator().manual_seed(3)
    slots = torch.randperm(PAGES * SLOTS, generator=generator)[:count]
    slots[count // 2 :: 7] = -1
    turns = normal(POSITIONS, size // 2, seed=9, std=3.0)
    return Case(
        normal(count, (heads + 2 * kv_heads) * size, std=2.0),
        (1 + normal(size, seed=1, std=0.3), 1 + normal(size, seed=2, std=0.3), EPS) if norms else None,
        (turns.cos(), turns.sin()) if angles else None,
        torch.randint(POSITIONS, (count,), generator=generator),
        slots,
        heads,
        kv_heads,
        size,
    )


def is_right(case: Case, q: Tensor, pool: Tensor, truth: Case | None = None) -> bool:
    """Whether queries and the whole pool are as exact as the reference's; `truth`: of another case."""
    truth = truth or case
    found, plain, true = (q, pool), _wanted(truth), _wanted(truth.to(torch.float64))
    if not torch.equal(pool.isnan(), true[1].isnan()):
        return False
    numbers = [tuple(torch.nan_to_num(x) for x in one) for one in (found, plain, true)]
    return all(is_as_exact(*(one[i] for one in numbers)) for i in range(2))


def _wanted(case: Case) -> tuple[Tensor, Tensor]:
    pool = case.pool(dtype=case.qkv.dtype)
    return case.run(reference.turn_and_write, pool), pool


@pytest.mark.parametrize("size", [8, 64, 80, 96, 128])
@pytest.mark.parametrize("norms", [False, True], ids=["no norms", "norms"])
@pytest.mark.parametrize("angles", [False, True], ids=["no angles", "angles"])
def test_heads_of_any_size_are_normed_turned_and_written(size: int, norms: bool, angles: bool) -> None:
    case, pool = make_case(3, size, norms=norms, angles=angles), make_case(3, size).pool()
    q = case.run(turn_and_write, pool)
    assert q.shape == (3, 6, size)
    assert q.is_contiguous()
    assert is_right(case, q, pool)


@pytest.mark.parametrize("count", [1, 3, 17])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (17, 1), (18, 9)])
def test_any_number_of_tokens_and_heads_is_written(count: int, heads: int, kv_heads: int) -> None:
    case = make_case(count, 8, heads, kv_heads)
    pool = case.pool()
    assert is_right(case, case.run(turn_and_write, pool), pool)


def test_heads_of_two_numbers_and_of_512_are_taken() -> None:
    for size in (2, 256, 512):
        case = make_case(2, size, 2, 1)
        pool = case.pool()
        assert is_right(case, case.run(turn_and_write, pool), pool)


@pytest.mark.parametrize("norms", [False, True], ids=["no norms", "norms"])
@pytest.mark.parametrize("angles", [False, True], ids=["no angles", "angles"])
def test_queries_and_pages_equal_the_cpu(norms: bool, angles: bool) -> None:
    case = make_case(norms=norms, angles=angles)
    pool, other = case.pool(), case.pool()
    q = case.run(turn_and_write, pool)
    arguments = (case.qkv, case.norms, case.angles, case.positions, case.slots, other[0], other[1])
    torch.testing.assert_close(q, fused().turn_and_write(*arguments))
    torch.testing.assert_close(pool, other, equal_nan=True)
    assert torch.equal(pool[1].nan_to_num(), other[1].nan_to_num()), "values are written as they are"


def test_pages_of_either_layout_get_the_same_and_the_page_beside_them_nothing() -> None:
    case = make_case()
    pools = [case.pool(together) for together in ("heads", "pages")]
    first, second = (case.run(turn_and_write, pool) for pool in pools)
    assert torch.equal(first, second)
    assert torch.equal(pools[0].nan_to_num(), pools[1].nan_to_num())
    for pool in pools:
        assert pool._base is not None
        assert pool._base.isnan().sum() - pool.isnan().sum() == 2 * case.kv_heads * SLOTS * case.size


def test_tokens_without_a_slot_write_nothing_and_give_their_queries() -> None:
    case = make_case()
    nowhere, pool = replace(case, slots=torch.full_like(case.slots, -1)), case.pool()
    q = nowhere.run(turn_and_write, pool)
    assert pool.isnan().all()
    assert torch.equal(q, case.run(turn_and_write, case.pool()))


@pytest.mark.parametrize("size", [8, 80])
def test_a_row_alone_is_the_row_in_a_batch_to_the_bit(size: int) -> None:
    case = make_case(size=size)
    pool, again, alone = case.pool(), case.pool(), case.pool()
    q = case.run(turn_and_write, pool)
    assert torch.equal(case.run(turn_and_write, again), q)
    assert torch.equal(again.nan_to_num(), pool.nan_to_num())
    for i in range(17):
        assert torch.equal(case.take(slice(i, i + 1)).run(turn_and_write, alone), q[i : i + 1])
    assert torch.equal(alone.nan_to_num(), pool.nan_to_num())


def test_rows_of_a_wider_matrix_are_read_as_they_lie() -> None:
    case = make_case(3)
    wide, pool, other = replace(case, qkv=within_nan(case.qkv)), case.pool(), case.pool()
    assert torch.equal(wide.run(turn_and_write, pool), case.run(turn_and_write, other))
    assert torch.equal(pool.nan_to_num(), other.nan_to_num())


def test_half_precision_is_rounded_once_at_the_end() -> None:
    case = make_case(5)
    half = replace(case, qkv=case.qkv.half())
    exact, pool, other = replace(case, qkv=half.qkv.float()), case.pool(dtype=torch.float16), case.pool()
    q, wanted = half.run(turn_and_write, pool), exact.run(turn_and_write, other)
    assert torch.equal(q, wanted.half())
    assert torch.equal(pool.nan_to_num(), other.half().nan_to_num())


def test_a_token_that_is_no_number_spoils_no_other() -> None:
    case, others = make_case(5), [0, 1, 3, 4]
    spoilt = replace(case, qkv=case.qkv.clone(), slots=torch.tensor([3, 1, 8, 20, 0]))
    case = replace(case, slots=spoilt.slots)
    spoilt.qkv[2] = torch.nan
    pool, other = case.pool(), case.pool()
    clean, found = case.run(turn_and_write, pool), spoilt.run(turn_and_write, other)
    assert found[2].isnan().all()
    assert torch.equal(found[others], clean[others])
    assert other[:, 2, :, 0].isnan().all()
    for page, slot in ((0, 3), (0, 1), (5, 0), (0, 0)):
        assert torch.equal(other[:, page, :, slot], pool[:, page, :, slot])


def test_no_tokens_write_nothing() -> None:
    case = make_case().take(slice(0, 0))
    pool = case.pool()
    assert case.run(turn_and_write, pool, debug=True).shape == (0, 6, 64)
    assert pool.isnan().all()


def perturb(case: Case, how: str) -> Case:
    """A case whose truth has one mistake."""
    assert case.angles is not None
    assert case.norms is not None
    if how == "positions off by one":
        return replace(case, positions=(case.positions + 1) % POSITIONS)
    if how == "slots off by one":
        return replace(case, slots=torch.where(case.slots < 0, -1, (case.slots + 1) % (PAGES * SLOTS)))
    if how == "turned the other way":
        return replace(case, angles=(case.angles[0], -case.angles[1]))
    if how == "norms exchanged":
        return replace(case, norms=(case.norms[1], case.norms[0], EPS))
    if how == "no norms":
        return replace(case, norms=None)
    assert how == "keys and values exchanged"
    q, k, v = torch.split(case.qkv, [case.heads * 64, case.kv_heads * 64, case.kv_heads * 64], 1)
    return replace(case, qkv=torch.cat((q, v, k), 1))


@pytest.mark.parametrize(
    "how",
    [
        "positions off by one",
        "slots off by one",
        "turned the other way",
        "norms exchanged",
        "no norms",
        "keys and values exchanged",
    ],
)
def test_the_check_fails_for_a_result_with_a_mistake(how: str) -> None:
    case = make_case(5)
    pool = case.pool()
    q = case.run(turn_and_write, pool)
    assert is_right(case, q, pool)
    assert not is_right(case, q, pool, truth=perturb(case, how))


def call(**changed: Any) -> Tensor:  # of whatever type a mistake may be
    case = make_case(3, 8)
    pool = case.pool()
    arguments: dict[str, Any] = {
        "qkv": case.qkv,
        "norms": case.norms,
        "angles": case.angles,
        "positions": case.positions,
        "slots": case.slots,
        "k_pages": pool[0],
        "v_pages": pool[1],
        "num_heads": 6,
    }
    return turn_and_write(**arguments | changed)


PAGES_OF_8 = torch.zeros(PAGES, 2, SLOTS, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qkv": torch.zeros(3, 80).double()}, "qkv must be float32, bfloat16 or float16, got torch.float64"),
        ({"qkv": torch.zeros(3, 72)}, r"shape \(T, 80\) for 6 and 2 x 2 heads of 8, got \(3, 72\)"),
        ({"num_heads": 5}, r"shape \(T, 72\) for 5 and 2 x 2 heads of 8, got \(3, 80\)"),
        ({"num_heads": 0}, "there must be heads of queries and keys, got 0 and 2"),
        ({"qkv": torch.zeros(80, 3).T}, r"row of qkv must be numbers side by side, got strides \(1, 3\)"),
        ({"positions": torch.zeros(3)}, "positions must be int64, got torch.float32"),
        ({"slots": torch.zeros(3).int()}, "slots must be int64, got torch.int32"),
        ({"positions": torch.zeros(2).long()}, r"positions .* shape \(3,\), one a token, got shape \(2,\)"),
        ({"slots": torch.zeros(6).long()[::2]}, r"slots must be contiguous .* strides \(2,\)"),
        (
            {"k_pages": PAGES_OF_8.double()},
            "k_pages and v_pages must both be .* torch.float64 and torch.float32",
        ),
        ({"v_pages": PAGES_OF_8.half()}, "must both be .* torch.float32 and torch.float16"),
        ({"v_pages": PAGES_OF_8[1:]}, r"same shape .* got \(6, 2, 4, 8\) and \(5, 2, 4, 8\)"),
        (
            {"k_pages": PAGES_OF_8[0], "v_pages": PAGES_OF_8[0]},
            r"shape \(P, G, S, D\) .* got \(2, 4, 8\) and",
        ),
        (
            {
                "k_pages": PAGES_OF_8,
                "v_pages": PAGES_OF_8[:, [1, 0]].transpose(0, 1).contiguous().transpose(0, 1),
            },
            "same shape .* and strides, .* strides",
        ),
        ({"k_pages": PAGES_OF_8.mT, "v_pages": PAGES_OF_8.mT}, "numbers side by side, got strides"),
        ({"k_pages": PAGES_OF_8[..., :7], "v_pages": PAGES_OF_8[..., :7]}, "even and from 2 to 512, got 7"),
        (
            {"norms": (torch.ones(8), torch.ones(8).half(), EPS)},
            "norms must be float32 or .*, got torch.float16",
        ),
        (
            {"norms": (torch.ones(4), torch.ones(8), EPS)},
            r"norms must be contiguous of shape \(8,\), .* \(4,\)",
        ),
        ({"angles": (torch.ones(9, 4), torch.ones(9, 8))}, r"of shape \(positions, 4\), got shape \(9, 8\)"),
        ({"angles": (torch.ones(9, 4).half(),) * 2}, "angles must be float32, got torch.float16"),
        ({"angles": (torch.ones(4, 9).T,) * 2}, r"angles must be contiguous .* strides \(1, 9\)"),
    ],
)
def test_what_cannot_be_written_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"positions": torch.tensor([0, 50, 1])}, "positions must be from 0 to 49 as angles are, got 50"),
        ({"positions": torch.tensor([0, -1, 1])}, "positions must be from 0 to 49 as angles are, got -1"),
        ({"slots": torch.tensor([24, -1, 1])}, "slots must be from 0 to 23, or -1, got 24"),
        ({"slots": torch.tensor([0, -2, 1])}, "slots must be from 0 to 23, or -1, got -2"),
        ({"slots": torch.tensor([5, -1, 5])}, r"no slot may be written twice, got \[5, 5\]"),
    ],
)
def test_when_debugging_positions_and_slots_that_are_not_there_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(**changed, debug=True)
