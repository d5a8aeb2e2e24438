"""A whole run against TRL's GRPO: `python benchmarks/whole_run.py schedule`, or `accuracy`.

schedule   Both sides run GRPO with mu = 4 and configs/demo_grpo.toml: the same model, problems in
           the same order, verifier, batch, lengths, objective and learning rate, 32 updates, no
           evaluation.
accuracy   Our side is `mugrpo demo` on the task chain, TRL's is GRPO with mu = 4, each with its own
           schedule and as many updates. The accuracy to reach is the one at the end of TRL's run;
           TRL's time is that of its first evaluation that reaches it. Each repetition has another
           seed. A ratio of 0 means that our run did not reach the accuracy.

Each side is a process whose clock starts after its imports and stops for evaluations, which are the
same on both sides. TRL's micro-batch holds --trl-batch responses: a whole update unless given.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mugrpo.arguments import DEMO
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Problem, Status
from mugrpo.tasks.base import Task
from side_by_side import ROOT, Measured, Ratio, Row, alternate, parser, publish

OURS, PEER = "mugrpo", "TRL"
GRPO = ROOT / "configs" / "demo_grpo.toml"


@dataclass
class Outcome:
    """A run's evaluations, and its seconds without them."""

    began: float = field(default_factory=time.perf_counter)
    aside: float = 0.0  # seconds of evaluations
    seconds: float = 0.0
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def evaluated(self, update: int, accuracy: float, spent: float) -> None:
        """Record an evaluation that has just ended and took `spent` seconds."""
        self.aside += spent
        seconds = time.perf_counter() - self.began - self.aside
        self.evaluations.append({"update": update, "seconds": seconds, "accuracy": accuracy})

    def to(self, accuracy: float) -> Measured:
        """Return the time to the first evaluation with this accuracy; of work 0 without one."""
        reached = [e["seconds"] for e in self.evaluations if e["accuracy"] >= accuracy]
        notes = {"accuracy": accuracy, "curve": self.evaluations}
        return Measured(reached[0] if reached else self.seconds, float(bool(reached)), notes)


def ours(config: Path, overrides: Sequence[str], folder: Path) -> Outcome:
    """Run `mugrpo train` in this process."""
    from mugrpo.pipeline import train
    from mugrpo.run.opening import open_run
    from mugrpo.run.progress import Progress

    outcome = Outcome()
    progress = Progress()
    with open_run(config, overrides=overrides, run_dir=folder / "run", progress=progress) as run:

        def stamped(kind: str, update: int, values: dict[str, Any]) -> None:
            if kind == "evaluation":
                outcome.evaluated(update, values["accuracy"], values["time/evaluate"])

        train(run, on_metrics=stamped)
    return outcome


def theirs(path: Path, overrides: Sequence[str], folder: Path, batch: int) -> Outcome:
    """Run TRL in this process. It does not log, and saves no checkpoints."""
    from transformers import AutoModelForCausalLM, TrainerCallback

    from mugrpo.model.loading import load_tokenizer
    from mugrpo.model.pretrained import model_path
    from mugrpo.tasks import make_task
    from trl_peer import GRPOTrainer, grpo_config, plain_rows, quiet, reward_of

    outcome = Outcome()
    config = load_config(path, overrides)
    task, tokenizer = make_task(config.task), load_tokenizer(config.model)
    every, total = config.evaluation.every, config.schedule.total_updates

    class Accuracy(TrainerCallback):
        def on_train_begin(self, _: Any, __: Any, ___: Any, *, model: Any, **____: Any) -> None:
            evaluate(model, 0)

        def on_step_end(self, _: Any, state: Any, __: Any, *, model: Any, **___: Any) -> None:
            if state.global_step % every == 0 or state.global_step == total:
                evaluate(model, state.global_step)

    def evaluate(model: Any, update: int) -> None:
        began = time.perf_counter()
        accuracy = measured_accuracy(model, tokenizer, config, task, update)
        outcome.evaluated(update, accuracy, time.perf_counter() - began)
        print(f"TRL, update {update}: accuracy {accuracy:.3f}", flush=True)

    batch = batch or config.schedule.rollouts_per_update
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_path(config.model), dtype="float32"),
        args=grpo_config(config, batch=batch, updates=total, folder=str(folder)),
        reward_funcs=reward_of(task, task.train_problems(), [tokenizer.eos_token_id]),
        train_dataset=plain_rows(problems_in_order(config, task)),
        processing_class=tokenizer,
        callbacks=[Accuracy()] if every else [],
    )
    with quiet():
        trainer.train()
    return outcome


def measured_accuracy(
    model: Any, tokenizer: Any, config: RunConfig, task: Task, update: int
) -> float:
    """Return the accuracy of TRL's model as of ours: same engine, problems, seeds and verifier."""
    from mugrpo.engines import make_engine
    from mugrpo.model.policy import Policy
    from mugrpo.rollouts.sampler import Sampler
    from workloads import encoder, judged

    was_training, problems = model.training, list(task.eval_problems())
    policy = Policy(model, tokenizer, config.model)
    sampler = Sampler(
        make_engine(policy, config.engine),
        encoder(policy, config),
        seed=config.seed,
        stage="evaluation",
        group_size=config.evaluation.samples,
        temperature=config.evaluation.temperature,
        max_new_tokens=config.rollouts.max_new_tokens,
        policy_step=update,
    )
    rollouts = sampler.sample([(problem, 0) for problem in problems], lambda batch: None)
    scores = judged(task, policy, config, problems, rollouts)
    model.train(was_training)
    return sum(score.status is Status.RIGHT for score in scores) / len(scores)


def problems_in_order(config: RunConfig, task: Task) -> list[Problem]:
    """Return a problem for each group of the run, in the order of our schedule."""
    from mugrpo.rollouts.schedule import Schedule

    problems = task.train_problems()
    schedule = Schedule(config.schedule, problems, config.seed)
    batches = sum(map(config.schedule.batches, range(config.schedule.stages)))
    groups = batches * config.schedule.problems_per_update
    return [problem for problem, _ in islice(schedule.stream(0), groups)]


def child(side: str, config: str, batch: str, folder: str, *overrides: str) -> None:
    """Run a side, and write its outcome into `folder`."""
    import mugrpo.pipeline  # noqa: F401 - what is imported before the clock starts
    from mugrpo.config.run import ModelOptions
    from mugrpo.model.policy import load_policy

    load_policy(ModelOptions())
    if side == OURS:
        outcome = ours(Path(config), overrides, Path(folder))
    else:
        import trl_peer  # noqa: F401 - imports TRL

        outcome = theirs(Path(config), overrides, Path(folder), int(batch))
    outcome.seconds = time.perf_counter() - outcome.began - outcome.aside
    Path(folder, "outcome.json").write_text(json.dumps(vars(outcome)))


def run_process(side: str, config: Path, overrides: Sequence[str], batch: int) -> Outcome:
    """Run a side in a process of its own. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "child", side, str(config), str(batch), folder]
        subprocess.run([*words, *overrides], stdout=sys.stderr, cwd=ROOT, check=True)
        return Outcome(**json.loads(Path(folder, "outcome.json").read_text()))


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    cli.add_argument("question", choices=("schedule", "accuracy"))
    cli.add_argument("--trl-batch", type=int, default=0, help="TRL's responses per micro-batch")
    options = cli.parse_args(argv)
    same = options.question == "schedule"
    every, updates = (0 if same else 16), 32
    sizes = {"problems_per_update": 16, "group_size": 8}
    more = []
    if options.tiny:
        options.repetitions, updates, every = 1, 4, 0 if same else 2
        sizes = dict.fromkeys(sizes, 2)
        more = ["--task.eval_problems=8", "--rollouts.max_new_tokens=42"]
    if same or options.tiny:
        sizes |= {"stages": updates // 4, "batches_per_stage": 4, "growth": 1}
        more += [f"--schedule.{name}={value}" for name, value in sizes.items()]
    more += [f"--evaluation.every={every}", "--evaluation.greedy=false", "--checkpoint.every=0"]
    more += ["--task.name=chain", "--model.path=chain"]  # the demo has another task
    outcomes: dict[str, list[Outcome]] = {OURS: [], PEER: []}

    def side(name: str, repetition: int, config: Path) -> Measured:
        seeded = [f"--seed={repetition}", *more]
        outcomes[name].append(run_process(name, config, seeded, options.trl_batch))
        return Measured(outcomes[name][-1].seconds, float(updates))

    sides = {
        OURS: lambda repetition: side(OURS, repetition, GRPO if same else DEMO),
        PEER: lambda repetition: side(PEER, repetition, GRPO),
    }
    results = alternate(sides, options.repetitions)
    if same:
        name, unit, target = "run_same_schedule", "updates/s", 4.0
        title = "Whole run, GRPO with mu = 4, embedded task"
    else:
        name, unit, target = "run_to_accuracy", "runs/s", 3.0
        title = "Whole run to the same accuracy, embedded task"
        ends = [outcome.evaluations[-1]["accuracy"] for outcome in outcomes[PEER]]
        results = {
            side: [outcome.to(end) for outcome, end in zip(runs, ends, strict=True)]
            for side, runs in outcomes.items()
        }
    ratios = [Ratio(OURS, PEER, f"{title}, against TRL's GRPO", target)]
    row = Row(name, title, unit, results, ratios, {"overrides": more}, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        main()
