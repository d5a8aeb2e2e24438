"""A run, opened: its folder locked, its config checked, its task, policy and engine at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from threading import Lock

from mugrpo.config.load import apply_overrides, build_config, load_config
from mugrpo.config.run import RunConfig
from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine
from mugrpo.errors import UsageError
from mugrpo.metrics import MetricsLog
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.trainer import Trainer
from mugrpo.policy import Policy, load_policy, load_tokenizer, model_sizes
from mugrpo.progress import Progress
from mugrpo.provenance import judge_fingerprint, provenance_of, settled_config
from mugrpo.publishing import publish_json, set_aside
from mugrpo.records import Problem
from mugrpo.rollouts.lengths import ExpectedLengths
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.score import Scorer
from mugrpo.run_dir import RunDir
from mugrpo.schedule import Schedule
from mugrpo.shards import ShardSet
from mugrpo.sinks import Sinks
from mugrpo.stopping import StopFlag
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task
from mugrpo.weights import hand_over, weights_at


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
    checkpoint_seconds: float = 0.0  # spent since the last update's metrics line
    _frozen: Policy | None = None
    _lengths: tuple[int, ExpectedLengths] = field(default_factory=lambda: (0, ExpectedLengths()))

    @cached_property
    def policy(self) -> Policy:
        return load_policy(self.config.model, self.progress.say)

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
            self.config.model,
            self.config.engine,
            log=self.dir.log,
            notify=self.progress.say,
            check=self.stop.check,
        )

    def engines_at(self, update: int) -> list[Engine]:
        """The engines, sampling from the policy after `update` updates; so is `policy`."""
        policy, lock = self.policy_at(update), Lock()
        handed_over = cache(lambda: hand_over(self.dir, self.config.model, policy))

        def weights() -> str:
            with lock:
                return handed_over()

        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(lambda engine: engine.refresh(update, weights), self.engines))
        return self.engines

    def rest_engines(self) -> None:
        """Leave the machine to the trainer."""
        for engine in self.__dict__.get("engines", ()):
            engine.rest()

    @cached_property
    def budget(self) -> TokenBudget:
        """What the micro-batches of all policies may hold."""
        return TokenBudget(self.config.optimizer, self.progress.say)

    @cached_property
    def trainer(self) -> Trainer:
        trainer = Trainer(self.policy, self.config, self.budget)
        if self.config.optimizer.share_prompts and not trainer.share:
            self.progress.say(
                "the model's form, or gradient checkpointing, lets no responses share a prompt: "
                "each is computed with its own"
            )
        return trainer

    @cached_property
    def metrics(self) -> MetricsLog:
        """The metrics file, cut to the newest checkpoint: where the run goes on from."""
        return MetricsLog(self.dir.metrics, self.newest_update, self.sinks.log)

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
        period = getattr(self.config.reference, "period", 0)
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


@contextmanager
def open_run(
    target: Path,
    *,
    overrides: Sequence[str] = (),
    run_dir: Path | None = None,
    force: bool = False,
    progress: Progress,
    stop: StopFlag | None = None,
) -> Iterator[Run]:
    """The run of `target`, a config file (begun where it is new) or the directory of a run.

    Raises UsageError where the folder is no run, is locked, or was begun with another config,
    data, model or code (unless `force`).
    """
    folder, config = _begun_or_new(target, overrides, run_dir)
    task = make_task(config.task)
    problems, eval_problems = task.train_problems(), task.eval_problems()
    if config.evaluation.every and not eval_problems:
        raise UsageError(
            "no problem is held out to evaluate on; hold some out (task.eval_share, "
            "task.eval_data), or turn evaluation off with --evaluation.every 0"
        )
    encode = prompt_encoder(config)
    problems = _fitting(encode, problems, progress)
    eval_problems = _fitting(encode, eval_problems, progress)
    made = max(folder.checkpoint_updates(), default=0)
    schedule = Schedule(config.schedule, len(problems), config.seed, folder.stage_starts(made))
    if made > config.schedule.total_updates:
        raise UsageError(
            f"{folder.root} has made {made} updates, more than the {config.schedule.total_updates} "
            "of schedule.stages and the rest; raise schedule.stages, or choose a new --run-dir"
        )
    with folder.locked() as notices:
        for notice in notices:
            progress.say(notice)
        document, forced = settled_config(
            folder, config, provenance_of(config, problems, eval_problems), force, progress
        )
        for stage in folder.stages() if forced else ():
            if stage > schedule.stage_of(made):
                set_aside(folder.stage(stage))  # rollouts of a policy that will not come again
        if document:  # only now, so that a kill before it leaves the change to be forced again
            publish_json(folder.config, document)
        stop = stop or StopFlag()
        run = Run(folder, config, task, encode, problems, eval_problems, schedule, progress, stop)
        try:
            yield run
        finally:
            progress.stop()
            task.close()
            for engine in run.__dict__.get("engines", ()):
                engine.close()
            if "metrics" in run.__dict__:
                run.metrics.close()
                run.sinks.close()


def _begun_or_new(
    target: Path, overrides: Sequence[str], run_dir: Path | None
) -> tuple[RunDir, RunConfig]:
    """The directory and the config of the run that `target` names."""
    if target.is_dir():
        if run_dir is not None:
            raise UsageError(
                f"{target} is a run's directory already; leave out --run-dir {run_dir}"
            )
        folder = RunDir(target)
        stored = folder.read_config()
        if stored is None:
            raise UsageError(f"{target} is an empty directory, not a run; name a config file")
        raw = apply_overrides(stored["config"], overrides)
        config = build_config(raw, str(folder.config))
    else:
        config = load_config(target, overrides)
        folder = RunDir(run_dir or Path("runs") / target.stem)
        folder.read_config()
    return folder, config


def prompt_encoder(config: RunConfig) -> PromptEncoder:
    """What makes prompts under `config`, leaving room for a response in the model's context."""
    vocab_size, context = model_sizes(config.model)
    longest = config.rollouts.max_new_tokens
    if context is not None and context <= longest:
        raise UsageError(
            f"rollouts.max_new_tokens = {longest} leaves no room for a prompt in the model's "
            f"context of {context} tokens; lower it"
        )
    limit = None if context is None else context - longest
    return PromptEncoder(load_tokenizer(config.model), vocab_size, config.prompt, limit)


def _fitting(
    encode: PromptEncoder, problems: Sequence[Problem], progress: Progress
) -> list[Problem]:
    """Those of `problems` whose prompts are not too long; others are told of."""
    fitting = encode.fitting(problems)
    if dropped := len(problems) - len(fitting):
        progress.say(f"{dropped} of {len(problems)} problems are left out: their prompts are long")
    return fitting
