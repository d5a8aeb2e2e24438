"""How long should OpenMP's threads spin at barriers? `python benchmarks/spinning.py`, 12 minutes.

A thread of libgomp that waits for others spins before it sleeps. If other processes want the cores,
it spins in the time that the thread it waits for would need. Each setting has a fresh process,
because libgomp reads it once. Two models generate and make updates, on the idle machine and beside
busy processes. With a fair share of the cores, a run beside them has `cores / (threads + busy)` of
its speed. A run of this benchmark that does not begin on an idle machine says nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch  # noqa: F401 - before mugrpo, which then leaves the setting alone

from mugrpo.config.cores import cores
from mugrpo.model.policy import load_policy
from mugrpo.optimize.trainer import Trainer
from mugrpo.tasks import make_task
from side_by_side import Measured, Ratio, Row, alternate, parser, publish
from workloads import (
    add_precision,
    addition_config,
    addition_update,
    encoder,
    requests,
    sampled,
)

DEFAULT = "default"
SETTINGS: dict[str, dict[str, str]] = {
    DEFAULT: {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spins 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spins 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spins 100,000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
VARIABLES = {name for setting in SETTINGS.values() for name in setting}
MODELS = ("chain", "smollm2")
WORK = ("generation", "update")
CONDITIONS = ("idle", "busy")


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Within the block, keep `count` other processes busy."""
    words = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(words) for _ in range(count)]
    time.sleep(0.2)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(model: str, precision: str, busy: int, tiny: bool) -> dict[str, float]:
    """Return the seconds of each work under each condition, in this process."""
    small = model == "chain"
    groups = {
        "model": {"precision": precision},
        "rollouts": {"max_new_tokens": 44 if small else 12},
    }
    config = addition_config(groups, tiny=small)
    policy = load_policy(config.model)
    update = addition_update(policy, config, 8 if small else 2, 8, all_varied=True)
    trainer = Trainer(policy, config)
    trainer.step(update.experience)  # the warm-up; the generation of its rollouts was another
    problems = list(make_task(config.task).train_problems())[: 4 if tiny else 32 if small else 2]
    workload = requests(encoder(policy, config), problems, 8)
    count = 1 if tiny or not small else 5
    works: dict[str, Callable[[], object]] = {
        "generation": partial(sampled, policy, config, workload),
        "update": lambda: [trainer.step(update.experience) for _ in range(count)],
    }
    found = {}
    for condition in CONDITIONS:
        with beside(busy if condition == "busy" else 0):
            found |= {f"{work}, {condition}": seconds_of(works[work]) for work in WORK}
    return found


def in_a_process(setting: Mapping[str, str], words: list[str], repetition: int) -> Measured:
    """Measure in a fresh process with the variables of `setting`, and no other of them."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES} | dict(setting)
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    notes = json.loads(done.stdout.splitlines()[-1])
    return Measured(sum(notes.values()), notes=notes)


def table(found: Mapping[str, list[Measured]], columns: list[str]) -> str:
    """Return the median time of each setting relative to the default's, by column."""
    lines = [f"| setting | {' | '.join(columns)} |", "| - " * (len(columns) + 1) + "|"]
    for setting in SETTINGS:
        cells = []
        for column in columns:
            mine, base = (found[f"{column}: {name}"] for name in (setting, DEFAULT))
            pairs = sorted(m.seconds / b.seconds for m, b in zip(mine, base, strict=True))
            cells.append(f"{pairs[len(pairs) // 2]:.2f}")
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    cli = parser(str(__doc__), repetitions=2)
    add_precision(cli)
    cli.add_argument("--busy", type=int, default=4, help="busy processes")
    cli.add_argument("--minutes", type=float, default=6, help="begin no repetition after these")
    cli.add_argument("--child", choices=MODELS, help="measure one model in this process")
    args = cli.parse_args()
    precision, models = args.precision or "fp32", MODELS[:1] if args.tiny else MODELS
    if args.child:
        print(json.dumps(measure(args.child, precision, args.busy, args.tiny)))
        return
    words = ["--precision", precision, "--busy", str(args.busy), *["--tiny"] * args.tiny]
    sides = {
        f"{model}: {name}": partial(in_a_process, setting, ["--child", model, *words])
        for model in models
        for name, setting in SETTINGS.items()
    }
    end, load = time.monotonic() + 60 * args.minutes, os.getloadavg()[0]
    runs = alternate(sides, args.repetitions, time_left=lambda: time.monotonic() < end)
    columns = [f"{m}, {work}, {c}" for m in models for work in WORK for c in CONDITIONS]
    found = {
        f"{column}: {name}": [
            Measured(one.notes[column.partition(", ")[2]])
            for one in runs[f"{column.partition(',')[0]}: {name}"]
        ]
        for column in columns
        for name in SETTINGS
    }
    ratios = [
        Ratio(f"{c}: {name}", f"{c}: {DEFAULT}", f"{c}: speed of {name} to the default", kind="own")
        for c in columns
        for name in SETTINGS
        if name != DEFAULT
    ]
    count = len(cores())  # and as many threads
    details = {
        "precision": precision,
        "busy processes": args.busy,
        "load before": load,
        "fair share": count / (count + args.busy),
    }
    row = Row("spinning", "OpenMP's waiting", "calls/s", found, ratios, details, tiny=args.tiny)
    publish(row, args.output)
    print(
        f"\nTime relative to the default's; fair share beside others: {details['fair share']:.2f}"
    )
    print(table(found, columns))


if __name__ == "__main__":
    main()
