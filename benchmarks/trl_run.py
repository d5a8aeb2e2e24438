"""TRL's GRPO as a whole run with one of our configs: the peer of `mugrpo train`.

Model, problems and their order, verifier, batch, group size, lengths, objective, optimizer and
learning rate come from the config. Generation, padding, old logprobs and the shuffling of a
generation's responses over its updates are TRL's own. There is no logging, and there are no
checkpoints.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from transformers import AutoModelForCausalLM, TrainerCallback

from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Problem, Status
from mugrpo.engines import make_engine
from mugrpo.model.loading import load_tokenizer
from mugrpo.model.policy import Policy
from mugrpo.model.pretrained import model_path
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.schedule import Schedule
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task
from outcomes import Outcome
from trl_peer import GRPOTrainer, grpo_config, plain_rows, quiet, reward_of
from workloads import encoder, judged


class TimedGRPO(GRPOTrainer):
    """A GRPOTrainer that measures where its time goes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        super().__init__(*arguments, **options)

    def _timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments)
        self.spent[name] += time.perf_counter() - began
        return result

    def _generate_single_turn(self, *arguments: Any) -> Any:
        return self._timed("generate", super()._generate_single_turn, *arguments)

    def _generate_and_score_completions(self, *arguments: Any) -> Any:
        return self._timed("rollouts", super()._generate_and_score_completions, *arguments)

    def training_step(self, *arguments: Any) -> Any:
        return self._timed("step", super().training_step, *arguments)

    def phases(self) -> dict[str, float]:
        """Return the seconds by phase. The rest of the run is mostly the optimizer.

        "old logprobs and rewards" is all work on rollouts after generation.
        """
        rollouts, generate = self.spent["rollouts"], self.spent["generate"]
        return {
            "generate": generate,
            "old logprobs and rewards": rollouts - generate,
            "forward and backward": self.spent["step"] - rollouts,
        }


class Accuracy(TrainerCallback):
    """Evaluation of TRL's model as of ours, with the same engine, problems, seeds and verifier."""

    def __init__(self, outcome: Outcome, config: RunConfig, task: Task, tokenizer: Any) -> None:
        self.outcome, self.config, self.task, self.tokenizer = outcome, config, task, tokenizer
        self.problems: list[Problem] = list(task.eval_problems())

    def on_train_begin(self, _: Any, __: Any, ___: Any, *, model: Any, **____: Any) -> None:
        self._evaluate(model, 0)

    def on_step_end(self, _: Any, state: Any, __: Any, *, model: Any, **___: Any) -> None:
        update, total = state.global_step, self.config.schedule.total_updates
        if update % self.config.evaluation.every == 0 or update == total:
            self._evaluate(model, update)

    def _evaluate(self, model: Any, update: int) -> None:
        began = time.perf_counter()
        was_training = model.training
        policy = Policy(model, self.tokenizer, self.config.model)
        sampler = Sampler(
            make_engine(policy, self.config.engine),
            encoder(policy, self.config),
            seed=self.config.seed,
            stage="evaluation",
            group_size=self.config.evaluation.samples,
            temperature=self.config.evaluation.temperature,
            max_new_tokens=self.config.rollouts.max_new_tokens,
            policy_step=update,
        )
        rollouts = sampler.sample([(problem, 0) for problem in self.problems], lambda batch: None)
        scores = judged(self.task, policy, self.config, self.problems, rollouts)
        right = sum(score.status is Status.RIGHT for score in scores)
        model.train(was_training)
        spent = time.perf_counter() - began
        self.outcome.evaluated(update, right / len(scores), spent)
        print(f"TRL, update {update}: accuracy {right / len(scores):.3f}", flush=True)


def problems_in_order(config: RunConfig, task: Task) -> list[Problem]:
    """Return a problem for each group of the run, in the order of our schedule."""
    problems = task.train_problems()
    schedule = Schedule(config.schedule, len(problems), config.seed)
    groups = config.schedule.stages * config.schedule.groups_per_stage
    return [problems[index] for index, _ in islice(schedule.stream(0), groups)]


def theirs(options: argparse.Namespace, overrides: Sequence[str]) -> Outcome:
    """Run TRL and return the outcome. The clock starts after the imports."""
    outcome = Outcome()
    config = load_config(options.config, overrides)
    assert config.task.name == "chain", "these runs are on the chain task"
    task, tokenizer = make_task(config.task), load_tokenizer(config.model)
    model = AutoModelForCausalLM.from_pretrained(model_path(config.model), dtype="float32")
    arguments = grpo_config(
        config,
        batch=options.trl_batch or config.schedule.rollouts_per_update,
        updates=config.schedule.total_updates,
        folder=str(options.run_dir),
    )
    watch = [Accuracy(outcome, config, task, tokenizer)] if config.evaluation.every else []
    trainer = TimedGRPO(
        model=model,
        args=arguments,
        reward_funcs=reward_of(task, task.train_problems(), [tokenizer.eos_token_id]),
        train_dataset=plain_rows(problems_in_order(config, task)),
        processing_class=tokenizer,
        callbacks=watch,
    )
    with quiet():
        trainer.train()
    outcome.ended()
    outcome.phases = trainer.phases()
    return outcome
