"""Updates: advantages -> micro-batches -> logprobs -> objective -> one optimizer step.

Suffixes: B responses of a micro-batch, T response tokens.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.disk.places import passing
from mugrpo.disk.records import Rollout, Score, Status
from mugrpo.model.dtensors import full
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.model.policy import Policy
from mugrpo.optimize import advantages
from mugrpo.optimize.batching import Group, MicroBatch, Responses, collate, cost, row_of
from mugrpo.optimize.budget import TokenBudget, computing
from mugrpo.optimize.cut import cut, layout
from mugrpo.optimize.diagnostics import TokenStatistics
from mugrpo.optimize.forward import batch_logprobs, shares_prompts
from mugrpo.optimize.fsdp import release
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.lr import learning_rate
from mugrpo.optimize.optimizer_state import load_optimizer, save_optimizer
from mugrpo.optimize.reduction import denominator, reduced_loss


@dataclass(frozen=True)
class Experience:
    """What one update trains on: whole groups, their rollouts side by side."""

    rollouts: Sequence[Rollout]
    scores: Sequence[Score]
    stored: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)
    # name -> logprobs of each rollout, what the objective's parts need of other policies


Watch = Callable[[MicroBatch, torch.Tensor, dict[str, torch.Tensor]], None]

_LARGE_STATE = (
    "weights, gradients and AdamW's moments take 16 bytes a parameter, whatever the options; take "
    "a smaller model or more memory"
)


class Trainer:
    """The policy with its optimizer. `update` counts updates made, applied or not."""

    def __init__(
        self, policy: Policy, config: RunConfig, budget: TokenBudget | None = None
    ) -> None:
        """Each of the ranks that share a policy makes the same calls."""
        self.ranks = policy.ranks
        self.policy = policy
        self.config = config
        self.options = config.optimizer
        self.budget = budget or TokenBudget(config.optimizer)
        self.loss = UpdateLoss.of(config)
        self.share = shares_prompts(policy, config)
        self.update = 0
        self.nonfinite_in_a_row = 0
        torch.manual_seed(config.seed)  # a process begins with another state each time
        parameters = [p for p in policy.model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim >= 2]},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=self.options.lr,
            betas=self.options.betas,
            eps=self.options.eps,
            weight_decay=self.options.weight_decay,
            fused=policy.device.type == "cpu",  # one pass over memory instead of six
        )

    def step(self, experience: Experience, watch: Watch | None = None) -> dict[str, Any]:
        """One update on `experience`; returns its metrics (see diagnostics, and the keys below).

        `watch` sees each micro-batch with its logprobs and the objective's metrics, both [B, T].

        The gradient is that of the whole update's loss: its denominator counts every response,
        so the cut into micro-batches changes nothing but rounding. Responses without gradient
        (advantage 0, where the objective gives them none) are not computed. A non-finite loss or
        gradient is counted in `skipped` and never reaches the weights. Where memory runs out all of
        it is computed anew in smaller micro-batches, see `TokenBudget`, or RunStopped is raised.
        """
        began = time.monotonic()
        rollouts = experience.rollouts
        responses = self._responses(experience)
        tokens = sum(len(r.response_ids) for r in rollouts)
        divisor = denominator(
            self.config.reduction,
            tokens=tokens,
            responses=len(rollouts),
            max_new_tokens=self.config.rollouts.max_new_tokens,
        )
        batches, loss, statistics, shown = self.budget.fitted(
            partial(self._gradient, responses, divisor, watch)
        )
        for show in shown:
            show()
        ess = statistics.effective_sample_share()
        lr = self._learning_rate()
        if self.config.step.name == "ess":
            lr *= math.sqrt(ess)
        grad_norm, applied = self._apply(lr, loss)
        statuses = [score.status for score in experience.scores]
        rewards = [score.reward for score in experience.scores if score.reward is not None]
        return {
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "skipped": int(not applied),
            "batch_reward": sum(rewards) / len(rewards) if rewards else None,
            "tokens": tokens,
            **cost(batches),
            **({"micro_batch_tokens": self.budget.tokens} if self.budget.lowered else {}),
            "zero_variance_share": 1 - responses.varied.double().mean().item(),
            "effective_sample_share": ess,
            "failed_share": sum(s.failed for s in statuses) / len(statuses),
            "truncated_share": statuses.count(Status.TRUNCATED) / len(statuses),
            **statistics.values(tokens),
            **statistics.bound(responses.groups),
            "time/update": time.monotonic() - began,
        }

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropy of the batch's response tokens under the policy now, [B, T]."""
        return batch_logprobs(self.policy, batch, self.config)

    def save(self, folder: Path) -> None:
        """Write model, tokenizer, optimizer and state into `folder`; no pickles."""
        names = {p: name for name, p in self.policy.model.named_parameters()}
        self.policy.save(folder)
        save_optimizer(folder, self.optimizer, names, self.ranks)
        if self.ranks.first:
            state = {"update": self.update, "nonfinite_in_a_row": self.nonfinite_in_a_row}
            (folder / "trainer.json").write_text(json.dumps(state) + "\n")

    def load(self, folder: Path) -> None:
        """Continue from a folder that `save` wrote, with as many ranks as there are now."""
        state = json.loads((folder / "trainer.json").read_text())
        self.policy.load_weights(folder, state["update"])
        parameters = dict(self.policy.model.named_parameters())
        load_optimizer(folder, self.optimizer, parameters)
        self.update = state["update"]
        self.nonfinite_in_a_row = state["nonfinite_in_a_row"]

    def _responses(self, experience: Experience) -> Responses:
        """The update's responses in order with their advantages."""
        function = getattr(advantages, self.config.advantage.name)
        found, varied, groups = [], [], []
        pairs = zip(experience.rollouts, experience.scores, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].group):
            scores = [score for _, score in group]
            rewards = torch.tensor([[score.reward or 0.0 for score in scores]], dtype=torch.double)
            valid = torch.tensor([[self.config.rewards.counts(score.status) for score in scores]])
            differ = advantages.varied(rewards, valid)
            part = function(rewards, valid, **self.config.advantage.knobs)[0]
            if self.config.advantage.zero_variance_mask and not differ.item():
                part = torch.zeros_like(part)
            found.append(part)
            varied.append(differ.expand(len(scores)))
            groups.append(Group(rewards[0], valid[0]))
        return Responses(
            experience.rollouts, torch.cat(found), torch.cat(varied), experience.stored, groups
        )

    def _gradient(
        self, responses: Responses, divisor: int, watch: Watch | None, budget: int
    ) -> tuple[list[MicroBatch], float, TokenStatistics, list[Callable[[], None]]]:
        """Leave the gradient of the update's loss, in micro-batches of `budget` tokens.

        It begins from zero: what a backward pass that ran out of memory left does not count.
        Returns the micro-batches, the loss, its statistics, and calls that show all to `watch`.
        """
        self.optimizer.zero_grad()
        batches = self._micro_batches(responses, budget)
        extras = self._prepass(batches)
        statistics = TokenStatistics(self.loss.metrics)
        loss = 0.0
        shown: list[Callable[[], None]] = []
        for number, counts in self.ranks.turns([b.layout.cost for b in batches]):
            batch, extra = batches[number], extras[number]
            with computing(batch):
                logprobs_BT, entropy_BT = self.logprobs(batch)
                loss_BT, metrics = self.loss(batch, logprobs_BT, extra)
                part = reduced_loss(loss_BT, batch.mask, self.config.reduction, divisor)
                (part * counts).backward()
            if not counts:
                continue
            loss += part.item()
            statistics.add(batch, logprobs_BT, entropy_BT, metrics)
            if watch is not None:
                shown.append(partial(watch, batch, logprobs_BT.detach(), metrics))
        loss = sum(self.ranks.all(loss))
        return batches, loss, statistics.together(self.ranks), shown

    def _micro_batches(self, responses: Responses, budget: int) -> list[MicroBatch]:
        rows: list[int] = self.loss.has_gradient(responses).nonzero()[:, 0].tolist()
        shapes = [row_of(responses.rollouts[row]) for row in rows]
        parts = cut(shapes, budget, share=self.share)
        if rows and len(parts) < self.ranks.size:  # one for each
            costs = [layout([shapes[i] for i in part], share=self.share).cost for part in parts]
            parts = cut(shapes, math.ceil(sum(costs) / self.ranks.size), share=self.share)
        made = partial(collate, pad_id=self.policy.pad_id, device=self.policy.device)
        return [made(responses, [rows[i] for i in part], share=self.share) for part in parts]

    @torch.no_grad()
    def _prepass(self, batches: list[MicroBatch]) -> list[dict[str, torch.Tensor]]:
        """What the objective's pre-pass over the whole update gives to each micro-batch."""
        if self.loss.objective.prepass is None or not batches:
            return [{} for _ in batches]
        width = max(batch.mask.shape[1] for batch in batches)

        def stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
            widened = [torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors]
            return torch.cat(widened)

        own: dict[int, torch.Tensor] = {}
        for number, counts in self.ranks.turns([b.layout.cost for b in batches]):
            with computing(batches[number]):
                logprobs_BT = self.logprobs(batches[number])[0]
            if counts:
                own[number] = logprobs_BT.cpu()
        release(self.policy)
        everybody = {k: v for part in self.ranks.all(own) for k, v in part.items()}
        logprobs = [everybody[k].to(self.policy.device) for k in range(len(batches))]
        results = self.loss.prepass(
            stacked(logprobs),
            {
                "behavior_logprobs": stacked([batch.behavior_logprobs for batch in batches]),
                "advantages": torch.cat([batch.advantages for batch in batches]),
                "mask": stacked([batch.mask for batch in batches]),
                **{
                    name: stacked([batch.stored[name] for batch in batches])
                    for name in batches[0].stored
                },
            },
        )
        sizes = [len(batch.rows) for batch in batches]
        parts = {name: tensor.split(sizes) for name, tensor in results.items()}
        return [
            {name: part[i][:, : batch.mask.shape[1]] for name, part in parts.items()}
            for i, batch in enumerate(batches)
        ]

    def _learning_rate(self) -> float:
        return learning_rate(
            self.update,
            peak=self.options.lr,
            schedule=self.options.lr_schedule,
            warmup_updates=self.options.warmup_updates,
            total_updates=self.config.schedule.total_updates,
            final_share=self.options.final_lr_share,
        )

    @out_of_memory_explained("the optimizer's step", _LARGE_STATE)
    def _apply(self, lr: float, loss: float) -> tuple[float, bool]:
        """Clip and step where everything is finite; returns the gradient's norm and whether."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            if parameter.grad is None:  # no response had a gradient: it is zero, moments decay
                parameter.grad = torch.zeros_like(parameter)
        passing("gradient")
        norm = full(torch.nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm)).item()
        applied = math.isfinite(norm) and math.isfinite(loss)
        if applied:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            passing("optimizer step")
        self.optimizer.zero_grad()
        self.nonfinite_in_a_row = 0 if applied else self.nonfinite_in_a_row + 1
        self.update += 1
        self.policy.update = self.update
        return norm, applied
