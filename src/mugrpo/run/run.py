"""A run, opened (`opening`): its task, policy and engines at hand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from threading import Lock

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.metrics import MetricsLog
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine
from mugrpo.model.memory import give_back_memory
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.fsdp import shard
from mugrpo.optimize.trainer import Trainer
from mugrpo.processes.ranks import ALONE, Ranks, driven
from mugrpo.processes.stopping import StopFlag
from mugrpo.rollouts.lengths import ExpectedLengths
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Schedule
from mugrpo.rollouts.score import Scorer
from mugrpo.run.progress import Progress
from mugrpo.run.provenance import judge_fingerprint
from mugrpo.run.sinks import Sinks
from mugrpo.run.weights import hand_over, weights_at
from mugrpo.tasks.base import Task

_TICK = 0.2  # seconds between looks at a signal


@dataclass
class Run:
    """What every phase needs. Heavy parts are made when first asked for."""

    dir: RunDir
    config: RunConfig
    task: Task
    encode: PromptEncoder
    problems: Sequence[Problem]  # to train on
    eval_problems: Sequence[Problem]
    schedule: Schedule
    progress: Progress
    stop: StopFlag
    ranks: Ranks = ALONE
    checkpoint_seconds: float = 0.0  # spent since the last update's metrics line
    beside: Future[None] | None = None  # generation while updates are made, see overlap
    _frozen: Policy | None = None
    _lengths: tuple[int, ExpectedLengths] = field(default_factory=lambda: (0, ExpectedLengths()))

    @cached_property
    def policy(self) -> Policy:
        policy = load_policy(self.config.model, self.progress.say, self.ranks)
        if self.ranks.size > 1:
            share = self.config.optimizer.share_prompts
            shard(policy, self.config.distributed, share_prompts=share)
        return policy

    def scorer(self, problems: Sequence[Problem]) -> Scorer:
        """What scores rollouts of `problems`."""
        return Scorer(
            self.task,
            problems,
            self.encode.tokenizer,
            self.config.rewards,
            max_new_tokens=self.config.rollouts.max_new_tokens,
            judge=self.judge,
            check=self.stop.check,
        )

    @cached_property
    def judge(self) -> str:
        """The fingerprint of what judges rollouts now."""
        return judge_fingerprint(self.config, self.problems)

    def judge_of(self, stage: int) -> str | None:
        """Whose scores count: in a stage that is trained on or another run's already, anybody's."""
        if self.dir.origin.exists():
            return None
        trained = self.schedule.first_update(stage + 1) <= self.newest_update
        return None if trained else self.judge

    @cached_property
    def engines(self) -> list[Engine]:
        """What samples, side by side where they have processes of their own."""
        return make_engines(
            self.policy,
            self.config,
            log=self.dir.log,
            notify=self.progress.say,
            check=self.stop.check,
        )

    def engines_at(self, update: int) -> list[Engine]:
        """The engines, sampling from the policy after `update` updates; so is `policy`.

        Those that are generating finish that first.
        """
        self.wait_for_generation()
        policy, lock = self.policy_at(update), Lock()
        handed_over = cache(lambda: hand_over(self.dir, self.config.model, policy))

        def weights() -> str:
            with lock:
                return handed_over()

        give_back_memory()
        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(lambda engine: engine.refresh(update, weights), self.engines))
        return self.engines

    def rest_engines(self) -> None:
        """Leave the machine to the trainer, unless they generate beside it."""
        if not self.generating:
            for engine in self.__dict__.get("engines", ()):
                engine.rest()

    @cached_property
    def helper(self) -> ThreadPoolExecutor:
        """The thread that generates beside updates. It lives as long as the run: the processes of
        rewards that it starts end with it."""
        return ThreadPoolExecutor(1, "generation")

    @property
    def generating(self) -> bool:
        """Whether rollouts are generated beside the updates now; raises what has stopped that."""
        if self.beside is None or not self.beside.done():
            return self.beside is not None
        self.beside.result()
        return False

    def look_after_ranks(self) -> None:
        """Ask the processes that make updates together to save and end where the run is to stop,
        or where what they wait for will not come."""
        lost = False
        try:
            _ = self.generating
        except Exception:  # raised again once they have ended
            lost = True
        if (lost or self.stop.signal_name) and not self.dir.stop_request.exists():
            self.dir.stop_request.touch()

    def wait_for_generation(self) -> None:
        """Until no rollouts are generated beside the updates; raises what has stopped that."""
        while self.beside is not None and self.generating:
            self.stop.check()
            wait([self.beside], _TICK)

    @cached_property
    def budget(self) -> TokenBudget:
        """What the micro-batches of all policies may hold; ranks could not halve it together."""
        return TokenBudget(self.config.optimizer, self.progress.say, alone=self.ranks.size == 1)

    @cached_property
    def trainer(self) -> Trainer:
        trainer = Trainer(self.policy, self.config, self.budget)
        if self.config.optimizer.share_prompts and not trainer.share:
            self.progress.say(
                "the model's form, or gradient checkpointing, lets no responses share a prompt: "
                "each is computed with its own"
            )
        return trainer

    @property
    def trained(self) -> bool:
        """Whether the trainer is here, and its weights are the policy's."""
        return "trainer" in self.__dict__ and self.trainer.update == self.policy.update

    @cached_property
    def metrics(self) -> MetricsLog:
        """The metrics file, cut to the newest checkpoint: where the run goes on from."""
        return MetricsLog(self.dir.metrics, self.newest_update, self.sinks.log)

    def hand_out(self) -> None:
        """Leave updates, memory and metrics to other processes."""
        if not self.generating:
            self.close_engines()
        for name in ("trainer", "policy", "budget"):
            self.__dict__.pop(name, None)
        self._frozen = None
        give_back_memory()
        self.close_metrics()

    def close_engines(self) -> None:
        """Give back all that they hold; they are made again when they are wanted."""
        for engine in self.__dict__.pop("engines", ()):
            engine.close()

    def take_back(self) -> None:
        """Go on from what the other processes have published."""
        made = self.newest_update
        starts = self.dir.stage_starts(made)
        self.schedule = Schedule(self.config.schedule, len(self.problems), self.config.seed, starts)

    def close_metrics(self) -> None:
        if "metrics" in self.__dict__:
            self.__dict__.pop("metrics").close()
            self.__dict__.pop("sinks").close()

    @property
    def alone(self) -> bool:
        """Whether this process is the run itself, no rank that it has for its updates."""
        return self.ranks.size == 1 and not driven()

    def check(self) -> None:
        """Raise Interrupted if the run is asked to stop: all ranks do at the same update."""
        if self.alone:
            self.stop.check()
            return
        asked = driven() and self.dir.stop_request.exists()
        if self.ranks.any(asked or self.stop.signal_name is not None):
            raise Interrupted("stopped with the other ranks")

    @cached_property
    def sinks(self) -> Sinks:
        config = self.config.model_dump(mode="json")
        return Sinks(
            self.config.sinks, self.dir.root, config, self.newest_update, self.progress.say
        )

    def expected_lengths(self, stage: int) -> ExpectedLengths:
        """What the stages before `stage` tell of the lengths of its responses."""
        learned, expected = self._lengths
        if learned > stage:
            learned, expected = 0, ExpectedLengths()
        for earlier in range(learned, stage):
            expected.learn(ShardSet(self.dir.rollouts(earlier), "rollouts"))
        self._lengths = (stage, expected)
        return expected

    @property
    def newest_update(self) -> int:
        """The update of the newest checkpoint, 0 before the first."""
        return max(self.dir.checkpoint_updates(), default=0)

    def policy_at(self, update: int) -> Policy:
        """The policy with the weights it had after `update` updates.

        Raises UsageError where no update has come so far, RunStopped where its checkpoint is gone.
        """
        if self.policy.update != update:
            self.policy.load_weights(weights_at(self.dir, self.config.model, update), update)
        return self.policy

    def frozen_policy(self, update: int) -> Policy:
        """A policy with the weights of `update`; the trainer's is not touched."""
        if self.policy.update == update:
            return self.policy
        if self._frozen is None or self._frozen.update != update:
            self._frozen = self._frozen or load_policy(self.config.model)
            weights = weights_at(self.dir, self.config.model, update)
            self._frozen.load_weights(weights, update)
        return self._frozen

    def reference_update(self, stage: int) -> int:
        """The updates that the reference policy of `stage` has seen."""
        period = self.config.reference_period
        return self.schedule.first_update(stage - stage % period) if period else 0

    def trainer_at(self, update: int) -> Trainer:
        """The trainer as it was after `update` updates."""
        if not (self.trainer.update == self.policy.update == update):
            if update == 0:
                self.policy_at(0)
                del self.trainer  # a fresh optimizer
            else:
                self.trainer.load(Path(weights_at(self.dir, self.config.model, update)))
        return self.trainer
