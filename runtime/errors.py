"""Every failure the runtime can hand to a caller, as one tree.

RadixError
├── InvalidInput            the caller's mistake; the message quotes what came and says what is allowed
│   ├── InvalidRequest      one request is wrong: a sampling value, an empty prompt, a bad token id
│   │   └── TooLarge        a request that can never fit: over the context or the whole pool
│   ├── InvalidConfig       an engine option is wrong or options contradict each other
│   └── InvalidModel        a model that cannot be loaded: missing file, truncated weights, unknown family
├── RequestFailed           a request that was accepted and then ended with an error
└── EngineStopped           the engine is closed; nothing more will be computed

The command line maps `InvalidInput` to exit status 2; the server maps the same classes to status codes.
"""

from __future__ import annotations


class RadixError(Exception):
    """Root of every error raised on purpose by this package."""


class InvalidInput(RadixError):
    """The caller's mistake. The message quotes the received value and says what is allowed."""


class InvalidRequest(InvalidInput):
    """One request is wrong; others are not affected."""


class TooLarge(InvalidRequest):
    """A request that can never fit into the context or the page pool, with the numbers."""


class InvalidConfig(InvalidInput):
    """An engine option is wrong."""


class InvalidModel(InvalidInput):
    """A model that cannot be loaded or is not supported."""


class RequestFailed(RadixError):
    """An accepted request ended with an error (non-finite logits, a failed step)."""


class EngineStopped(RadixError):
    """The engine is closed or its thread has died; the message names the cause."""
