"""A whole training run in its own process: ours, or TRL's GRPO on the same task.

    python benchmarks/whole_run.py mugrpo OUT.json CONFIG --run-dir DIR [--a.b VALUE ...]
    python benchmarks/whole_run.py trl OUT.json CONFIG --run-dir DIR [--trl-batch N] [--a.b ...]

Both read one of our config files. OUT.json has the seconds from the end of the imports, including
lazy ones, to the end of the run. These include loading the model. It also has each evaluation, with
the seconds of training before it. Both leave out the seconds of evaluations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcomes import Outcome


def ours(options: argparse.Namespace, overrides: Sequence[str]) -> Outcome:
    """Run `mugrpo train` in this process and return the outcome."""
    from mugrpo.pipeline import train
    from mugrpo.report.costs import phase_seconds, spans
    from mugrpo.report.read import read_runs
    from mugrpo.run.opening import open_run
    from mugrpo.run.progress import Progress

    outcome = Outcome()
    with open_run(
        options.config, overrides=overrides, run_dir=options.run_dir, progress=Progress()
    ) as run:

        def stamped(kind: str, update: int, values: dict[str, Any]) -> None:
            if kind == "evaluation":
                outcome.evaluated(update, values["accuracy"], values["time/evaluate"])

        train(run, on_metrics=stamped)
    outcome.ended()
    done = read_runs([options.run_dir])[0]
    outcome.phases = phase_seconds(spans(done))
    outcome.update_seconds = [line["time/update"] + line["time/read"] for line in done.updates]
    return outcome


def import_everything() -> None:
    """Import what both sides use, including what torch and transformers import on first use."""
    import torch

    from mugrpo.config.run import ModelOptions
    from mugrpo.model.policy import load_policy

    load_policy(ModelOptions())
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter]).step()


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    cli.add_argument("side", choices=("mugrpo", "trl"))
    cli.add_argument("out", type=Path)
    cli.add_argument("config", type=Path)
    cli.add_argument("--run-dir", type=Path, required=True)
    cli.add_argument("--trl-batch", type=int, help="TRL's responses per micro-batch")
    options, overrides = cli.parse_known_args()
    import_everything()
    if options.side == "mugrpo":
        import mugrpo.pipeline  # noqa: F401 - before the clock starts

        outcome = ours(options, overrides)
    else:
        from trl_run import theirs  # imports TRL

        outcome = theirs(options, overrides)
    options.out.write_text(json.dumps(vars(outcome)))


if __name__ == "__main__":
    main()
