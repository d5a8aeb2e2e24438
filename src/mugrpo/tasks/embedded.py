"""What the embedded tasks share: problems that are drawn, and a split by a hash of the prompt."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from mugrpo.errors import UsageError

_HELD_OUT_SHARE = 8  # one prompt in so many is never trained on


def held_out(prompt: str) -> bool:
    """Whether `prompt` is kept for evaluation, by a stable hash of its text."""
    return hashlib.sha256(prompt.encode()).digest()[0] % _HELD_OUT_SHARE == 0


def distinct_prompts(
    draw: Callable[[random.Random], str],
    count: int,
    *,
    seed: str,
    evaluation: bool,
    described: str,
    way_out: str,
) -> list[str]:
    """`count` different prompts of one side of the split, the same ones at every call.

    Raises UsageError where there are not as many; it says what was `described` and the `way_out`.
    """
    rng = random.Random(f"{seed} {evaluation}")
    prompts: dict[str, None] = {}  # insertion-ordered set
    for _ in range(200 * count):
        if len(prompts) == count:
            return list(prompts)
        prompt = draw(rng)
        if held_out(prompt) == evaluation:
            prompts[prompt] = None
    side = "eval" if evaluation else "train"
    raise UsageError(
        f"task.{side}_problems = {count}, but {described} give about {len(prompts)} different "
        f"{side} problems; ask for fewer, or {way_out}"
    )
