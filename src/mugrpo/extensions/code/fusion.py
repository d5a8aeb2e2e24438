"""The sandbox sandboxfusion: a SandboxFusion server, which runs programs in its containers.

Its interface is `POST /run_code` (github.com/bytedance/SandboxFusion). The server learns programs
and inputs of tests, never the expected results.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.extensions.code.sandbox import (
    INSIDE,
    TRIAL,
    Limits,
    Outcomes,
    Request,
    SandboxError,
    told,
)
from mugrpo.processes import http
from mugrpo.rewards.verdict import Unfinished

_SPARE = 10.0  # seconds that the server may take beyond those of the program


class SandboxFusion:
    """Runs programs on the server at `url`."""

    def __init__(self, url: str, seconds: int) -> None:
        self._url = url
        self._limits = Limits(seconds)
        self._name = url
        self.name = f"SandboxFusion at {self._name}"

    def run(self, request: Request, patience: float) -> Outcomes:
        """Yield outcomes as `Sandbox.run` does.

        A program shares the server with its judge, and may make it fail. If another program runs
        there, and this one does not for a second time, then it has: it ends the sandbox.
        """
        try:
            lines = self._lines(request, patience)
        except SandboxError:
            self._lines(TRIAL, patience)
            try:
                lines = self._lines(request, patience)
            except SandboxError:
                return
        yield from told(lines)

    def _lines(self, request: Request, patience: float) -> Sequence[bytes]:
        """Return what a request's jobs print. Raises as `Sandbox.run` does."""
        question = {
            "code": INSIDE,
            "language": "python",
            "stdin": self._limits.text(request),
            "run_timeout": patience,
        }
        try:
            answer = http.ask(self._url, "/run_code", question, seconds=patience + _SPARE)
        except (http.Refused, http.Unanswered) as error:
            raise SandboxError(f"{self._name} {error}") from None
        if not isinstance(answer, dict):
            raise SandboxError(f"{self._name} answered {str(answer)[:60]}")
        if answer.get("status") == "SandboxError":
            raise SandboxError(f"{self._name}: {str(answer.get('message'))[:200]}")
        ran = answer.get("run_result")
        ran = ran if isinstance(ran, dict) else {}
        if ran.get("status") == "TimeLimitExceeded":
            raise Unfinished(f"not finished within {patience:g} seconds")
        printed = str(ran.get("stdout") or "").encode("utf-8", "replace")
        first, *lines = printed.splitlines() or [b""]
        if b"ready" not in first:
            raise SandboxError(f"{self._name} ran nothing: {str(answer)[:200]}")
        return lines
