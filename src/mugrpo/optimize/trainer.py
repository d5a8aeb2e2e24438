"""The trainer, which updates a policy and saves and loads its own state."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mugrpo.config.run import RunConfig
from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import FinishReason
from mugrpo.model.dtensors import full, local, moved
from mugrpo.model.files import ModelPart
from mugrpo.model.half import begin_in_bf16
from mugrpo.model.host_memory import HostMemory
from mugrpo.model.memory import make_room, out_of_memory_explained
from mugrpo.model.policy import Policy
from mugrpo.optimize.batching import cost
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.compiling import choose_compiled
from mugrpo.optimize.experience import Experience, Responses, with_advantages
from mugrpo.optimize.forward import shares_prompts
from mugrpo.optimize.gradient import Gradient, accumulate_gradient
from mugrpo.optimize.kernel import choose_kernel
from mugrpo.optimize.learning_rate import learning_rate
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.optimizer_state import load_optimizer, optimizer_in_memory, write_optimizer
from mugrpo.optimize.samples import Recorder

_LARGE_STATE = (
    "weights, gradients and AdamW's moments take 16 bytes per parameter, whatever the options; "
    "use a smaller model or more memory, or train an adapter in a new run (--lora.rank 16)"
)


@dataclass(frozen=True)
class Snapshot:
    """A rank's part of a trainer's state, which is written while the trainer goes on."""

    policy: Policy
    weights: ModelPart
    moments: dict[str, torch.Tensor]
    state: dict[str, int]

    def write_model(self, folder: Path) -> dict[str, str]:
        """Write what engines need: model and tokenizer. Return the checksums known from writing."""
        return self.policy.save(folder, self.weights)

    def write_rest(self, folder: Path) -> dict[str, str]:
        """Write what only a trainer needs. Return the checksums that are known from writing."""
        sums = write_optimizer(folder, self.moments, self.policy.shard)
        if self.policy.ranks.first:
            (folder / "trainer.json").write_text(json.dumps(self.state) + "\n")
        return sums


class Trainer:
    """A policy and its optimizer. `update` counts the updates made, even if one was not applied.

    The ranks that share a policy all make the same calls.
    """

    def __init__(
        self, policy: Policy, config: RunConfig, budget: TokenBudget | None = None
    ) -> None:
        self.policy = policy
        self.config = config
        self.options = config.optimizer
        self.budget = budget or TokenBudget(config.optimizer)
        self.loss = UpdateLoss(config)
        self.share = shares_prompts(policy)
        choose_kernel(policy, self.budget.notify)
        choose_compiled(policy, self.budget.notify)
        if policy.precision == "bf16" and policy.adapter is None and policy.update == 0:
            begin_in_bf16(policy.model, config.seed)
        self.update = 0
        self.nonfinite_in_a_row = 0
        self._moments_asleep = False
        self._host = HostMemory()  # of moments that sleep or are saved
        torch.manual_seed(config.seed)  # torch starts each process with a different state
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
            fused=True,  # one pass over memory instead of six
        )

    def step(self, experience: Experience, recorder: Recorder | None = None) -> dict[str, Any]:
        """Make one update on `experience` and return its metrics.

        If memory runs out, the gradient is computed again in smaller micro-batches, or RunStopped
        is raised, see `TokenBudget`. If the loss, the gradient or the learning rate is not finite,
        the update is not applied and `skipped` is 1. The `recorder` gets each micro-batch.
        """
        began = time.monotonic()
        self.wake()
        responses = with_advantages(experience, self.config)

        def gradient_of(tokens: int) -> Gradient:
            self.optimizer.zero_grad()  # discard what a pass that ran out of memory left
            return accumulate_gradient(
                self.policy,
                responses,
                self.loss,
                self.config,
                micro_batch_tokens=tokens,
                recorder=recorder,
            )

        gradient = self.budget.fitted(gradient_of)
        lr = learning_rate(
            self.update,
            peak=self.options.lr,
            schedule=self.options.lr_schedule,
            warmup_updates=self.options.warmup_updates,
            total_updates=self.config.schedule.total_updates,
        )
        grad_norm, applied = self._apply(lr, gradient.loss)
        return {
            "grad_norm": grad_norm,
            "lr": lr,
            "skipped": int(not applied),
            **self._metrics(experience, responses, gradient),
            "time/update": time.monotonic() - began,
        }

    def snapshot(self, *, sleeps: bool = False) -> Snapshot:
        """Return this rank's part of the trainer's state. If ranks share it, all must call this.

        Later updates do not change it. If the trainer `sleeps`, it does so afterwards. What is
        asleep is not copied: waking leaves it.
        """
        policy = self.policy
        # Ranks exchange the rows of weights, which takes less time between GPUs.
        weights = policy.weights(copied=True) if policy.ranks.size > 1 else None
        if sleeps:
            self.sleep()
        copied = not (policy.asleep and self._moments_asleep)
        names = {p: name for name, p in policy.model.named_parameters()}
        host = self._host if copied else None
        moments = optimizer_in_memory(self.optimizer, names, policy.ranks, host=host)
        return Snapshot(
            policy,
            weights or policy.weights(copied=copied),
            moments,
            {"update": self.update, "nonfinite_in_a_row": self.nonfinite_in_a_row},
        )

    def load(self, folder: Path) -> None:
        """Load what snapshots wrote to `folder`, however many ranks wrote it."""
        self.wake()
        state = json.loads((folder / "trainer.json").read_text())
        self.policy.load_weights(folder, state["update"])
        parameters = dict(self.policy.model.named_parameters())
        load_optimizer(folder, self.optimizer, parameters)
        self.update = state["update"]
        self.nonfinite_in_a_row = state["nonfinite_in_a_row"]

    def sleep(self) -> None:
        """Leave the GPU to engines: move weights and moments to host memory, if they rest there.

        Freed memory is given back in any case.
        """
        if self.config.shares_gpus and self.policy.on_gpu:
            self.policy.sleep()
            if not self._moments_asleep:
                self.move_moments(torch.device("cpu"))
                self._moments_asleep = True
        make_room()

    def wake(self) -> None:
        """Move weights and moments back to the GPU. Raises RunStopped if it is full."""
        self.policy.wake()
        if self._moments_asleep:
            work, remedy = "moving the optimizer's state back", self.config.engine.loading_remedy
            with out_of_memory_explained(f"{work} to the GPU", remedy):
                self.move_moments(self.policy.device)
            self._moments_asleep = False

    @torch.no_grad()
    def move_moments(self, device: torch.device) -> None:
        """Move the optimizer's state to `device`."""
        states, rooms = self.optimizer.state.values(), None
        if device.type == "cpu":
            rooms = self._host.rooms(local(v).nbytes for state in states for v in state.values())
        for state in states:
            for key, value in state.items():
                state[key] = moved(value, device, rooms)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @out_of_memory_explained("the optimizer's step", _LARGE_STATE)
    def _apply(self, lr: float, loss: float) -> tuple[float, bool]:
        """Clip the gradient, and step if its norm, the loss and the learning rate are finite.

        Return the gradient's norm, and whether the step was applied.
        """
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            if parameter.grad is None:  # no response has a gradient: zeros let moments decay
                parameter.grad = torch.zeros_like(parameter)
        failpoint("gradient")
        norm = full(torch.nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm)).item()
        applied = all(map(math.isfinite, (norm, loss, lr)))
        if applied:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.policy.weights_changed()
            failpoint("optimizer step")
        self.optimizer.zero_grad()
        self.nonfinite_in_a_row = 0 if applied else self.nonfinite_in_a_row + 1
        self.update += 1
        self.policy.update = self.update
        return norm, applied

    def _metrics(
        self, experience: Experience, responses: Responses, gradient: Gradient
    ) -> dict[str, Any]:
        statuses = [score.status for score in experience.scores]
        cut = [rollout.finish_reason is FinishReason.LENGTH for rollout in experience.rollouts]
        rewards = [score.reward for score in experience.scores if score.reward is not None]
        tokens = sum(rollout.sampled_tokens for rollout in experience.rollouts)
        lowered = {"micro_batch_tokens": self.budget.tokens} if self.budget.lowered else {}
        return {
            "loss": gradient.loss,
            "batch_reward": sum(rewards) / len(rewards) if rewards else None,
            "tokens": tokens,
            **cost(gradient.batches),
            **lowered,
            "zero_variance_share": 1 - responses.varied.double().mean().item(),
            "effective_sample_share": gradient.statistics.effective_sample_share(),
            "failed_share": sum(s.failed for s in statuses) / len(statuses),
            "truncated_share": sum(cut) / len(cut),
            **gradient.statistics.values(tokens),
        }
