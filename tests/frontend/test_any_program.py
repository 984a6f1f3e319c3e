"""Programs made up at random: whatever they do, all that they began ends, and their texts and parts agree."""

from __future__ import annotations

import random

import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, Cancelled, ProgramError
from radixlm.frontend.group import Join
from radixlm.frontend.protocol import Plain
from radixlm.frontend.session import Defaults
from testkit.gated_backend import GatedBackend

MODES = ["gather_variable", "concate_and_append", "first", rx.k_of_n(1), rx.k_of_n(2), rx.vote("x")]


def text_of(parts) -> str:
    """A token is a character here."""
    return "".join(
        "".join(map(chr, part)) if isinstance(part, tuple) else part.text if isinstance(part, Plain) else part
        for part in parts
    )


def scribble(draw: random.Random, s, depth: int, variables: list) -> None:
    """Some steps on a state; forks are left open, joined or given up."""
    for _ in range(draw.randint(1, 5)):
        step = draw.randrange(9)
        if step < 2:
            s += draw.choice(["a", "b", "c "])
        elif step < 5:
            s += rx.gen("x", n=draw.choice([1, 1, 2])) if draw.random() < 0.8 else rx.select("x", ["1", "2"])
            variables.append(s.branch.variables["x"])
        elif step == 5:
            s += rx.user("q")
        elif step == 6 and draw.random() < 0.3:
            with s.var_scope("scope"):
                s += "in"
            variables.append(s.branch.variables["scope"])
        elif depth < 3:
            forks = s.fork(draw.randint(1, 3))
            for fork in forks:
                scribble(draw, fork, depth + 1, variables)
            chance = draw.random()
            if chance < 0.15:
                forks.cancel()
            elif chance < 0.85:
                mode = draw.choice(MODES)
                has_names = all("x" in fork.branch.variables for fork in forks)
                if not isinstance(mode, str) and (len(forks) < 2 or not has_names):
                    mode = "gather_variable"
                forks.join(mode)
                variables += s.branch.variables.values()


@pytest.mark.parametrize("seed", range(150))
def test_everything_that_was_begun_ends(seed) -> None:
    draw = random.Random(seed)
    backend = GatedBackend(
        lambda prompt: BackendError("no") if draw.random() < 0.1 else draw.choice(["r", "s", ""]),
        scores={"1": -1.0, "2": -2.0},
    )
    variables: list = []

    def body(s):
        scribble(draw, s, 0, variables)
        if draw.random() < 0.15:
            raise KeyError("body")

    run = rx.function(body).launch(
        (), Defaults(), backend, timeout=0.02 if draw.random() < 0.1 else None, stream=seed % 2 == 0
    )
    if draw.random() < 0.1:
        run.cancel(Cancelled("given up"))
    run.ended.result(20)

    for variable in variables:
        assert variable.future.done()
        error = variable.future.exception()
        assert error is None or isinstance(error, ProgramError | KeyError), error
    for branch in run.state.branch.ledger.branches():
        assert branch.barrier().done()
        assert text_of(branch.line.parts) == branch.line.text
        for action in branch._queue:
            assert not isinstance(action, Join)
    asked = {call.asked.hint.program_id for call in backend.calls}
    assert set(backend.endings()) >= asked
    if run.state.branch.error is None:
        state_text = run.state.text()
        assert "".join(run.state.text_iter()) == state_text
    assert all(call.state != "running" for call in backend.calls)
