"""An extension of mugrpo: the objective "power" and the reward "short".

pip install ./examples/extension
mugrpo train mine.toml --objective.name power --task.rewards "['math', {name = 'short'}]"
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from mugrpo.config.base import Extension, ObjectiveOptions, RewardOption


class PowerOptions(ObjectiveOptions):
    """-r^p A / p: the ratio to a power, which tempers it below 1."""

    module: ClassVar[str] = "mugrpo_short"
    name: Literal["power"] = "power"
    power: float = Field(0.5, gt=0, le=1)
    """The power p. 1 is the unclipped surrogate."""


class ShortOptions(RewardOption):
    """1 for a response of at most `characters`, else 0, whatever it says."""

    factory: ClassVar[str] = "mugrpo_short:short"
    name: Literal["short"] = "short"
    characters: int = Field(200, ge=1)
    """Longest response that is right."""


METRICS = ()


def loss(logprobs, behavior_logprobs, advantages, mask, *, power):  # type: ignore[no-untyped-def]
    """Return -r^p A / p for each token, [B, T], and no metrics."""
    ratios_BT = torch.exp(power * (logprobs - behavior_logprobs))
    return -ratios_BT * advantages[:, None] / power, {}


def short(options: ShortOptions):  # type: ignore[no-untyped-def]
    """Return the verifier "short"."""
    from mugrpo.disk.records import Status
    from mugrpo.rewards.verifiers import Verdict

    def judge(text: str, _: str) -> Verdict:
        return Verdict(Status.RIGHT if len(text) <= options.characters else Status.WRONG, text)

    return judge


extension = Extension(objectives=(PowerOptions,), rewards=(ShortOptions,))
