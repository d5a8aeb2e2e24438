"""Updates, seeded or drawn by hypothesis, and objectives for claims about all of them."""

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import torch
from hypothesis import strategies as st

from mugrpo.config.base import members_of
from mugrpo.config.load import build_config
from mugrpo.config.objectives import Objective
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.loss import UpdateLoss
from tests.updates import hand_batch

INF = math.inf
NAMES = sorted(members_of(Objective).keys() - {"file"})
FORMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in NAMES},
    "gspo": {"name": "grpo", "level": "sequence"},
    "relaxed": {"name": "grpo", "ratio_clip": (0.0, 5.0)},
    "dual clip": {"name": "grpo", "dual_clip": 3.0},
    **{
        f"topr by {taper}": {"name": "topr", "taper": taper}
        for taper in ("prefix", "smallest", "mean", "token")
    },
}
_VETO = {"name": "negative_advantage", "threshold": 0.5}
_OFF_POLICY = {"name": "off_policy", "delta": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "veto": {"veto": _VETO},
    "veto triggers": {"veto": {**_VETO, "scope": "trigger"}},
    "veto behind": {"veto": {**_VETO, "scope": "post_trigger"}},
    "veto from": {"veto": {**_VETO, "scope": "from_trigger"}},
    "veto responses": {"veto": {**_VETO, "scope": "response"}},
    "sequence mask": {"sequence_mask": _OFF_POLICY},
    "truncated": {"correction": {"name": "truncated", "interval": (0.0, 1.2)}},
    "truncated responses": {"correction": {"name": "truncated", "level": "sequence"}},
    "masked": {"correction": {"name": "masked", "interval": (0.8, 1.2)}},
    "masked responses": {"correction": {"name": "masked", "level": "sequence"}},
    "kl": {"reference": {"name": "kl", "coefficient": 0.3}},
}
_EVERY = ("veto", "sequence mask", "truncated", "kl")
SETTINGS["all"] = {k: v for name in _EVERY for k, v in SETTINGS[name].items()}
STORED = ("trainer_behavior_logprobs", "proximal_logprobs", "reference_logprobs")


@cache
def loss_of(form: str, setting: str = "plain", zero_variance_mask: bool = True) -> UpdateLoss:
    groups = {**SETTINGS[setting], "advantage": {"zero_variance_mask": zero_variance_mask}}
    return UpdateLoss(build_config({"preset": "grpo", "objective": FORMS[form], **groups}, "test"))


@dataclass(frozen=True)
class Update:
    """A whole update, another order of its responses, and a cut into micro-batches."""

    batch: MicroBatch
    logprobs: torch.Tensor  # [B, T]
    order: torch.Tensor  # [B]
    cut: list[int]  # responses of each micro-batch

    def to(self, dtype: torch.dtype) -> "Update":
        batch = replace(
            self.batch,
            behavior_logprobs=self.batch.behavior_logprobs.to(dtype),
            advantages=self.batch.advantages.to(dtype),
            stored={name: tensor.to(dtype) for name, tensor in self.batch.stored.items()},
        )
        return replace(self, batch=batch, logprobs=self.logprobs.to(dtype))


def seeded(seed: int) -> Update:
    """Return ten ragged responses, some of one token, with every kind of stored logprobs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(10, 7, generator=generator, dtype=torch.float64)

    behavior = -3 * torch.rand(10, 7, generator=generator, dtype=torch.float64)
    advantages = torch.randn(10, generator=generator, dtype=torch.float64)
    advantages[4] = 0.0
    lengths = torch.tensor([7, 1, 3, 7, 2, 1, 6, 4, 5, 2])
    batch = hand_batch(
        behavior,
        advantages,
        torch.arange(7) < lengths[:, None],
        torch.arange(10) % 3 > 0,
        trainer_behavior_logprobs=behavior + normal(0.2),
        proximal_logprobs=behavior + normal(0.3),
        reference_logprobs=behavior + normal(0.5),
    )
    order = torch.randperm(10, generator=generator)
    return Update(batch, behavior + normal(0.5), order, [1, 2, 3, 4])


# The values that bytes stand for. Log ratios: 0 first, as hypothesis shrinks to it, then extremes.
_ENDS = (14.0, -14.0, 79.0, -79.0, 100.0, -100.0, INF, -INF, math.nan)
_NORMAL = [NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
_RATIOS = torch.tensor([0.0, *_ENDS, *_NORMAL[len(_ENDS) + 1 :]], dtype=torch.float64)
_ADVANTAGES = torch.tensor([0.0, 1.0, -1.0, 10.0, -10.0, *_NORMAL[5:]], dtype=torch.float64)


def _bytes(count: int) -> st.SearchStrategy[torch.Tensor]:
    drawn = st.binary(min_size=count, max_size=count)
    return drawn.map(lambda raw: torch.tensor(list(raw), dtype=torch.int64))


@st.composite
def updates(draw: st.DrawFn) -> Update:
    """Draw 1 to 6 responses of 1 to 8 tokens each, in one or two groups, with every extreme.

    A log ratio is 0, roughly normal, or one of _ENDS: 1e+-6, close to or beyond e^+-80, and
    probabilities of 0 under one policy or both (nan). A different small amount is added to each
    that is not 0 or an end, since M2PO breaks ties by order (see test_m2po).
    """
    lengths = st.lists(st.integers(1, 8), min_size=1, max_size=3)
    groups = draw(st.lists(lengths, min_size=1, max_size=2))
    lengths_B = torch.tensor([length for group in groups for length in group])
    varied = [draw(st.booleans()) for _ in groups]
    varied_B = torch.tensor([v for v, group in zip(varied, groups, strict=True) for _ in group])
    rows, width = len(lengths_B), int(lengths_B.max())
    distinct_N = torch.arange(1, rows * width + 1, dtype=torch.float64) * math.sqrt(2) % 1
    scale = draw(st.sampled_from([0.5, 0.01, 5.0]))

    def log_ratios(size: float) -> torch.Tensor:
        kinds_N = draw(_bytes(rows * width))
        ordinary_N = size * (_RATIOS[kinds_N] + 1e-3 * distinct_N)
        rare_N = kinds_N <= len(_ENDS)
        return torch.where(rare_N, _RATIOS[kinds_N], ordinary_N).view(rows, width)

    base_BT = -draw(_bytes(rows * width)).view(rows, width).double() / 64
    behavior_BT, logprobs_BT = _apart(base_BT, log_ratios(scale))
    batch = hand_batch(
        behavior_BT,
        _ADVANTAGES[draw(_bytes(rows))],
        torch.arange(width) < lengths_B[:, None],
        varied_B,
        **{name: _beside(behavior_BT, log_ratios(scale)) for name in STORED},
    )
    order = draw(st.permutations(range(rows)))
    starts = [0, *(i for i in range(1, rows) if draw(st.booleans())), rows]
    cut = [end - start for start, end in pairwise(starts)]
    return Update(batch, logprobs_BT, torch.tensor(order), cut)


def _apart(base_BT: torch.Tensor, ratio_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (behavior, policy) logprobs that differ by `ratio_BT`; the higher one is `base_BT`."""
    neither_BT = ratio_BT.isnan()
    behavior_BT = (base_BT - ratio_BT.clamp(min=0)).masked_fill(neither_BT, -INF)
    return behavior_BT, (base_BT + ratio_BT.clamp(max=0)).masked_fill(neither_BT, -INF)


def _beside(behavior_BT: torch.Tensor, ratio_BT: torch.Tensor) -> torch.Tensor:
    """Return another policy's logprobs, at `ratio_BT` from the behavior policy's but at most 0."""
    return (behavior_BT.clamp(min=-120.0) + ratio_BT).nan_to_num(nan=-INF, neginf=-INF).clamp(max=0)


def taken(batch: MicroBatch, rows: torch.Tensor, width: int | None = None) -> MicroBatch:
    """Return some responses of a batch, with the padding cut to `width`."""
    return replace(
        batch,
        places=rows.tolist(),
        mask=batch.mask[rows, :width],
        behavior_logprobs=batch.behavior_logprobs[rows, :width],
        advantages=batch.advantages[rows],
        varied=batch.varied[rows],
        stored={name: tensor[rows, :width] for name, tensor in batch.stored.items()},
    )


def prepassed(loss: UpdateLoss, batch: MicroBatch, logprobs: torch.Tensor) -> dict[str, Any]:
    if loss.objective.prepass is None:
        return {}
    given = ("behavior_logprobs", "advantages", "mask")
    with torch.no_grad():
        return loss.prepass(logprobs, {n: getattr(batch, n) for n in given} | batch.stored)


Found = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


def evaluated(loss: UpdateLoss, batch: MicroBatch, logprobs: torch.Tensor) -> Found:
    """Return (token losses, 0 on padding; gradient of their sum by the logprobs; metrics)."""
    logprobs = logprobs.clone().requires_grad_()
    loss_BT, metrics = loss(batch, logprobs, prepassed(loss, batch, logprobs))
    loss_BT = loss_BT * batch.mask
    (gradient,) = torch.autograd.grad(loss_BT.sum(), logprobs)
    return loss_BT.detach(), gradient, metrics


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
