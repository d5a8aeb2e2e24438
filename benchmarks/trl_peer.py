"""TRL's GRPOTrainer, set up as favorably as the comparison allows.

It runs in fp32 on the CPU, without gradient checkpointing, reference model, logging, checkpoints
and progress bar. Generation (`model.generate`), loss, backward pass, AdamW and padding are its own.
"""

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason, Problem, Response, Status
from mugrpo.model.hardware import precision_of
from mugrpo.model.policy import Policy
from mugrpo.optimize import advantages
from mugrpo.tasks.base import Task
from workloads import Update

with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

Reward = Callable[..., list[float]]


def grpo_config(config: RunConfig, *, batch: int, updates: int, folder: str, **more: Any) -> Any:
    """Return TRL's arguments for the updates of `config`: batch, group, objective and optimizer.

    An update accumulates the gradients of micro-batches of `batch` responses.
    """
    schedule, optimizer = config.schedule, config.optimizer
    accumulation, rest = divmod(schedule.rollouts_per_update, batch)
    assert not rest, f"{schedule.rollouts_per_update} responses are not a multiple of {batch}"
    low, high = config.objective.ratio_clip  # type: ignore[union-attr]
    arguments = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": precision_of(config.model) == "bf16",  # autocast, with weights in fp32
        "gradient_checkpointing": False,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation * schedule.batches_per_stage,
        "num_iterations": schedule.passes_per_batch,
        "num_generations": schedule.group_size,
        "max_completion_length": config.rollouts.max_new_tokens,
        "temperature": config.rollouts.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "loss_type": {"sequence_mean": "grpo", "token_mean": "dapo"}[config.reduction],
        "epsilon": 1 - low,
        "epsilon_high": high - 1,
        "beta": 0.0,
        "scale_rewards": "group",
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": optimizer.lr_schedule,
        "warmup_steps": optimizer.warmup_updates,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "max_steps": updates,
        "seed": config.seed,
        "shuffle_dataset": False,  # the problems are already in our schedule's order
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about TRL's own defaults
        return GRPOConfig(**{**arguments, **more})


def plain_rows(problems: Sequence[Problem]) -> Any:
    return Dataset.from_list([{"prompt": p.prompt, "problem": p.id} for p in problems])


def reward_of(task: Task, problems: Sequence[Problem], stop_ids: Sequence[int]) -> Reward:
    """Return the task's verifier as a reward function. Truncated responses get 0, like ours."""
    known = {problem.id: problem for problem in problems}
    stops = set(stop_ids)

    def reward(
        completions: list[str], completion_ids: list[list[int]], problem: list[str], **_: Any
    ) -> list[float]:
        answers = [
            Response(known[name], text, ids, FinishReason.STOP)
            for name, text, ids in zip(problem, completions, completion_ids, strict=True)
        ]
        ended = [bool(ids) and ids[-1] in stops for ids in completion_ids]
        scores = task.score(answers)
        return [
            float(end and score.status is Status.RIGHT)
            for end, score in zip(ended, scores, strict=True)
        ]

    return reward


class Clock(TrainerCallback):
    """A clock of updates, each from its first micro-batch to the end of the optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


class StoredUpdate(GRPOTrainer):
    """TRL's training loop on existing rollouts, the micro-batches in `stored`."""

    stored: Sequence[dict[str, Any]] = ()

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        return dict(self.stored[self._step % len(self.stored)])


class UpdatePeer:
    """TRL's own loop, which makes one update at a time on the rollouts passed to `train_on`."""

    def __init__(self, model: Any, policy: Policy, config: RunConfig, batch: int) -> None:
        self.clock = Clock()
        self.folder = tempfile.TemporaryDirectory()
        arguments = grpo_config(config, batch=batch, updates=1, folder=self.folder.name)
        problems = [
            Problem(str(i), "1+1=", "2") for i in range(4 * config.schedule.problems_per_update)
        ]
        self.trainer = StoredUpdate(
            model=model,
            args=arguments,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=plain_rows(problems),
            processing_class=policy.tokenizer,
            callbacks=[self.clock],
        )
        self.batch = batch
        self.gradients: dict[str, torch.Tensor] = {}

    def train_on(self, update: Update, config: RunConfig, pad_id: int) -> None:
        self.trainer.stored = trl_batches(update, config, pad_id, self.batch)

    def step(self, *, keep_gradients: bool = False) -> float:
        """Make an update and return its seconds. `keep_gradients` stores its clipped gradients."""
        handle = None
        if keep_gradients:
            handle = self._kept()
        with quiet():
            self.trainer.train()
        if handle is not None:
            handle.remove()
        return self.clock.seconds[-1]

    def _kept(self) -> Any:
        model = self.trainer.model

        def keep(*_: Any) -> None:
            self.gradients = {
                n: p.grad.detach().clone()
                for n, p in model.named_parameters()
                if p.grad is not None
            }

        return register_optimizer_step_pre_hook(keep)


@contextlib.contextmanager
def quiet() -> Any:
    """Silence the summary and warnings that TRL's loop prints within the block."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trl_batches(
    update: Update, config: RunConfig, pad_id: int, batch: int
) -> list[dict[str, torch.Tensor]]:
    """Return the update's rollouts in the form of TRL's `_generate_and_score_completions`.

    Prompts are padded on the left and responses on the right, to the longest of the update.
    Advantages are computed by group. There are no old logprobs, because TRL keeps none if each
    generation is used for one update.
    """
    rollouts, scores = update.experience.rollouts, update.experience.scores
    size = config.schedule.group_size
    rewards = torch.tensor([s.reward or 0.0 for s in scores], dtype=torch.double).view(-1, size)
    counted = torch.ones_like(rewards, dtype=torch.bool)
    by_group = advantages.group(rewards, counted, **config.advantage.knobs)
    prompts = [torch.as_tensor(r.prompt_ids).long() for r in rollouts]
    responses = [torch.as_tensor(r.response_ids).long() for r in rollouts]

    def padded(rows: list[torch.Tensor], value: int, side: str) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=value, padding_side=side
        )

    whole = {
        "prompt_ids": padded(prompts, pad_id, "left"),
        "prompt_mask": padded([torch.ones_like(p) for p in prompts], 0, "left"),
        "completion_ids": padded(responses, pad_id, "right"),
        "completion_mask": padded([torch.ones_like(r) for r in responses], 0, "right").int(),
        "advantages": by_group.flatten().float(),
    }
    tokens = torch.tensor(sum(len(r) for r in responses))
    starts = range(0, len(rollouts), batch)
    return [
        {**{k: v[s : s + batch] for k, v in whole.items()}, "num_items_in_batch": tokens}
        for s in starts
    ]
