"""Warning signs in a run's metrics. docs/defaults.md says where their limits come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mugrpo.disk.metrics import MOSTLY
from mugrpo.disk.metrics import number as finite

_RATIO, _FALL, _ENTROPY, _TRUNCATED = 100.0, 0.05, 0.005, 0.1


class Signs:
    """The signs of a run. Each is said once, by the first metrics line beyond its limit.

    None of them changes the run.
    """

    def __init__(self) -> None:
        self._best, self._since = 0.0, 0  # best accuracy, and the update that has it
        self._entropy = 0.0  # of the first update
        self._said: set[str] = set()

    def see(
        self, kind: str, update: int, values: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        """Say the signs that a metrics line shows for the first time."""
        for name, beyond, sentence in self._measured(kind, update, values):
            if beyond and name not in self._said:
                self._said.add(name)
                say(f"warning sign at update {update}: {sentence}")

    def _measured(
        self, kind: str, update: int, values: Mapping[str, Any]
    ) -> Iterator[tuple[str, bool, str]]:
        """Yield each sign in the line: its name, whether it is beyond its limit, a sentence."""

        def number(key: str) -> float:
            return finite(values, key) or 0.0

        if kind == "update":
            ratio = number("ratio/negative/max")
            text = f"a token with A < 0 has a ratio of {ratio:.3g}; limit {_RATIO:g}"
            yield "ratio", ratio > _RATIO, text
            if entropy := number("entropy"):
                self._entropy = self._entropy or entropy
                left = entropy / self._entropy
                text = f"entropy fell to {left:.2g} of the first update's; limit {_ENTROPY:g}"
                yield "entropy", left < _ENTROPY, text
        elif kind == "evaluation" and values.get("accuracy") is not None:
            accuracy = number("accuracy")
            if accuracy >= self._best:
                self._best, self._since = accuracy, update
            fall = self._best - accuracy
            text = f"accuracy fell by {fall:.2g} since update {self._since}; limit {_FALL:g}"
            # above noise: the best accuracy is outside of the last one's interval
            high = number("accuracy_high") or accuracy
            yield "fall", fall > _FALL and high < self._best, text
        elif kind == "refresh":
            share = number("truncated_share")
            text = f"{share:.0%} of the stage's responses are truncated; limit {_TRUNCATED:.0%}"
            yield "truncated", _TRUNCATED < share < MOSTLY, text  # above, `truncation` says it
