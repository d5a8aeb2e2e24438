"""The loss of each token of an update, composed of the parts that the config chooses.

    loss_t = weight_t x objective_t (0 if a mask removes the token) + coefficient x KL_t

Suffixes: B responses of a micro-batch, T response tokens.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from mugrpo.config.base import ObjectiveOptions
from mugrpo.config.objectives import (
    CorrectionOptions,
    FileOptions,
    KLReference,
    NegativeAdvantageVeto,
    OffPolicySequenceMask,
)
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.sources import load_file
from mugrpo.optimize import corrections
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.experience import Responses
from mugrpo.optimize.masks import negative_advantage_veto, off_policy
from mugrpo.optimize.objectives import Objective, TokenTensors, load_objective
from mugrpo.optimize.reference import kl

Tensors = Mapping[str, torch.Tensor]


class UpdateLoss:
    """The token losses of an update, as a function of a micro-batch and its logprobs [B, T].

    Raises UsageError if the file of the config's objective cannot be used.
    """

    def __init__(self, config: RunConfig) -> None:
        self.objective = _objective(config.objective)
        self._knobs = config.objective.knobs
        self._config = config
        self._zero_variance_mask = config.advantage.zero_variance_mask
        self._kl = config.reference if isinstance(config.reference, KLReference) else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that `__call__` returns."""
        config, names = self._config, [*self.objective.metrics]
        names += ["vetoed_fraction"] * isinstance(config.veto, NegativeAdvantageVeto)
        masks_responses = isinstance(config.sequence_mask, OffPolicySequenceMask)
        names += ["sequence_masked_fraction"] * masks_responses
        names += ["correction_weight"] * bool(config.correction.needs)
        return (*names, *["kl_reference"] * (self._kl is not None))

    def has_gradient(self, responses: Responses) -> torch.Tensor:
        """Return which of the R responses can have a gradient and must be computed: [R] bool.

        A response that does not count (its reward is unknown or masked) has none, not even a KL's.
        """
        needed = responses.advantages != 0
        if self.objective.needs_zero_advantages or self._kl is not None:
            counted = responses.counted
            needed = needed | (counted & responses.varied if self._zero_variance_mask else counted)
        return needed

    def prepass(self, logprobs: torch.Tensor, all_: Tensors) -> TokenTensors:
        """Return what the objective's pre-pass computes from the whole update, see `objectives`."""
        assert self.objective.prepass is not None
        behavior = self._behavior(all_["behavior_logprobs"], all_)
        return self.objective.prepass(
            logprobs, behavior, all_["advantages"], all_["mask"], **self._knobs
        )

    def __call__(
        self, batch: MicroBatch, logprobs_BT: torch.Tensor, extra: Tensors
    ) -> tuple[torch.Tensor, TokenTensors]:
        """Return the token losses, to be minimized, and the metrics, all [B, T]."""
        behavior_BT = self._behavior(batch.behavior_logprobs, batch.stored)
        now_BT = logprobs_BT.detach()  # the proximal policy, if its logprobs are not stored
        needed = {name: batch.stored.get(name, now_BT) for name in self.objective.needs}
        loss_BT, metrics = self.policy_term(
            logprobs_BT,
            behavior_BT,
            batch.advantages,
            batch.mask,
            engine_BT=batch.behavior_logprobs,
            **needed,
            **extra,
        )
        if isinstance(correction := self._config.correction, CorrectionOptions):
            both = (batch.stored["trainer_behavior_logprobs"], batch.behavior_logprobs)
            weight_BT = corrections.weights(*both, batch.mask, correction.level)
            bounded = getattr(corrections, correction.name)
            weight_BT = bounded(weight_BT, *correction.interval)
            metrics["correction_weight"] = weight_BT * batch.mask
            loss_BT = loss_BT * weight_BT
        if self._kl is not None:
            kl_BT = kl(logprobs_BT, behavior_BT, batch.stored["reference_logprobs"])
            counted_BT = (
                batch.mask & batch.varied[:, None] if self._zero_variance_mask else batch.mask
            )
            kl_BT = kl_BT * counted_BT
            metrics["kl_reference"] = kl_BT.detach()
            loss_BT = loss_BT + self._kl.coefficient * kl_BT
        return loss_BT, metrics

    def policy_term(
        self,
        logprobs_BT: torch.Tensor,
        behavior_BT: torch.Tensor,
        advantages_B: torch.Tensor,
        mask_BT: torch.Tensor,
        *,
        engine_BT: torch.Tensor,
        **further: torch.Tensor,
    ) -> tuple[torch.Tensor, TokenTensors]:
        """Return the objective's token losses after the masks, and the metrics, all [B, T].

        As in TRL, the off-policy mask measures the distance from the engine's own logprobs.
        """
        inputs = (logprobs_BT, behavior_BT, advantages_B, mask_BT)
        loss_BT, metrics = self.objective.loss(*inputs, **self._knobs, **further)
        removed = {}
        if isinstance(veto := self._config.veto, NegativeAdvantageVeto):
            removed["vetoed_fraction"] = negative_advantage_veto(*inputs, **veto.knobs)
        if isinstance(mask := self._config.sequence_mask, OffPolicySequenceMask):
            of_engine = (logprobs_BT, engine_BT, advantages_B, mask_BT)
            removed["sequence_masked_fraction"] = off_policy(*of_engine, **mask.knobs)
        for removed_BT in removed.values():
            loss_BT = loss_BT.masked_fill(removed_BT, 0.0)
            metrics = {name: values * ~removed_BT for name, values in metrics.items()}
        return loss_BT, metrics | removed

    def _behavior(self, behavior_BT: torch.Tensor, stored: Tensors) -> torch.Tensor:
        """Return the behavior logprobs from which importance ratios are computed.

        With a correction they are the trainer's own. The correction's weight w then accounts for
        the engine, and staleness is not counted twice.
        """
        return stored["trainer_behavior_logprobs"] if self._config.correction.needs else behavior_BT


def _objective(options: ObjectiveOptions) -> Objective:
    if not isinstance(options, FileOptions):
        module = import_module(options.module) if options.module else None
        return load_objective(options.name, module, options.needs)
    try:
        file = Path(options.path)
        own = load_objective(options.name, load_file(f"objective_in_{file.stem}", file))
        if own.prepass is None:
            _try(own, options.knobs)
        return own
    except Exception as error:
        raise UsageError(
            f"objective.path = {options.path!r} cannot be used ({type(error).__name__}: {error}); "
            "it must define loss(logprobs, behavior_logprobs, advantages, mask, **options), which "
            "returns the loss of each token and a dictionary of METRICS"
        ) from None


def _try(objective: Objective, knobs: Mapping[str, Any]) -> None:
    """Raise ValueError unless three responses of two tokens have losses [3, 2] and gradients."""
    behavior_BT = torch.full((3, 2), -1.0)  # of ratios 1, above and below
    logprobs_BT = (behavior_BT + torch.tensor([[0.0], [0.1], [-0.1]])).requires_grad_()
    inputs = (behavior_BT, torch.tensor([1.0, 1.0, -1.0]), torch.ones(3, 2, dtype=torch.bool))
    loss_BT, metrics = objective.loss(logprobs_BT, *inputs, **knobs)
    if loss_BT.shape != (3, 2):
        raise ValueError(f"loss returned {[*loss_BT.shape]} for [3, 2]")
    if missing := {*objective.metrics} - metrics.keys():
        raise ValueError(f"loss returned no metric {min(missing)!r}")
    if not loss_BT.requires_grad:
        raise ValueError("loss does not depend on logprobs, so nothing would be learned")
    [gradient_BT] = torch.autograd.grad(loss_BT.sum(), logprobs_BT)
    if not (loss_BT.isfinite() & gradient_BT.isfinite()).all():
        raise ValueError("loss or its gradient is not finite at ratios of 1, 1.1 and 0.9")
