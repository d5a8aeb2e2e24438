"""The metrics of an update. B responses of a micro-batch, T sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.model.memory import out_of_memory
from mugrpo.optimize.batching import MicroBatch
from mugrpo.processes.ranks import Ranks

Values = dict[str, float | None]


class TokenStatistics:
    """A few numbers for each response token of an update, and the metrics computed from them.

    `names` lists the names of the metrics that the loss returns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sequences: list[torch.Tensor] = []  # log ratio of each computed response
        self._parts: dict[str, list[torch.Tensor]] = {}
        self._waiting: list[tuple[dict[str, torch.Tensor], NDArray[np.bool_]]] = []

    def add(
        self,
        batch: MicroBatch,
        logprobs_BT: torch.Tensor,
        entropy_BT: torch.Tensor,
        metrics: dict[str, torch.Tensor],
    ) -> None:
        """Note what was computed for a micro-batch. It stays on the device until `arrive`."""
        log_ratio_BT = logprobs_BT.detach() - batch.behavior_logprobs
        tensors = {
            "sequence": (log_ratio_BT * batch.mask).sum(-1),
            "log_ratio": log_ratio_BT,
            "advantage": batch.advantages[:, None].expand_as(batch.mask),
            "entropy": entropy_BT,
            **{name: tensor.detach().float() for name, tensor in metrics.items()},
        }
        self._waiting.append((tensors, batch.chosen))

    def arrive(self, *others: torch.Tensor) -> list[torch.Tensor]:
        """Copy to the host what was added, with one wait, and return `others`, copied along."""
        added = [tensor for tensors, _ in self._waiting for tensor in tensors.values()]
        copies = iter(_on_host([*added, *others]))
        for tensors, mask_BT in self._waiting:
            of_tokens = dict(zip(tensors, copies, strict=False))
            self._sequences.append(of_tokens.pop("sequence").double())
            for name, tensor in of_tokens.items():
                chosen = tensor[torch.from_numpy(mask_BT)].float()
                self._parts.setdefault(name, []).append(chosen)
        self._waiting.clear()
        return list(copies)

    def together(self, ranks: Ranks) -> TokenStatistics:
        """Return the statistics of all ranks together."""
        if ranks.size == 1:
            return self
        joined = TokenStatistics(self._names)
        for sequences, parts in ranks.all((self._sequences, self._parts)):
            joined._sequences += sequences
            for name, tensors in parts.items():
                joined._parts.setdefault(name, []).extend(tensors)
        return joined

    def effective_sample_share(self) -> float:
        """Return (sum w)^2 / (n sum w^2) over the sequence ratios w of the n computed responses.

        This is Kish's effective sample size as a share: 1 if all ratios are equal, 1/n if a single
        one outweighs the rest. It is 1 if no response was computed, and NaN if a ratio is.
        """
        if not self._sequences:
            return 1.0
        log_weights = torch.cat(self._sequences)  # as logarithms: a sequence's ratio overflows
        log_share = 2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)
        return min(log_share.exp().item() / len(log_weights), 1.0)  # in this order NaN stays NaN

    def values(self, update_tokens: int) -> Values:
        """Return the update's metrics.

        The loss's metrics are means over all `update_tokens` response tokens; tokens that were not
        computed count as 0. Ratios, divergences and entropy cover only the computed tokens
        (see `UpdateLoss.has_gradient`); they are None if there are no such tokens. KL and total
        variation are estimated on the behavior policy's own samples:

            kl_behavior = mean(r - 1 - log r), which estimates KL(behavior || policy) per token
            tv_token = mean(max(0, 1 - r))
            tv_sequence = mean(max(0, 1 - w)) over the computed responses, w = prod_t r_t

        `logprob_gap/*` is |log r|, its mean and maximum.
        """
        tokens = {name: torch.cat(parts) for name, parts in self._parts.items()}
        nothing = torch.empty(0)
        log_ratio = tokens.pop("log_ratio", nothing)
        advantage, entropy = tokens.pop("advantage", nothing), tokens.pop("entropy", nothing)
        ratio, gap = log_ratio.exp(), log_ratio.abs()
        values: Values = {
            "kl_behavior": _mean(log_ratio.double().expm1() - log_ratio.double()),
            "tv_token": _mean((1 - ratio).clamp(min=0)),
            "tv_sequence": _mean(-torch.cat([nothing, *self._sequences]).expm1().clamp(max=0)),
            "entropy": _mean(entropy),
            "logprob_gap/mean": _mean(gap),
            "logprob_gap/max": _quantile(gap, 1),
        }
        for sign, chosen in (("positive", advantage > 0), ("negative", advantage < 0)):
            part = ratio[chosen]
            values[f"ratio/{sign}/mean"] = _mean(part)
            for percent in (1, 50, 99):
                values[f"ratio/{sign}/p{percent:02d}"] = _quantile(part, percent / 100)
            values[f"ratio/{sign}/max"] = _quantile(part, 1)
        for name in self._names:
            values[name] = tokens[name].sum().item() / update_tokens if name in tokens else 0.0
        return values


def _on_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `tensors` on the host. They are copied together if the device has room for that."""
    if not tensors:
        return []
    try:
        flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    except Exception as error:
        if not out_of_memory(error):
            raise
        return [tensor.cpu() for tensor in tensors]  # a wait for each
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _mean(values: torch.Tensor) -> float | None:
    return values.double().mean().item() if len(values) else None


def _quantile(values: torch.Tensor, share: float) -> float | None:
    """Return the smallest value v such that at least `share` of `values` are <= v."""
    if not len(values):
        return None
    # torch.quantile interpolates, and refuses more than 16 million values.
    rank = max(1, -int(-share * len(values) // 1))  # ceil(share x n), at least 1
    return values.kthvalue(rank).values.item()
