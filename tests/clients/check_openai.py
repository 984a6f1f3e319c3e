"""The openai package: everything it offers that this endpoint has."""

from __future__ import annotations

import openai_batches
import openai_chat
import openai_failures
import openai_texts
import openai_tools
from checks import main

if __name__ == "__main__":
    main(openai_texts, openai_chat, openai_tools, openai_batches, openai_failures)
