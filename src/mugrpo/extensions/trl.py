"""TRL's GRPO trainer with this project's methods, in few large stages (trl.md).

    from mugrpo.extensions.trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(method="tapered-grpo", stages=4, max_steps=1000)

With none of the new options set, both classes are TRL's.
B responses of a step on this process, T completion tokens, P groups of G responses.
"""

import json
import math
import os
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, fields
from inspect import signature
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from mugrpo.config.objectives import KLReference
from mugrpo.extensions.token_weights import Method

try:
    from trl import GRPOConfig as TRLConfig
    from trl import GRPOTrainer as TRLTrainer
except ImportError as error:
    raise ImportError(f"{error}; for TRL's trainer: pip install 'mugrpo[trl]'") from None

_LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"}
_OF_TRL = {option.name: option.default for option in fields(TRLConfig)}
_OTHER_LOSSES = ["importance_sampling_level", "scale_rewards", "delta", "use_liger_kernel"]
_OTHER_LOSSES += ["multi_objective_aggregation", "off_policy_mask_threshold"]
Step = dict[str, Any]  # what TRL computes one loss from; its tensors begin with B


@dataclass
class GRPOConfig(TRLConfig):
    """TRL's options, and these. The last five are TRL's, and the method's own if they are not set.

    method: preset or objective, such as "tapered-grpo": advantages, objective, masks, reduction, KL
    method_options: tables as in a config: {"veto": {"threshold": 0.01}}
    stages: number of stages; each generates its rollouts once, with the weights of its beginning
    growth: length of each stage over the one before; of the method, or 1; unused without stages

    Raises ValueError if the method is no weight on each token, or an option asks for another loss.
    """

    method: str | None = None
    method_options: dict[str, Any] | str | None = None
    stages: int | None = None
    growth: float | None = None
    loss_type: str | None = None
    epsilon: float | None = None
    beta: float | None = None
    use_bias_correction_kl: bool | None = None
    epsilon_high: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.method_options, str):
            self.method_options = json.loads(self.method_options)
        if min(self.stages or 1, self.growth or 1) <= 0:
            raise ValueError("stages and growth must be above 0")
        for name, value in {**_OF_TRL, **(self._of_method() if self.method else {})}.items():
            if name in GRPOConfig.__annotations__ and getattr(self, name) is None:
                setattr(self, name, value)
        limited = self.steps_per_generation or self.generation_batch_size
        super().__post_init__()
        self.most_steps = self.steps_per_generation if limited else math.inf

    def _of_method(self) -> dict[str, Any]:
        """Return TRL's options as the method has them. Raises ValueError if others contradict."""
        others = [name for name in _OTHER_LOSSES if getattr(self, name) != _OF_TRL[name]]
        if self.loss_type not in (None, "bnpo", *_LOSS_TYPES.values()):
            others.append("loss_type")
        if others:
            raise ValueError(f"method {self.method!r} decides {' and '.join(others)}; leave it out")
        options: Any = self.method_options or {}
        config = Method.named(str(self.method), options).config
        of_method: dict[str, Any] = {"loss_type": _LOSS_TYPES[config.reduction]}
        if isinstance(kl := config.reference, KLReference):
            of_method |= {"beta": kl.coefficient, "use_bias_correction_kl": True}
        if clip := getattr(config.objective, "ratio_clip", None):
            above = clip[1] - 1 if self.epsilon is None else self.epsilon
            self.epsilon = 1 - clip[0] if self.epsilon is None else self.epsilon
            self.epsilon_high = above if self.epsilon_high is None else self.epsilon_high
            interval = {"ratio_clip": (1 - self.epsilon, 1 + self.epsilon_high)}
            self.method_options = {**options, "objective": options.get("objective", {}) | interval}
        return of_method | {"growth": config.schedule.growth}


class GRPOTrainer(TRLTrainer):
    """TRL's trainer. With a method, each token's advantage is the weight that the method gives it.

    A stage is one or more of TRL's generation batches, one after another, by one policy. They wait
    in host memory, and each checkpoint has them in rollouts-RANK.pt.
    """

    _buffered_inputs: Any

    def __init__(self, *args: Any, **named: Any) -> None:
        given = signature(TRLTrainer.__init__).bind(self, *args, **named)
        config: Any = given.arguments.get("args")
        self._method: Method | None = None
        self._sizes: list[int] = []  # generation batches of each stage; [] leaves them to TRL
        if getattr(config, "method", None) or getattr(config, "stages", None):  # it may be TRL's
            config = given.arguments["args"] = copy(config)
            if config.method:
                self._method = Method.named(config.method, config.method_options)
            self._sizes = _planned(config, given.arguments.get("train_dataset"))
        super().__init__(*given.args[1:], **given.kwargs)
        if self._method:
            self.epsilon_low, self.epsilon_high = 1.0, math.inf  # the method has clipped by then
        self._plan = [self.args.generation_batch_size, self.args.num_iterations, *self._sizes]
        self._stage: list[Step] = []
        self._number = self._ends = 0  # of the next stage, and the step at which it begins
        self._batches = self._generation_batches() if self._sizes else iter(())
        self._weighed: Step | None = None  # what TRL computes a loss from at this moment

    def get_train_dataloader(self) -> Any:
        """Return one that counts steps. TRL's loads a whole generation batch at each of them."""
        if not self._sizes:
            return super().get_train_dataloader()
        accumulated = self.args.gradient_accumulation_steps
        update = self.args.generation_batch_size // self.args.steps_per_generation * accumulated
        responses = len(self.train_dataset) * self.num_generations * self.args.num_iterations
        steps: Any = range(max(1, responses // update) * accumulated)
        return DataLoader(steps, collate_fn=lambda _: [])

    def _generation_batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yield this process's part of each generation batch, in the order of TRL's sampler."""
        sampler, size = self._get_train_sampler(), self.args.generation_batch_size
        sampler.repeat_count = 1
        part = size // self.args.world_size
        own = slice(part * self.args.process_index, part * (self.args.process_index + 1))
        while True:
            ordered = iter(sampler)
            while places := list(islice(ordered, size)):
                yield [self.train_dataset[place] for place in places[own]]

    def _prepare_inputs(self, generation_batch: Any) -> Step:
        if not self._sizes or not self.model.training:
            return super()._prepare_inputs(generation_batch)
        if self._step >= self._ends:
            self._begin_stage()
        place = (self._step - self._ends) % len(self._stage)
        return _moved(self._stage[place], self.accelerator.device)

    def _begin_stage(self) -> None:
        units, passes = self._sizes[self._number % len(self._sizes)], self.args.num_iterations
        self._ends = self._step + units * self.args.steps_per_generation * passes
        if self._ends - self._step > self.args.gradient_accumulation_steps:
            # TRL keeps the behavior policy's logprobs unless a generation batch is for one update,
            # which one of several in a stage can be.
            self.num_iterations = 2 * self.args.gradient_accumulation_steps
        self._stage = []
        for _ in range(units):
            self._buffered_inputs = None  # so TRL generates
            super()._prepare_inputs(next(self._batches))
            self._stage += [_moved(step, "cpu") for step in self._buffered_inputs]
        self._buffered_inputs, self.num_iterations = None, passes
        self._number += 1

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        self._rewards: torch.Tensor = super()._calculate_rewards(*args)  # [responses, functions]
        return self._rewards

    def _generate_and_score_completions(self, inputs: Any) -> Step:
        output: Step = super()._generate_and_score_completions(inputs)
        if self._method:
            group = self.num_generations if self.model.training else self.num_generations_eval
            rewards = (self._rewards * self.reward_weights.to(self._rewards)).nansum(-1)
            known_PG = ~self._rewards.isnan().all(-1).view(-1, group)
            values_PG, counted_PG = self._method.advantages(rewards.view(-1, group), known_PG)
            first = self.accelerator.process_index * len(inputs)
            output["advantages"] = values_PG.flatten()[first : first + len(inputs)].float()
            output["counted"] = counted_PG.flatten()[first : first + len(inputs)]
        return output

    def _compute_loss(self, model: Any, inputs: Step) -> torch.Tensor:
        if not self._method:
            return super()._compute_loss(model, inputs)
        self._weighed = dict(inputs)  # a later pass over the stage needs the advantages again
        loss: torch.Tensor = super()._compute_loss(model, self._weighed)
        self._weighed = None
        logged = self._metrics["train" if self.model.training else "eval"]
        for name in [name for name in logged if name.startswith("clip_ratio/")]:
            del logged[name]  # of TRL's clip, which has no effect
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **named)
        if self._weighed is not None:  # TRL reads it after this
            self._weigh(self._weighed, result[0].detach())
        return result

    def _weigh(self, inputs: Step, now_BT: torch.Tensor) -> None:
        """Put the method's weights in the place of TRL's advantages.

        The behavior policy's logprobs are the engine's own. They are the trainer's, computed at
        generation, if there are no others, or if TRL's correction weights the engine's mismatch.
        """
        assert self._method is not None
        behavior_BT: torch.Tensor = inputs.get("old_per_token_logps", now_BT)
        engine_BT: torch.Tensor = inputs.get("sampling_per_token_logps", behavior_BT)
        engine_BT = torch.where(engine_BT.isnan(), now_BT, engine_BT)  # vLLM could not score these
        if "importance_sampling_ratio" not in inputs:
            behavior_BT = engine_BT
        mask_BT = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
        weights_BT, metrics = self._method.weights(
            now_BT, behavior_BT, inputs["advantages"], mask_BT, engine_BT
        )
        log_ratio_BT = now_BT - behavior_BT
        negative_B1 = inputs["advantages"][:, None] < 0
        metrics["ratio/negative/mean"] = log_ratio_BT.exp().where(negative_B1, math.nan)
        logged = self._metrics["train" if self.model.training else "eval"]
        for name, values_BT in metrics.items():
            mean = self.accelerator.gather(values_BT[mask_BT].float().nanmean())
            logged[name].append(mean.nanmean().item())  # TRL leaves NaN out
        if self._stage and self.model.training:
            since = self._step - self._ends + len(self._stage) * self.args.num_iterations
            logged["staleness"].append(float(since // self.args.gradient_accumulation_steps))
        # TRL's gradient is ratio x advantage, so the ratio is taken out. A token whose ratio is
        # below e^-60 loses its weight, which would not be finite.
        weights_BT = weights_BT * (-log_ratio_BT.clamp(-60, 60)).exp()
        inputs["advantages"] = weights_BT * inputs["counted"][:, None]
        inputs["old_per_token_logps"] = behavior_BT

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._sizes and not self.args.save_only_model:
            folder = f"{self._get_output_dir(trial=trial)}/checkpoint-{self.state.global_step}"
            os.makedirs(folder, exist_ok=True)  # before TRL's files: it then removes older ones
            stage = self._stage if self._step < self._ends else []
            place = (self._step, self._ends, self._number)
            state = {"stage": stage, "place": place, "plan": self._plan}
            torch.save(state, f"{folder}/rollouts-{self.accelerator.process_index}.pt")
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load what TRL loads, and the stage's rollouts, as TRL generates others in their place."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._sizes:
            return
        path = f"{checkpoint}/rollouts-{self.accelerator.process_index}.pt"
        saved: Any = torch.load(path, weights_only=True) if os.path.exists(path) else {"plan": []}
        if saved["plan"] != self._plan:
            raise ValueError(f"{path} is missing or has other stages; resume with its own options")
        self._stage, (self._step, self._ends, self._number) = saved["stage"], saved["place"]
        done = sum(self._sizes[k % len(self._sizes)] for k in range(self._number))
        next(islice(self._batches, done, done), None)


def _planned(args: Any, dataset: Any) -> list[int]:
    """Set TRL's steps_per_generation and max_steps. Return the generation batches of each stage."""
    accumulated, passes = args.gradient_accumulation_steps, args.num_iterations
    responses = args.per_device_train_batch_size * args.world_size * accumulated  # of an update
    if dataset is not None and not hasattr(dataset, "__len__"):
        raise ValueError("method and stages read prompts ahead: they need a data set with a length")
    rows = math.inf if dataset is None else len(dataset)  # None: an environment gives the prompts
    epoch = rows * args.num_generations / responses  # in updates
    few = f"the data set has {rows} prompts, too few for whole groups in the batches that were set"
    if not args.stages:
        if epoch * accumulated < args.steps_per_generation:
            raise ValueError(few)
        return [1]
    total = args.max_steps
    if total <= 0:
        total = int(min(args.num_train_epochs * epoch * passes, 10**9))
    growth = args.growth or 1.0
    first = math.ceil(total / sum(growth**k for k in range(args.stages)))
    pieces = (math.ceil(first / passes / parts) for parts in range(1, first + 1))
    most = min(epoch, args.most_steps / accumulated)
    fitting = (n for n in pieces if n <= most and responses * n % args.num_generations == 0)
    if not (unit := next(fitting, 0)):  # updates whose rollouts are generated at once
        raise ValueError(few)
    sizes: list[int] = []
    while (left := math.ceil(total / unit / passes) - sum(sizes)) > 0:
        sizes.append(min(left, math.ceil(first * growth ** len(sizes) / unit / passes)))
    args.max_steps, args.steps_per_generation = total, unit * accumulated
    args.generation_batch_size = responses * unit
    if args.process_index == 0:
        lengths = [size * unit * passes for size in sizes]
        lengths[-1] -= sum(lengths) - total
        said = ", ".join(map(str, lengths))
        asked = f", fewer than stages={args.stages}" if len(sizes) < args.stages else ""
        print(f"mugrpo: {total} updates in stages of {said}{asked}; {args.steps_per_generation = }")
    return sizes


def _moved(step: Step, device: Any) -> Step:
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in step.items()}
