"""A judge in this process, for reward functions that exist nowhere else, such as a script's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mugrpo.config.rewards import FunctionOptions, RewardOption
from mugrpo.disk.errors import BrokenReward, UsageError
from mugrpo.rewards.functions import Held
from mugrpo.rewards.worker import Judge


class HeldJudge:
    """Judges calls as `Pool` does, but in this process and without the workers' limits.

    Closures and lambdas cannot be sent to a worker without pickling them, and importing a script to
    find its functions would run the script.
    """

    def __init__(self, rewards: Sequence[RewardOption], held: Held) -> None:
        self.log: Path | None = None  # what the functions print goes where the script prints
        self._rewards, self._held = rewards, held
        self._judge: Judge | None = None
        self.said: list[str] = []

    def start(self) -> None:
        """Load the rewards. Raises UsageError if this process does not hold one of them."""
        functions = [one for one in self._rewards if isinstance(one, FunctionOptions) and one.held]
        for reward in functions:
            if reward.function not in self._held:
                raise UsageError(
                    f"the reward {reward.function} exists only in the script that began this run; "
                    "run the script again, or move the function to a module of its own"
                )
        self._judge = self._judge or Judge(self._rewards, self._held)
        self.said = self._judge.said

    def run(self, calls: Iterable[Sequence[str]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the outcomes of each call's items (JSON), in order, as `Pool.run` does."""
        self.start()
        for items in calls:
            yield self._outcomes([json.loads(item) for item in items])

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _outcomes(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the items' outcomes. If a call with several fails, each of them is tried alone."""
        assert self._judge is not None
        answer = self._judge.answer(items)
        if "broken" in answer:
            raise BrokenReward(f"{answer['broken']}; fix it (--force accepts the changed reward)")
        if "results" in answer:
            results: list[dict[str, Any]] = answer["results"]
            return results
        if len(items) == 1:
            return [{"failure": answer["failure"], "unfinished": answer["unfinished"]}]
        return [outcome for item in items for outcome in self._outcomes([item])]
