"""What each rank of a test runs: torchrun -m tests.ranked FOLDER MODEL UPDATES [OPTION=VALUE ...]

The ranks make updates on the same experiences, starting from the folder's newest state. The first
rank writes the metrics, and all of them write the trainer's state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from mugrpo.config.distributed import DistributedOptions
from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.fsdp import distribute
from mugrpo.optimize.trainer import Trainer
from mugrpo.processes.ranks import Ranks, joined
from tests.builders import sampled_experience
from tests.updates import config_of

torch.set_num_threads(1)


def experiences(model: str) -> list[Experience]:
    """Return three experiences of the same four groups of four, in different orders."""
    once = sampled_experience(load_policy(ModelOptions(path=model)))
    groups = [slice(4 * g, 4 * g + 4) for g in range(len(once.rollouts) // 4)]
    orders = []
    for shift in range(3):
        order = groups[shift:] + groups[:shift]
        rollouts = [r for part in order for r in once.rollouts[part]]
        scores = [s for part in order for s in once.scores[part]]
        orders.append(Experience(rollouts, scores))
    return orders


def main() -> None:
    folder, model, updates, *options = sys.argv[1:]
    chosen = dict(option.split("=") for option in options)
    with joined("optimize") as ranks:
        work(ranks, Path(folder), model, int(updates), chosen)


def work(ranks: Ranks, folder: Path, model: str, updates: int, chosen: dict[str, str]) -> None:
    raw = json.loads(chosen.get("config", "{}"))
    config = config_of(**raw)
    options = ModelOptions(path=model, **raw.get("model", {}))
    policy = load_policy(options, ranks=ranks, lora=config.lora, seed=config.seed)
    if ranks.size > 1:
        distributed = DistributedOptions(
            cpu_offload=chosen.get("offload") == "true", replicas=int(chosen.get("replicas", 1))
        )
        distribute(policy, distributed)
    trainer = Trainer(policy, config)
    start = max((int(p.name) for p in folder.iterdir()), default=0)
    if start:
        trainer.load(folder / str(start))
    every = experiences(model)
    lines = []
    for update in range(start, updates):
        line = trainer.step(every[update % len(every)])
        lines.append({k: v for k, v in line.items() if not k.startswith("time/")})
    out = folder / str(updates)
    if ranks.first:
        out.mkdir()
    ranks.wait()
    trainer.save(out)
    if ranks.first:
        (out / "metrics.json").write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
