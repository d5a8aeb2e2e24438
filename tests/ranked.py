"""What each rank of a test runs.

The ranks make updates on the same experiences, starting from the folder's newest state. The first
rank writes the metrics, and all of them write the trainer's state.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
from safetensors.torch import save_file

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.fsdp import distribute
from mugrpo.optimize.trainer import Trainer
from mugrpo.processes.lifetime import DRIVER
from mugrpo.processes.ranks import Ranks, joined, within_a_machine
from tests.builders import sampled_experience, save
from tests.runs import _processes
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


def started(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run work(ranks, *arguments) in `count` ranks, which are forked with everything imported."""
    with tempfile.TemporaryDirectory() as store:
        place = {DRIVER: "forked", "WORLD_SIZE": str(count), **within_a_machine(store)}
        processes = [
            _processes().Process(target=_rank, args=(rank, place, work, *arguments))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * count


def _rank(rank: int, place: dict[str, str], work: Callable[..., None], *arguments: Any) -> None:
    os.environ |= {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    with joined() as ranks:
        work(ranks, *arguments)


def work(ranks: Ranks, folder: Path, model: str, updates: int, chosen: dict[str, str]) -> None:
    raw = json.loads(chosen.get("config", "{}"))
    config = config_of(**raw)
    options = ModelOptions(path=model, **raw.get("model", {}))
    policy = load_policy(options, ranks=ranks, lora=config.lora, seed=config.seed)
    if ranks.size > 1:
        distribute(policy)
    trainer = Trainer(policy, config)
    start = max((int(p.name) for p in folder.iterdir()), default=0)
    if start:
        trainer.load(folder / str(start))
    every = experiences(model)
    lines = []
    for update in range(start, updates):
        line = trainer.step(every[update % len(every)])
        if chosen.get("naps") == "true":
            nap(trainer)
            elsewhere(trainer, model, every[0], folder.with_name("meanwhile"))
        lines.append({k: v for k, v in line.items() if not k.startswith("time/")})
    out = folder / str(updates)
    if ranks.first:
        (out / "handed over").mkdir(parents=True)
    ranks.wait()
    save(trainer, out)
    if chosen.get("naps") == "true":
        used = used_weights(trainer, every[0])
        policy.save(out / "handed over")
        if ranks.first:
            (out / "used").mkdir()
            save_file(used, out / "used" / "model.safetensors")
    if ranks.first:
        (out / "metrics.json").write_text(json.dumps(lines))


def nap(trainer: Trainer) -> None:
    """Move weights and moments to other memory, as a GPU's sleep and wake do."""
    cloned = Mock(side_effect=lambda tensor, *_: tensor.clone())
    with patch("mugrpo.model.policy.moved", cloned), patch("mugrpo.optimize.trainer.moved", cloned):
        trainer.policy.move(torch.device("cpu"))
        trainer.move_moments(torch.device("cpu"))
    assert cloned.called


def elsewhere(trainer: Trainer, model: str, experience: Experience, folder: Path) -> None:
    """Compute logprobs of the initial model meanwhile, as for a reference."""
    folder.mkdir(exist_ok=True)
    save(trainer, folder)
    trainer.policy.load_weights(model, 0)
    rollout_logprobs(trainer.policy, experience.rollouts, trainer.config)
    trainer.load(folder)


def used_weights(trainer: Trainer, experience: Experience) -> dict[str, torch.Tensor]:
    """Return the weights that a forward pass computes with, as they are while it runs."""
    used: dict[str, torch.Tensor] = {}
    model = trainer.policy.model

    def note(name: str, module: torch.nn.Module) -> None:
        for key, weight in module.named_parameters(name, recurse=False):
            used[key] = weight.detach().clone()

    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, *_, name=name: note(name, m))
    rollout_logprobs(trainer.policy, experience.rollouts, trainer.config)
    return used
