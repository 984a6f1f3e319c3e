"""`python -m radixlm`: the command line where its script is not on the path.

Knows nothing but `main`. Processes that are spawned load this module again under another name: they must not
run the command a second time.
"""

from __future__ import annotations

import sys

from .runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
