"""Groups of earlier stages that updates train on once more: random reshuffling of a pool.

Efficient RL Training for LLMs with Experience Replay (arXiv 2604.08706) keeps the newest rollouts
in a buffer, first in, first out, and draws every batch from it uniformly, with replacement. Here
the buffer is the rollouts of the stages before, which are on disk anyway, and a batch keeps its own
groups. What is drawn is whole groups, because advantages are a group's, and without replacement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from mugrpo.rollouts.selection import Group


def replayed(
    pool: Sequence[Group], batches: Sequence[Sequence[Group]], count: int, *, seed: int, stage: int
) -> list[list[Group]]:
    """Return `count` groups of `pool` for each of the batches of a stage.

    Groups come in a random order, which depends on `seed` and `stage` alone, and in another one
    once the pool is used up. A group waits while an update has its problem already, so no problem
    repeats within an update. A batch gets fewer groups if the pool has too few other problems.
    """
    rng = np.random.default_rng((seed, stage, 0, 2))  # stages' draws have 1 in its last place
    waiting, hands = deque[int](), []
    for batch in batches:
        problems, hand, passed_over = {group.problem for group in batch}, list[Group](), list[int]()
        shuffled = False
        while len(hand) < count and (waiting or not shuffled):
            if not waiting:
                order = rng.permutation(len(pool)).tolist()
                waiting.extend(n for n in order if n not in passed_over)
                shuffled = True
                continue
            number = waiting.popleft()
            if pool[number].problem in problems:
                passed_over.append(number)
            else:
                problems.add(pool[number].problem)
                hand.append(pool[number])
        waiting.extendleft(reversed(passed_over))
        hands.append(hand)
    return hands
