"""The kinds of run that faults strike: tiny ones, of a few seconds each."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mugrpo
from tests.faults import case
from tests.runs import CONFIG, write_config

SUITE_DATA = "six.jsonl"  # problems of a suite, beside it
# Stages of 8 updates, with checkpoints, evaluations and removed checkpoints between them.
LONGER = {
    "batches_per_stage = 3": "batches_per_stage = 8",
    "[checkpoint]\nevery = 2": "[checkpoint]\nevery = 4\nkeep = 2",
    "train_problems = 24": "train_problems = 64",
}

# Functions may wait for 12 times `timeout`, longer than the longest stop: one that is stopped for
# longer has the status "unfinished", in an uninterrupted run as well.
REWARDS = """
def short(completions, **columns):
    return [0.2 if len(completion) < 6 else 0.0 for completion in completions]
"""
# Text that breaks terminals, parsers, templates and file names, if anything lets it through.
HOSTILE = "".join(
    [
        *("\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "\x00", "\r\n\u2028", "a\u0301" * 40),
        *("<|im_end|>", "{{ 7 * 7 }}", "{prompt}", "%s", "../../etc/passwd", "'; drop --"),
        *("<script>alert(1)</script>", "\\boxed{", "</think>", "NaN", "\U0001f469\u200d\U0001f680"),
    ]
)
SUITE = """title = "chains"
samples = 2
max_new_tokens = 8

[task]
data = "DATA"
rewards = { name = "regex", pattern = "=([0-9])$" }

[prompt]
form = "plain"
"""
OWN_PROBLEMS = (
    case.CONFIG.replace("count = 1", "count = 2\ntimeout = 50.0")
    .replace("stages = 1", "stages = 2")
    .replace("shard_rollouts = 24", "shard_rollouts = 8")
    .replace("[evaluation]\nevery = 0", "[evaluation]\nevery = 3")
)


@dataclass(frozen=True)
class Kind:
    """A command and what it begins with."""

    options: Sequence[str] = ()
    roles: tuple[str, ...] = ()  # of the processes that it starts
    command: str = "train"
    of: str = ""  # the kind of finished run that the command works on
    own_problems: bool = False
    hostile: bool = False  # texts of its own problems
    received: bool = False  # begun by somebody else: it is approved, again at each start
    in_order: bool = True  # whether the lines of its metrics always come in the same order

    @property
    def varying(self) -> tuple[str, ...]:
        """The metrics that may differ: an engine's work is done again if it dies."""
        return ("occupancy",) if "engine" in self.roles else ()


def _words(text: str) -> tuple[str, ...]:
    """Return the options in "engine.processes=1 overlap=true" as words of a command."""
    pairs = (pair.split("=", 1) for pair in text.split())
    return tuple(word for name, value in pairs for word in (f"--{name}", value))


_ENGINE = "engine.processes=1"
_RANKS = "distributed.processes=2"
_BOTH = f"{_ENGINE} {_RANKS}"

KINDS = {
    "tapered-grpo": Kind(_words("preset=tapered-grpo schedule.growth=2 engine.name=continuous")),
    "mu-grpo": Kind(),
    "grpo": Kind(_words("preset=grpo schedule.batches_per_stage=3 schedule.stages=4")),
    "on-policy": Kind(_words("preset=on-policy schedule.batches_per_stage=1 schedule.stages=8")),
    "sample-reuse": Kind(
        _words("preset=sample-reuse schedule.batches_per_stage=2 schedule.passes_per_batch=5")
    ),
    "off-policy, reference": Kind(
        _words("preset=off-policy-grpo schedule.batches_per_stage=4 schedule.stages=3")
        + _words("reference.period=1 checkpoint.every=0")
    ),
    "proximal policy": Kind(_words("preset=decoupled-ppo objective.proximal_period=2")),
    "surplus": Kind(_words("preset=dapo schedule.batches_per_stage=4")),
    "bf16": Kind(_words("model.precision=bf16")),
    "evaluations": Kind(
        _words("evaluation.every=1 evaluation.samples=2 evaluation.end_samples=4")
        + _words("evaluation.greedy=true checkpoint.minutes=0.001 checkpoint.every=0")
    ),
    "own problems and rewards": Kind(roles=("reward worker",), own_problems=True),
    "own problems, hostile texts": Kind(
        _words("task.id_column=id prompt.overlong=truncate"),
        ("reward worker",),
        own_problems=True,
        hostile=True,
    ),
    "received run": Kind(("--trust",), ("reward worker",), own_problems=True, received=True),
    "suite": Kind(
        ("--evaluation.suites", '[{name = "FOLDER/chains.toml", every = 2}]'),
        ("reward worker", "suite"),
        own_problems=True,
    ),
    "300 stages": Kind(
        _words("preset=on-policy schedule.batches_per_stage=1 schedule.stages=300")
        + _words("evaluation.every=100 optimizer.lr=1e-6 schedule.group_size=8")
    ),
    "engine": Kind(_words(_ENGINE), ("engine",)),
    "two engines": Kind(_words("engine.name=continuous engine.processes=2"), ("engine",)),
    "overlap": Kind(
        _words(f"{_ENGINE} overlap=true checkpoint.every=0"), ("engine",), in_order=False
    ),
    "two ranks": Kind(_words(_RANKS), ("rank",)),
    "engine and ranks": Kind(_words(f"{_BOTH} reference.name=kl"), ("engine", "rank")),
    "engine and ranks, no checkpoints": Kind(
        _words(f"{_BOTH} checkpoint.every=100"), ("engine", "rank")
    ),
    "overlap with ranks": Kind(
        _words(f"{_BOTH} overlap=true checkpoint.every=0"), ("engine", "rank"), in_order=False
    ),
    "own problems, engine and ranks": Kind(
        _words(_BOTH), ("engine", "rank", "reward worker"), own_problems=True
    ),
    "bakeoff": Kind(
        ("--stage", "0", "--objectives", "mu-grpo,grpo,m2po"), command="bakeoff", of="mu-grpo"
    ),
    "alignment": Kind(("--stage", "1", "--groups", "2"), command="alignment", of="mu-grpo"),
}


def begin(name: str, shared: Path, run_dir: Path) -> tuple[str, ...]:
    """Return the command of the kind called `name` on `run_dir`, and prepare what it needs.

    `shared` has the configs, which all runs of a kind have in common, and finished runs.
    """
    kind = KINDS[name]
    if kind.of:
        shutil.copytree(shared / "finished" / kind.of, run_dir)
        return (kind.command, str(run_dir), *kind.options)
    folder = shared / ("hostile" * kind.hostile or "problems" * kind.own_problems or "embedded")
    if not kind.own_problems:
        text = CONFIG
        for old, new in LONGER.items():
            assert old in text
            text = text.replace(old, new)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        rows = case.chains()
        if kind.hostile:
            rows = [{**row, "id": f"{n}{HOSTILE}", "note": HOSTILE} for n, row in enumerate(rows)]
            rows += [{**row, "id": f"-{n}", "prompt": HOSTILE * n} for n, row in enumerate(rows)][
                1:9
            ]
        (folder / "p.jsonl").write_bytes(case.lines(rows))
        (folder / "rewards.py").write_text(REWARDS)
        text = OWN_PROBLEMS.replace("DATA", str(folder / "p.jsonl")).replace(
            "rewards = {", f'rewards = ["{folder / "rewards.py"}:short", {{'
        )
        text = text.replace('([0-9])$" }', '([0-9])$" }]')
        (folder / "chains.toml").write_text(SUITE.replace("DATA", str(folder / SUITE_DATA)))
        (folder / SUITE_DATA).write_bytes(case.lines(case.chains()[:6]))
    config = write_config(folder, text)
    if kind.received:
        _begun_elsewhere(config, shared / "elsewhere", run_dir)
        return (kind.command, str(run_dir), *kind.options)
    options = (word.replace("FOLDER", str(folder)) for word in kind.options)
    return (kind.command, str(config), "--run-dir", str(run_dir), *options)


def _begun_elsewhere(config: Path, state: Path, run_dir: Path) -> None:
    """Begin a run as a user does whose approvals are in `state`."""
    mine = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(state)
    try:
        with mugrpo.open_run(config, run_dir=run_dir):
            pass
    finally:
        os.environ.pop("XDG_STATE_HOME")
        os.environ.update({"XDG_STATE_HOME": mine} if mine else {})
