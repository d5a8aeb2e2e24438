"""Predict the lengths of responses from those of earlier stages.

The longest responses are started first, so that no long response runs alone at the end while the
rest of the machine is idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from mugrpo.disk.shards import ShardSet, read_lengths


class ExpectedLengths:
    """Expected lengths, learned from shards alone, so that they are the same after a kill."""

    def __init__(self) -> None:
        self._of_problem: dict[str, tuple[int, int]] = {}  # numbers of responses and of tokens
        self._prompts = _Line()

    def learn(self, shards: ShardSet) -> None:
        """Learn from every undamaged shard. A damaged one is skipped, because it is not needed."""
        for shard in shards.numbers():
            if shards.fault(shard) is None:
                self._take(read_lengths(shards, shard))

    def of(self, problem_id: str, prompt_length: int) -> float:
        """Return the expected number of tokens of a response to the problem.

        That is the mean over its earlier responses. For a new problem it is read off a
        least-squares line through all points (prompt length, response length). It is 0 if nothing
        is known.
        """
        if problem_id in self._of_problem:
            responses, tokens = self._of_problem[problem_id]
            return tokens / responses
        return self._prompts.at(prompt_length)

    def _take(self, rows: Iterable[tuple[str, int, int]]) -> None:
        for problem_id, prompt_length, length in rows:
            responses, tokens = self._of_problem.get(problem_id, (0, 0))
            self._of_problem[problem_id] = (responses + 1, tokens + length)
            self._prompts.add(prompt_length, length)


class _Line:
    """A least-squares line, kept as sums of integers: exact, whatever the order of the points."""

    def __init__(self) -> None:
        self.count = self.x = self.y = self.xx = self.xy = 0

    def add(self, x: int, y: int) -> None:
        self.count += 1
        self.x += x
        self.y += y
        self.xx += x * x
        self.xy += x * y

    def at(self, x: int) -> float:
        """Return the line's value at `x`: 0 without points, their mean if all have the same x."""
        if not self.count:
            return 0.0
        mean = self.y / self.count
        spread = self.count * self.xx - self.x**2
        if not spread:
            return mean
        slope = (self.count * self.xy - self.x * self.y) / spread
        return mean + slope * (x - self.x / self.count)
