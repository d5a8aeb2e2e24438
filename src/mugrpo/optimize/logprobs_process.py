"""Compute logprobs of rollouts in a separate process, for a driver that holds no model.

    python -P -m mugrpo.optimize.logprobs_process SOCKET LIFELINE

`logprobs_elsewhere` starts this process. It loads the model, computes once and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mugrpo.config.options import tuples
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import Rollout
from mugrpo.disk.shards import rollout_from_row
from mugrpo.model.memory import failure_kind, out_of_memory_explained
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_path
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.processes.child import Channel
from mugrpo.processes.messages import to_json
from mugrpo.processes.peer import Peer, PeerLost, raise_failure

_COMMAND = (sys.executable, "-m", "mugrpo.optimize.logprobs_process")
_WAY_OUT = "leave more memory for it beside the engine"


def logprobs_elsewhere(
    config: RunConfig,
    path: str,
    rollouts: Sequence[Rollout],
    log: Path,
    check: Callable[[], None],
) -> list[NDArray[np.float32]]:
    """Return what `rollout_logprobs` returns for `config.model` with the weights at `path`.

    The process prints to `log`. `check` is called while it works, and raises if the run must stop.
    Raises UsageError if the model cannot be loaded, and RunStopped if memory runs out or the
    process is lost.
    """
    threads = torch.get_num_threads()
    setup = {
        "config": config.revealed(),
        "path": path,
        "threads": threads,
        "rollouts": [asdict(rollout) for rollout in rollouts],
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    peer = Peer(
        _COMMAND,
        to_json(setup),
        silence=config.engine.silence,
        environment={"OMP_NUM_THREADS": str(threads)},
        log=log,
    )
    try:
        with out_of_memory_explained("the trainer's model", _WAY_OUT):
            while True:
                message = peer.hear()
                check()
                if message is None:
                    continue
                raise_failure(message)
                if "logprobs" in message:
                    return [np.frombuffer(part, np.float32) for part in message["logprobs"]]
    except PeerLost as lost:
        raise RunStopped(
            f"the process that computes the trainer's logprobs {lost}; its log is {log}"
        ) from None
    finally:
        peer.end()


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    torch.set_num_threads(setup["threads"])
    try:
        logprobs = _computed(setup, channel.heartbeat)
    except Exception as error:
        if (kind := failure_kind(error)) is None:
            raise
        channel.send({"failed": kind, "text": str(error)})
    else:
        channel.send({"logprobs": [part.tobytes() for part in logprobs]})


def _computed(setup: dict[str, Any], heartbeat: Callable[[], None]) -> list[NDArray[np.float32]]:
    config = RunConfig.model_validate(tuples(setup["config"]))
    policy = load_policy(config.model, lora=config.lora, seed=config.seed)
    if setup["path"] != model_path(config.model):
        policy.load_weights(setup["path"], 0)
    rollouts = [rollout_from_row(_arrays(row)) for row in setup["rollouts"]]
    budget = TokenBudget(config.optimizer, print)
    return rollout_logprobs(policy, rollouts, config, budget, heartbeat)


def _arrays(row: dict[str, Any]) -> dict[str, Any]:
    """Return a rollout's fields, with the lists from JSON converted back to arrays."""
    types: dict[str, Any] = dict.fromkeys(("prompt_ids", "response_ids", "turns"), np.int32)
    types |= {"behavior_logprobs": np.float32, "loss_mask": np.bool_}
    present = {name: kind for name, kind in types.items() if row[name] is not None}
    return row | {name: np.array(row[name], kind) for name, kind in present.items()}


if __name__ == "__main__":
    main()
