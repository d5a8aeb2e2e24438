"""Few large stages in TRL's trainer: four ways to spend the same updates, for docs/trl.md.

    python benchmarks/trl_stages.py chain --seeds 1 2 3

A cell is a method and a seed, in a process of its own that writes accuracies on held-out problems
to benchmarks/results/trl_stages/TASK.json. Cells that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from statistics import mean, stdev
from typing import Any

from side_by_side import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "trl_stages"
ARMS: dict[str, dict[str, Any]] = {
    "TRL, a refresh every 4 updates": {"steps_per_generation": 4},
    "TRL's loss, 4 stages": {"stages": 4},
    "mu-grpo, 4 stages": {"stages": 4, "method": "mu-grpo"},
    "tapered-grpo, 4 stages": {"stages": 4, "method": "tapered-grpo", "growth": 1.0},
    "tapered-grpo, 4 growing stages": {"stages": 4, "method": "tapered-grpo"},
}
TURN = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
SOLVED = TURN.replace("{prompt}", "2+5") + "7<|im_end|>\n"
TASKS: dict[str, list[str]] = {  # overrides of studies/base/TASK.toml, batches are TRL's
    "chain": ["optimizer.lr=2e-4", "schedule.batches_per_stage=24", "evaluation.every=24"],
    "smollm2": [  # sums of two digits, after one that is solved, so that answers are short
        *("optimizer.lr=4e-5", "schedule.problems_per_update=2", "schedule.stages=4"),
        *("schedule.batches_per_stage=6", "evaluation.every=12", "evaluation.samples=8"),
        *("task.data=configs/addition.jsonl", "task.eval_share=0.25", "prompt.form=plain"),
        *("rollouts.max_new_tokens=4", f"task.prompt_template={SOLVED}{TURN}"),
    ],
}
COMMON = ["optimizer.lr_schedule=linear", "optimizer.betas=[0.9,0.95]"]


def cell(task_name: str, arm: str, seed: int) -> dict[str, Any]:
    """Train once. Return the seconds, and the accuracy at each evaluation."""
    from transformers import AutoModelForCausalLM, set_seed

    from mugrpo.config.load import load_config
    from mugrpo.extensions.trl import GRPOConfig, GRPOTrainer
    from mugrpo.model.loading import load_tokenizer
    from mugrpo.model.pretrained import model_path
    from mugrpo.tasks import make_task
    from outcomes import Outcome
    from trl_peer import grpo_config, plain_rows, quiet, reward_of
    from trl_run import Accuracy, problems_in_order

    words = [*COMMON, *TASKS[task_name], f"seed={seed}"]
    config = load_config(
        ROOT / "studies" / "base" / f"{task_name}.toml",
        [part for word in words for part in (f"--{word.split('=')[0]}", word.split("=", 1)[1])],
    )
    set_seed(seed)
    task, tokenizer = make_task(config.task), load_tokenizer(config.model)
    updates, rollouts = config.schedule.total_updates, config.schedule.rollouts_per_update
    with tempfile.TemporaryDirectory() as folder:
        arguments = grpo_config(config, batch=rollouts, updates=updates, folder=folder).to_dict()
        own = "loss_type", "epsilon", "epsilon_high", "beta", "steps_per_generation"
        known = GRPOConfig.__dataclass_fields__.keys() - {*own, "generation_batch_size"}
        kept = {name: arguments[name] for name in known & arguments.keys()}
        rows = plain_rows(problems_in_order(config, task))
        outcome = Outcome()
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_path(config.model), dtype="float32"),
            args=GRPOConfig(**{**kept, "seed": seed}, **ARMS[arm]),
            reward_funcs=reward_of(task, task.train_problems(), [tokenizer.eos_token_id]),
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[Accuracy(outcome, config, task, tokenizer)],
        )
        with quiet():
            trainer.train()
    outcome.ended()
    return {"arm": arm, "seed": seed, "seconds": outcome.seconds, "accuracy": outcome.evaluations}


def table(cells: list[dict[str, Any]]) -> str:
    """Return the mean accuracy and its standard deviation over seeds, half-way and at the end."""
    lines = ["| | half-way | at the end | seeds |", "| --- | --- | --- | --- |"]
    for arm in ARMS:
        runs = [c["accuracy"] for c in cells if c["arm"] == arm]
        if len(runs) > 1:
            columns = [[run[at]["accuracy"] for run in runs] for at in (len(runs[0]) // 2, -1)]
            texts = [f"{mean(column):.3f} ± {stdev(column):.3f}" for column in columns]
            lines.append(f"| {arm} | {' | '.join(texts)} | {len(runs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--arms", choices=ARMS, nargs="*", default=[*ARMS])
    parser.add_argument("--one", action="store_true", help="run the first cell in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cell(options.task, options.arms[0], options.seeds[0])))
        return
    path = RESULTS / f"{options.task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = json.loads(path.read_text()) if path.exists() else []
    for seed in options.seeds:
        for arm in options.arms:
            if any((c["arm"], c["seed"]) == (arm, seed) for c in cells):
                continue
            words = [
                sys.executable,
                __file__,
                options.task,
                "--seeds",
                str(seed),
                "--arms",
                arm,
                "--one",
            ]
            out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            cells.append(json.loads(out.splitlines()[-1]))
            path.write_text(json.dumps(cells, indent=1) + "\n")
            print(arm, seed, cells[-1]["accuracy"][-1], flush=True)
    print(table(cells))


if __name__ == "__main__":
    main()
