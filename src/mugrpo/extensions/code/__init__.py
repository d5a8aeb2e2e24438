"""The reward "code": a response's program, run against tests in a sandbox (README.md beside it).

Expected results never enter a sandbox. What comes out of one is a claim, which is compared outside.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from mugrpo.config.base import Extension, RewardOption


class CodeOptions(RewardOption):
    """1 if a response's program passes the tests that the reference answer holds, else 0.

    The program is the last fenced code block. It runs in a sandbox; without
    one, the run does not begin.
    """

    waits = True
    name: Literal["code"] = "code"
    factory: ClassVar[str] = "mugrpo.extensions.code.judging:Code"
    partial: bool = False
    """Give the share of the tests that pass. Otherwise, the first failure ends the judgment."""
    timeout: int = Field(5, ge=1)
    """CPU time in seconds that a program may take for a test. All tests of a program may take 4
    times as long by the clock; one that takes longer is unfinished."""

    @property
    def patience(self) -> float:
        """Return the seconds by the clock for all tests of a program."""
        return 4.0 * self.timeout

    def reference(self, value: Any, row: Mapping[str, Any]) -> Any:
        from mugrpo.extensions.code.cases import with_function

        tests = with_function(value, row.get("metadata"))
        return json.dumps(tests) if isinstance(tests, list | dict) else tests

    def fault(self, reference: str) -> str | None:
        from mugrpo.extensions.code.cases import read_tests

        try:
            read_tests(reference)
        except ValueError as error:
            return f"has no tests for the reward code: {error}"
        return None


extension = Extension(
    rewards=(CodeOptions,), checks={"sandbox": "mugrpo.extensions.code.judging:check"}
)
