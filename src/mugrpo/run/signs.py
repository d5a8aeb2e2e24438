"""Warning signs in a run's metrics. docs/defaults.md says where their limits come from."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mugrpo.disk.metrics import MOSTLY
from mugrpo.disk.metrics import number as finite
from mugrpo.rollouts.evaluation import headline

_RATIO, _FALL, _ENTROPY, _TRUNCATED = 100.0, 0.05, 0.005, 0.1


class Signs:
    """The signs of a run. Each is said once, by the first metrics line beyond its limit.

    None of them changes the run.
    """

    def __init__(self) -> None:
        self.collapse: str | None = None  # the sentence, if the last line has shown one
        self._best: dict[str, tuple[float, int]] = {}  # accuracy and reward: the best, its update
        self._evaluated = 0  # the newest update; later, bakeoffs and users evaluate older ones
        self._entropy = 0.0  # of the first update
        self._truncated: float | None = None  # share of the first stage's responses
        self._said: set[str] = set()

    def see(
        self, kind: str, update: int, values: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        """Say the signs that a metrics line shows for the first time."""
        self.collapse = None
        for name, beyond, sentence in self._measured(kind, update, values):
            if beyond and name not in self._said:
                self._said.add(name)
                say(f"warning sign at update {update}: {sentence}")
                self.collapse = sentence if name == "collapse" else self.collapse

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
        elif kind == "evaluation":
            name = headline(values)
            if (value := finite(values, name)) is None or update < self._evaluated:
                return
            self._evaluated = update
            best, since = self._best.get(name, (value, update))
            if value >= best:
                self._best[name] = value, update
            # above noise: the best one is outside of the last one's interval
            high, fall = finite(values, f"{name}_high"), best - value
            sure = (value if high is None else high) < best
            limit = _FALL if name == "accuracy" else _FALL * abs(best)
            text = f"{name} fell by {fall:.2g} since update {since}; limit {limit:.2g}"
            yield "fall", sure and fall > limit, text
            text = f"a collapse: {name} fell from {best:.3g} at update {since} to {value:.3g}"
            yield "collapse", sure and fall > abs(best) / 2, text
        elif kind == "refresh":
            share = number("truncated_share")
            text = f"{share:.0%} of the stage's responses are truncated; limit {_TRUNCATED:.0%}"
            yield "truncated", _TRUNCATED < share < MOSTLY, text  # above, `truncation` says it
            first = self._truncated = share if self._truncated is None else self._truncated
            text = f"truncated responses went from {first:.0%} in the first stage to {share:.0%}"
            text += "; unless longer ones earn more, lower optimizer.lr"
            yield "runaway", first < MOSTLY <= share, text
