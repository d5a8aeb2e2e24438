"""Measure a model, or checkpoints of a run, on suites: one folder of results for each of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mugrpo.config.load import apply_overrides, build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.evals.comparing import is_run
from mugrpo.extensions.evals.options import Suite
from mugrpo.extensions.evals.suite import measure_suite, suite_config, suite_run, with_data
from mugrpo.hosts.host import Refreshed
from mugrpo.hosts.local import LocalHost
from mugrpo.model.adapter import imported_peft
from mugrpo.model.hardware import with_precision
from mugrpo.model.loading import model_sizes
from mugrpo.processes.lifetime import StopFlag
from mugrpo.run.opening import OpenRun
from mugrpo.run.progress import Progress
from mugrpo.run.trust import require_known


@dataclass(frozen=True)
class Target:
    """What is measured: a model, or the run in `folder`."""

    folder: RunDir  # of the run; for a model, that of the results
    results: Path
    raw: dict[str, Any]  # the config, with the model and the engine
    stored: tuple[dict[str, Any], RunConfig] | None  # config.json and its config; None for a model


def measure(
    target: str,
    suites: Sequence[Suite],
    *,
    chosen: Mapping[str, Any],
    data: Mapping[str, Path],
    updates: str | None,
    overrides: Sequence[str],
    out: Path | None,
    trust: bool,
    progress: Progress,
    stop: StopFlag,
) -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder of the results, and what each suite's result.json holds.

    What is published there is not done again. `chosen` has sampling options and `data` files that
    replace the suites' own. Raises UsageError if the target is neither a model nor a run, if a
    suite's data cannot be read, if another process holds the folder, or if it has the same suite
    under other options; RunStopped if the engine cannot go on.
    """
    found = _target(target, out)
    own: dict[str, Any] = {}  # how a run's suites sample unless the command line says otherwise
    if found.stored:
        own = {"temperature": found.raw["rollouts"]["temperature"], "top_p": 1.0}
        require_known(*found.stored, target, trust=trust)
    raw = apply_overrides(found.raw, overrides)
    base = with_precision(build_config(raw, target))
    if base.lora.rank:
        imported_peft()
    model_sizes(base.model)  # a model that is not there is refused before anything is written
    at = _updates(found, updates)
    chosen = {**own, **chosen}
    placed = [with_data(s, str(data[s.name])) if s.name in data else s for s in suites]
    mine = [suite.over(chosen) for suite in placed]
    configs = [_config(base, suite, overrides) for suite in mine]
    results = []
    with _locked(found, progress), ExitStack() as opened:
        runs = [
            opened.enter_context(suite_run(found.folder, config, suite, progress, stop))
            for suite, config in zip(mine, configs, strict=True)
        ]
        first = _as_trained(runs[0], base)
        with closing(LocalHost(first)) as host:
            for update in at:

                @cache  # made when rollouts are missing: grading stored ones again needs no engine
                def refreshed(update: int = update) -> Refreshed:
                    draws = [(problem, 0) for problem in first.eval_problems]
                    return host.engines(update, draws, "evaluation")

                for suite, run in zip(mine, runs, strict=True):
                    folder = found.results / suite.name / f"update-{update:06d}"
                    results.append(measure_suite(run, suite, refreshed, update, folder))
    return found.results, results


def _target(target: str, out: Path | None) -> Target:
    """Return what `target` names. Raises UsageError for a run that cannot be read."""
    path = Path(target)
    if is_run(path):
        folder = RunDir(path)
        stored = folder.read_config()
        assert stored is not None
        raw = stored["config"]
        config = build_config(raw, str(folder.config))
        return Target(folder, out or path / "benchmarks", raw, (stored, config))
    if path.suffix == ".toml":
        raise UsageError(f"{target} is a config file; name a run, a model directory or a hub id")
    name = path.resolve().name if path.exists() else target.replace("/", "--")
    results = out or Path("runs") / "benchmarks" / name
    return Target(RunDir(results), results, {"model": {"path": target}}, None)


def _config(base: RunConfig, suite: Suite, overrides: Sequence[str]) -> RunConfig:
    """Return the suite's config. The command line's options stand above the suite's."""
    raw = suite_config(base, suite).model_dump(mode="json")
    config = build_config(apply_overrides(raw, overrides), f"the suite {suite.name}")
    return with_precision(config)


def _as_trained(run: OpenRun, base: RunConfig) -> OpenRun:
    """Return `run` with the temperature of training, at which the canary compares logprobs."""
    temperature = base.rollouts.temperature
    rollouts = run.config.rollouts.model_copy(update={"temperature": temperature})
    return replace(run, config=run.config.model_copy(update={"rollouts": rollouts}))


def _updates(found: Target, text: str | None) -> list[int]:
    """Return the updates to measure. Raises UsageError if one has no checkpoint."""
    if not found.stored:
        if text is not None:
            raise UsageError(f"--update {text}: a model has no updates; leave it out")
        return [0]
    saved = [0, *found.folder.checkpoint_updates()]
    if text is None:
        return sorted({0, saved[-1]})
    if text == "all":
        return saved
    wanted = [int(word) if word.strip().isdigit() else -1 for word in text.split(",")]
    for update in wanted:
        if update not in saved:
            raise UsageError(f"--update {text}: choose among {saved}, which have checkpoints")
    return sorted(set(wanted))


@contextmanager
def _locked(found: Target, progress: Progress) -> Iterator[None]:
    """Lock the run, or the folder of a model's results, against other processes."""
    elsewhere = found.stored and found.results != found.folder.benchmarks
    other = RunDir(found.results).locked() if elsewhere else nullcontext()
    with found.folder.locked() as notices, other:
        for notice in notices:
            progress.say(notice)
        yield
