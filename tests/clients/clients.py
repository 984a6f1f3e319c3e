"""The clients, and what makes the environment of each.

A client is run as its users get it, by name and version from the package registry. Versions are written down,
so that a red run is ours and not a release's: newer ones are taken up here, by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

OPENAI = "openai==3.57.0"
TORCH = "torch==2.13.0"
"""For a client that imports it: the version that `make install` takes, so that no second one is fetched."""


@dataclass(frozen=True, slots=True)
class Client:
    """`name` is that of its check, `package` the one whose version is told, `installs` the words of one
    `pip install` each, in order. Clients of one package share an `environment`."""

    name: str
    package: str
    environment: str
    installs: tuple[tuple[str, ...], ...]

    @property
    def wanted(self) -> str:
        """The version that is written down."""
        words = [word for each in self.installs for word in each if word.startswith(self.package)]
        return words[0].partition("==")[2]

    @property
    def check(self) -> str:
        return f"check_{self.name.replace('-', '_')}.py"


SGLANG = (
    ("aiohttp", "datasets", "ipython", "pillow", "pybase64", "pydantic", "requests", "transformers==5.19.0"),
    ("--no-deps", "sglang==0.5.9"),
)
"""Without torch and the packages that serve: 0.5.9 is the last version that can be imported so."""

CLIENTS = (
    Client("openai", "openai", "openai", ((OPENAI,),)),
    Client("lm-eval", "lm-eval", "lm-eval", (("lm-eval[api]==0.4.13", "transformers==5.24.0"),)),
    Client("langchain", "langchain-openai", "langchain", (("langchain-openai==1.7.4", OPENAI),)),
    Client("litellm", "litellm", "litellm", (("litellm==1.110.2", OPENAI),)),
    Client("outlines", "outlines", "outlines", (("outlines==1.3.3", OPENAI),)),
    Client("sglang-lang", "sglang", "sglang", SGLANG),
    Client("sglang-load", "sglang", "sglang", SGLANG),
    Client("schemathesis", "schemathesis", "schemathesis", (("schemathesis==4.32.5",),)),
    Client("guidellm", "guidellm", "guidellm", ((TORCH,), ("guidellm==0.8.1",))),
)
