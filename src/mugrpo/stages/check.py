"""`mugrpo check`: what a run needs, tried before its first rollout, and about how long it takes."""

from functools import partial
from statistics import fmean

from mugrpo.config.engines import OwnEngineOptions
from mugrpo.config.run import RunConfig
from mugrpo.engines import make_engine, reserved_gpus
from mugrpo.hosts.weights import Weights
from mugrpo.model.hardware import with_precision
from mugrpo.report.readable import rounded
from mugrpo.run.estimate import longest_seconds
from mugrpo.run.machine import Machine, fitting
from mugrpo.run.memory import disk
from mugrpo.run.opening import OpenRun
from mugrpo.run.preflight import PROMPTS, preflight
from mugrpo.run.stage import Stage

_NOT_TRIED = "not tried   a start of engines and ranks, the model, memory of nodes, the network"
_LONG = 3600.0  # seconds of a run from which `check` says how to shorten it
_SHORTER = (
    "to shorten: lower schedule.batches_per_stage, schedule.problems_per_update, "
    "rollouts.max_new_tokens, or task.eval_problems"
)


def check(run: OpenRun, config: RunConfig, machine: Machine | None = None) -> str:
    """Try what `train` tries before its first rollout, and say what came of it.

    Return how many updates and rollouts the run has, and about how long it takes at most. With a
    `machine`, judge that one in place of this one, and leave out what it must try itself. `config`
    is the run's, as it would be there.
    """
    if machine:
        config = with_precision(config, elsewhere=True)
        preflight(run, verbose=True, elsewhere=partial(_judge, config, machine))
    else:
        preflight(run, verbose=True)
        _try_model(run)
    schedule = config.schedule
    groups = (len(shard) for n in range(schedule.stages) for shard in Stage.of(run, n).drawn)
    rollouts = sum(groups) * schedule.group_size
    prompts = [len(run.prompts(problem)) for problem in run.problems[:PROMPTS]]
    h200s = max(1, len(reserved_gpus(config))) if machine else 0
    seconds = longest_seconds(config, fmean(prompts), len(run.eval_problems), h200s=h200s)
    if seconds > _LONG:
        run.progress.say(_SHORTER)
    about = f"at most about {rounded(seconds)}{', a guess from one H200' if machine else ''}"
    return f"{schedule.total_updates:,} updates, {rollouts:,} rollouts, {about}"


def _try_model(run: OpenRun) -> None:
    config = run.config
    if config.distributed.processes == 1 and not config.backend.clustered:  # ranks load their own
        run.progress.say(f"loading the model {config.model.path}")
        policy = Weights(run).load()
        if isinstance(config.engine, OwnEngineOptions):
            make_engine(policy, config.engine, run.progress.say)


def _judge(config: RunConfig, machine: Machine, run: OpenRun, _: bool) -> None:
    longest = max(len(run.prompts(problem)) for problem in run.problems[:PROMPTS])
    for line in (*fitting(config, machine, longest), disk(config, run.folder), _NOT_TRIED):
        run.progress.say(line)
