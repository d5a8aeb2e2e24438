"""The sandbox sandboxfusion: a SandboxFusion server, which runs programs in its containers.

Its interface is `POST /run_code` (github.com/bytedance/SandboxFusion). The server learns programs
and inputs of tests, never the expected results.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from mugrpo.rewards.code.sandbox import INSIDE, Limits, Outcome, Outcomes, Request, SandboxError
from mugrpo.rewards.verdict import Unfinished

_LONGEST_ANSWER = 256 << 20  # bytes
_SPARE = 10.0  # seconds that the server may take beyond those of the program


class SandboxFusion:
    """Runs programs on the server at `url`."""

    def __init__(self, url: str, seconds: int, memory: int) -> None:
        self._url = url.rstrip("/") + "/run_code"
        self._limits = Limits(seconds, memory)
        self.name = f"SandboxFusion at {url}"

    def run(self, request: Request, patience: float) -> Outcomes:
        """Yield outcomes as `Sandbox.run` does."""
        answer = self._asked(
            {
                "code": INSIDE,
                "language": "python",
                "stdin": self._limits.text(request),
                "run_timeout": patience,
            },
            patience + _SPARE,
        )
        if answer.get("status") == "SandboxError":
            raise SandboxError(f"{self._url}: {str(answer.get('message'))[:200]}")
        ran = answer.get("run_result") or {}
        if ran.get("status") == "TimeLimitExceeded":
            raise Unfinished(f"not finished within {patience:g} seconds")
        first, *lines = str(ran.get("stdout") or "").encode().splitlines() or [b""]
        if b"ready" not in first:
            raise SandboxError(f"{self._url} ran nothing: {str(answer)[:200]}")
        yield from map(Outcome.of, lines)

    def _asked(self, question: dict[str, Any], timeout: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self._url, json.dumps(question).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                told = json.loads(answer.read(_LONGEST_ANSWER))
        except (OSError, ValueError, RecursionError, urllib.error.URLError) as error:
            raise SandboxError(f"{self._url}: {error}") from None
        if not isinstance(told, dict):
            raise SandboxError(f"{self._url} answered {str(told)[:60]}")
        return told
