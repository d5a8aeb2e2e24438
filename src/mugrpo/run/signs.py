"""Warning signs in a run's metrics. docs/defaults.md says where their limits come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_RATIO, _FALL, _ENTROPY, _TRUNCATED = 100.0, 0.05, 0.02, 0.1


class Signs:
    """The signs of a run. Each is said once, by the first metrics line beyond its limit.

    None of them changes the run.
    """

    def __init__(self) -> None:
        self._best, self._entropy = 0.0, 0.0  # best accuracy; entropy of the first update
        self._said: set[str] = set()

    def see(
        self, kind: str, update: int, values: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        """Say the signs that a metrics line shows for the first time."""
        for name, value, limit in self._measured(kind, values):
            if value > limit and name not in self._said:
                self._said.add(name)
                say(f"warning sign at update {update}: {name} is {value:.3g}, above {limit:g}")

    def _measured(self, kind: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
        """Yield name, value and limit of each sign in the line."""

        def number(key: str) -> float:
            return float(values.get(key) or 0.0)

        if kind == "update":
            yield "a ratio of a token with A < 0", number("ratio/negative/max"), _RATIO
            if entropy := number("entropy"):
                self._entropy = self._entropy or entropy
                fall = self._entropy / entropy
                yield "the first update's entropy over this one's", fall, 1 / _ENTROPY
        elif kind == "evaluation":
            if values.get("accuracy") is not None:
                self._best = max(self._best, number("accuracy"))
                yield "the fall of accuracy from its best", self._best - number("accuracy"), _FALL
        elif kind == "refresh" and (rows := number("rollouts")):
            truncated = number("status/truncated") / rows
            yield "the stage's share of truncated responses", truncated, _TRUNCATED
