"""How long responses will be, by those of earlier stages.

Long ones begin first, so that none of them is left alone with an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from mugrpo.disk.shards import ShardSet, read_lengths


class ExpectedLengths:
    """Learns from shards. What they say depends on nothing else, so it is the same after a kill."""

    def __init__(self) -> None:
        self._of_problem: dict[str, tuple[int, int]] = {}  # responses and their tokens
        self._prompts = _Line()

    def learn(self, shards: ShardSet) -> None:
        """Take in every shard that is whole; one that is not can be done without."""
        for shard in shards.numbers():
            if shards.fault(shard) is None:
                self._take(read_lengths(shards, shard))

    def of(self, problem_id: str, prompt_length: int) -> float:
        """Tokens of a response: the mean of the problem's, or else what its prompt suggests.

        That is the least-squares line through all lengths of prompts and responses; 0 where
        nothing is known.
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
    """The line of least squares, from sums of whole numbers: exact, in any order."""

    def __init__(self) -> None:
        self.count = self.x = self.y = self.xx = self.xy = 0

    def add(self, x: int, y: int) -> None:
        self.count += 1
        self.x += x
        self.y += y
        self.xx += x * x
        self.xy += x * y

    def at(self, x: int) -> float:
        """0 without points, their mean where no line goes through them."""
        if not self.count:
            return 0.0
        mean = self.y / self.count
        spread = self.count * self.xx - self.x**2
        if not spread:
            return mean
        slope = (self.count * self.xy - self.x * self.y) / spread
        return mean + slope * (x - self.x / self.count)
