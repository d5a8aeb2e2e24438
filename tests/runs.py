"""Tiny runs in separate processes, what they leave on disk, and whether two are the same.

Processes are forked from a server that has imported everything, so each costs only a second or
two. Each has one thread, as the same bits are expected only with the same number of threads.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "src" / "mugrpo" / "tasks" / "chain_model"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
}

# Two stages of three updates; a stage has 24 rollouts in 3 shards of 2 engine batches each, and
# checkpoints come after updates 2, 4 and 6. Every update has a gradient, as tests check.
STAGES, SHARDS, UPDATES = 2, 3, 6
CONFIG = """
preset = "mu-grpo"
seed = 10

[task]
train_problems = 24
eval_problems = 4

[schedule]
stages = 2
batches_per_stage = 3
problems_per_update = 2
group_size = 4

[engine]
name = "hf"
slots = 4

[rollouts]
shard_rollouts = 8
max_new_tokens = 8
temperature = 1.3

[optimizer]
lr = 1e-3
lr_schedule = "linear"
betas = [0.9, 0.999]
weight_decay = 0.1

[evaluation]
every = 3

[checkpoint]
every = 2
"""

# The prompt holds all but the last step of the scratchpad, so a response has six tokens and a run
# takes half a second: "3+2-1=" becomes "3+2-1=3+2=5,".
TEMPLATE = """
{%- set text = messages[0]['content'] -%}
{%- set now = namespace(state=text[0] | int) -%}
{{- text -}}
{%- for i in range(1, text | length - 3, 2) -%}
  {%- set next = (now.state + (text[i + 1] | int) * (-1 if text[i] == '-' else 1)) % 10 -%}
  {{- now.state ~ text[i] ~ text[i + 1] ~ '=' ~ next ~ ',' -}}
  {%- set now.state = next -%}
{%- endfor -%}
"""


def write_config(folder: Path, text: str = CONFIG) -> Path:
    """Return the tiny config's file in `folder`, and create both if the file is missing."""
    path, template = folder / "tiny.toml", folder / "scratchpad.jinja"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        template.write_text(TEMPLATE)
        path.write_text(f'{text}\n[prompt]\nform = "chat"\nchat_template = "{template}"\n')
    return path


class Ended(NamedTuple):
    """How a process ended: its status (negative: by that signal) and what it printed."""

    status: int
    out: str
    err: str


Command = Callable[..., Ended]  # runs a command in this process


@dataclass
class Started:
    """A running process."""

    process: BaseProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def end(self, seconds: float = 120) -> Ended:
        """Wait for the process. Kill it and raise TimeoutError after `seconds`."""
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self.folder)
        if status is None:
            raise TimeoutError(f"still running after {seconds} seconds; it printed: {out} {err}")
        return Ended(status, out, err)


def _nothing() -> None:
    pass


def start(
    *arguments: object,
    at: str = "",
    nth: int = 1,
    act: str = "SIGKILL",
    first: Callable[[], None] = _nothing,
    beside: bool = False,
) -> Started:
    """Start `mugrpo ARGUMENTS`, with `act` at the `nth` pass of the place `at` (tests.kill_at). The
    new process calls `first`, which must be picklable, before anything else. Unless checkpoints are
    written `beside` training, wait for each: so it is known what a killed run leaves."""
    folder = Path(mkdtemp(prefix="mugrpo-test-"))
    for name in ("out", "err"):  # it may be killed before it opens them
        (folder / name).touch()
    words = [str(argument) for argument in arguments]
    process = _processes().Process(target=_child, args=(words, at, nth, act, folder, first, beside))
    process.start()
    return Started(process, folder)


def mugrpo(*arguments: object, **how: Any) -> Ended:
    """Start `mugrpo ARGUMENTS` as `start` does, and wait for the end."""
    return start(*arguments, **how).end()


def start_train(run_dir: Path, *options: object, **signals: Any) -> Started:
    """Start `mugrpo train` with the tiny config."""
    config = write_config(run_dir.parent / "config")
    return start("train", config, "--run-dir", run_dir, *options, **signals)


def train(run_dir: Path, *options: object, **signals: Any) -> Ended:
    """Run `mugrpo train` with the tiny config."""
    return start_train(run_dir, *options, **signals).end()


def killed(run_dir: Path, at: str, nth: int = 1, *options: object, beside: bool = False) -> Ended:
    """Run `train`, and check that it is killed at the `nth` pass of the place `at`."""
    ended = train(run_dir, *options, at=at, nth=nth, beside=beside)
    assert ended.status == -signal.SIGKILL, ended
    assert ended.err == f"SIGKILL at {at}\n"
    return ended


def finished(run_dir: Path, *options: object) -> Ended:
    """Run `train`, and check that it succeeds."""
    ended = train(run_dir, *options)
    assert ended.status == 0 and ended.err == "", ended
    return ended


class State(NamedTuple):
    """What a run has published, and what it has left unfinished."""

    rollouts: tuple[int, ...]  # shards by stage
    scores: tuple[int, ...]
    checkpoints: tuple[int, ...]
    last_line: str  # of the metrics file, "" before the first
    unfinished: tuple[str, ...] = ()


def state(run_dir: Path) -> State:
    lines = read_metrics(run_dir)
    return State(
        rollouts=tuple(_published(run_dir, stage, "rollouts") for stage in range(STAGES)),
        scores=tuple(_published(run_dir, stage, "scores") for stage in range(STAGES)),
        checkpoints=tuple(checkpoints(run_dir)),
        last_line=f"{lines[-1]['kind']} {lines[-1]['update']}" if lines else "",
        unfinished=unfinished(run_dir),
    )


def unfinished(run_dir: Path) -> tuple[str, ...]:
    """Return the names of unfinished files and folders, without the process id in them."""
    return tuple(sorted(p.name.partition(".tmp.")[0] for p in run_dir.rglob("*.tmp.*")))


def checkpoints(run_dir: Path) -> list[int]:
    names = sorted(p.name for p in run_dir.glob("checkpoints/update-*"))
    return [int(name[7:]) for name in names if name[7:].isdigit()]


def shard_path(run_dir: Path, stage: int, shard: int, kind: str = "rollouts") -> Path:
    return run_dir / "stages" / f"{stage:03d}" / kind / f"shard-{shard:05d}.parquet"


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the metrics file, without durations and checksums."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    left_out = ("time/", "sha256")
    return [{k: v for k, v in line.items() if not k.startswith(left_out)} for line in lines]


def final_weights(run_dir: Path, update: int = UPDATES) -> dict[str, str]:
    """Return checksums of the model (or adapter) and each rank's optimizer state after `update`."""
    folder = run_dir / "checkpoints" / f"update-{update:06d}"
    assert any(folder.glob("*model*.safetensors"))
    return {file.stem: _sha256(file) for file in sorted(folder.glob("*.safetensors"))}


def shards(run_dir: Path) -> dict[str, str]:
    """Return the checksum of every published shard's file, and check it against its entry."""
    sums = {}
    for entry in sorted(run_dir.rglob("shard-*.json")):
        path = entry.with_suffix(".parquet")
        sums[str(path.relative_to(run_dir))] = _sha256(path)
        assert json.loads(entry.read_text())["shard"]["sha256"] == _sha256(path)
    return sums


def differences(run_dir: Path, reference: Path, update: int = UPDATES) -> list[str]:
    """Return how two finished runs differ: weights, optimizer, shards, metrics, leftovers."""
    differing = []
    ours, theirs = read_metrics(run_dir), read_metrics(reference)
    for line, expected in zip_longest(ours, theirs):
        if line != expected:
            differing.append(f"metrics line {line} instead of {expected}")
    for what, of in (("shard", shards), ("weights", partial(final_weights, update=update))):
        actual, expected = of(run_dir), of(reference)
        names = sorted(actual.keys() | expected.keys())
        differing += [f"{what} {name}" for name in names if actual.get(name) != expected.get(name)]
    return differing + [f"unfinished {name}" for name in unfinished(run_dir)]


def assert_same(run_dir: Path, reference: Path) -> None:
    """Check that two finished runs agree in every bit."""
    differing = differences(run_dir, reference)
    assert not differing, differing


def assert_same_but_for_order(run_dir: Path, reference: Path) -> None:
    """Check that files are the same, and metrics lines except for their order. A stage's line comes
    after its updates."""
    assert shards(run_dir) == shards(reference)
    assert final_weights(run_dir) == final_weights(reference)

    def lines(run: Path) -> list[tuple[str, int, dict]]:
        return sorted(((e["kind"], e["update"], e) for e in read_metrics(run)), key=lambda e: e[:2])

    assert lines(run_dir) == lines(reference)


def _published(run_dir: Path, stage: int, kind: str) -> int:
    """Return the number of a stage's shards that have an entry."""
    return len([*shard_path(run_dir, stage, 0, kind).parent.glob("shard-*.json")])


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preload"])
    with mock.patch.dict(os.environ, ENVIRONMENT):
        forkserver.ensure_running()
    return context


def _child(
    arguments: list[str],
    at: str,
    nth: int,
    act: str,
    folder: Path,
    first: Callable[[], None],
    beside: bool,
) -> None:
    first()
    for descriptor, name in ((1, "out"), (2, "err")):
        opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    import torch

    from mugrpo.cli import main
    from tests.kill_at import arm, settle_checkpoints

    if not beside:
        settle_checkpoints()
    torch.seed()  # not the fork server's seed: every process of its own has another
    if at:
        arm(at, nth, act)
    sys.exit(main(arguments))
