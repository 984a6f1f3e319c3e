"""What can go wrong in a program, for people to catch. Every message says what came and what is allowed."""

from __future__ import annotations


class ProgramError(Exception):
    """Base of all errors of this package's frontend."""


class BackendError(ProgramError):
    """A backend did not do what it was asked for."""


class InvalidCall(BackendError):
    """The call is wrong: asking again is of no use."""


class Unsupported(BackendError):
    """This backend, or its model, cannot do what was asked for."""


class Unreachable(BackendError):
    """No answer, or one that says "later": asking again may help."""


class BranchFailed(ProgramError):
    """A value is not there, because its call failed, or one before it; the cause is chained."""


class Cancelled(ProgramError):
    """The branch was cancelled: a join had what it needed, or its program's caller left."""


class TimedOut(ProgramError):
    """The program took longer than it may."""


class UnknownVariable(ProgramError, KeyError):
    """No variable of that name, and nothing under way that would set it."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
