"""Logs of the server: one JSON object a line on standard error, with the fields a record was given.

No text of a prompt or an answer is ever among them.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime

_MOST_KINDS = 100


class JsonLines(logging.Formatter):
    """`extra={"fields": {...}}` of a record stands beside its time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class Repeats(logging.Filter):
    """Lets an error of asyncio pass once a second: where no more files can be opened it tells of every
    connection that it cannot accept, thousands a second, each with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != "asyncio":
            return True
        text = str(record.msg).partition("\n")[0]
        is_new = record.created - self._last.get(text, -math.inf) >= 1.0
        if is_new:
            if len(self._last) >= _MOST_KINDS:
                self._last.clear()
            self._last[text] = record.created
        return is_new


def set_up_logs(level: str) -> None:
    """For this process, of the server's own loggers, uvicorn's and asyncio's; of others what they warn of."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(Repeats())
    for name in ("radixlm", "uvicorn", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.lastResort = handler
    logging.captureWarnings(True)
    if level == "info":  # of its own start and end uvicorn tells nobody anything
        logging.getLogger("uvicorn").setLevel("WARNING")
