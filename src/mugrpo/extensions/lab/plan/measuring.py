"""Measure this machine: its rates, and what they do not explain, with a model of random weights.

The engine is the project's own, and so is the trainer. Their seconds at a few sizes give the
shares and overheads: these hold for models of about this shape. On a GPU they are those of the
project's own engine, not vLLM's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mugrpo.config.describe import as_toml
from mugrpo.config.engines import ContinuousOptions
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_file
from mugrpo.disk.records import Rollout, Score, Status
from mugrpo.engines.base import Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.generation import EnginePrices
from mugrpo.extensions.lab.plan.machine import Machine, Overheads
from mugrpo.extensions.lab.plan.rates import LONGEST, device_gib, host_gib, rates, typical
from mugrpo.extensions.lab.plan.schedules import CANARY_TOKENS
from mugrpo.extensions.lab.plan.setting import shape_of
from mugrpo.extensions.lab.plan.simulate import Requests, Whole, occupancy
from mugrpo.extensions.lab.plan.updates import UpdatePrices, as_rollouts
from mugrpo.model.hardware import with_precision
from mugrpo.model.policy import Policy, use_short_norms
from mugrpo.model.pretrained import model_path
from mugrpo.optimize.checkpoint import Writing
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer

_PROMPT, _TOKENS, _LONGER = 32, 24, 4  # of the requests that are measured; the long are 4 x 24
_TINY = 1e-9  # seconds: no overhead is measured as less


@dataclass(frozen=True)
class _Sizes:
    """Groups and responses of a measured update, and tokens of its micro-batches."""

    groups: int
    budget: int


def measure(config: RunConfig, form: Path | None, file: Path) -> str:
    """Measure this machine with a model of the config's shape, and write its file.

    Return a sentence. Raises UsageError if the file's name does not end in .toml.
    """
    if file.suffix != ".toml":
        raise UsageError(f"--measure {file}: name a file that ends in .toml")
    config, _ = with_precision(config)
    shape = shape_of(config, form)
    policy = _policy(config, form)
    device = policy.device
    found: dict[str, Any] = {
        "name": file.stem,
        "kind": "gpu" if device.type == "cuda" else "cpu",
        "devices": torch.cuda.device_count() if device.type == "cuda" else 1,
        "per_machine": torch.cuda.device_count() if device.type == "cuda" else 1,
        "memory_gib": device_gib(device),
        "host_gib": host_gib(),
        "rates": rates(device),
        "shares": {"decode": 1.0, "update": 1.0, "memory": 1.0, "link": 1.0},
        "overheads": dict.fromkeys(Overheads.model_fields, 0.0),
        "sources": _sources(config, shape.parameters),
    }
    found["overheads"] |= {"start": 60.0, "score": 1e-4}
    rough = Machine.model_validate(found)
    engine = EnginePrices(shape, rough, config.model.precision)
    found["overheads"] |= _engine(policy, config, engine)
    share, overheads = _updates(policy, config, UpdatePrices(shape, rough, config, 1))
    found["shares"]["update"] = share
    found["overheads"] |= overheads
    found["overheads"]["refresh"] = _refresh(policy, config, shape, Machine.model_validate(found))
    found["sources"] = {f'"{name}"': source for name, source in found["sources"].items()}
    with publish_file(file) as out:
        out.write(_as_document(found, ["Measured by `mugrpo plan --measure`."]).encode())
    return f"{file} describes this machine"


def _policy(config: RunConfig, form: Path | None) -> Policy:
    """Return a policy of random weights. No response of it ends before its limit."""
    folder = form or model_path(config.model)
    described = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    torch.manual_seed(0)
    cuda = torch.cuda.is_available() and config.model.device != "cpu"
    model = AutoModelForCausalLM.from_config(described, dtype=torch.float32)
    model = model.to("cuda" if cuda else "cpu")
    if not cuda:  # as `load_policy` does
        use_short_norms(model)
    ids = {"eos_token_id": 0, "pad_token_id": 0}
    tokenizer = SimpleNamespace(**ids, save_pretrained=lambda folder: None)
    policy = Policy(model, tokenizer, config.model)
    policy.stop_ids = []
    return policy


def _engine(policy: Policy, config: RunConfig, prices: EnginePrices) -> dict[str, float]:
    """Return what the engine takes beyond the counted seconds: per step, sequence, request and key.

    One slot and many are measured with responses of one token, of some, and of many.
    """
    size = config.schedule.group_size
    many = _slots(config)
    few = max(1, many // _LONGER)
    engine = ContinuousEngine(policy, ContinuousOptions(slots=many))
    rows, counted, taken = [], [], []
    cases = ((many, 1), (1, _TOKENS), (many, _TOKENS), (few, _LONGER * _TOKENS))
    for slots, tokens in cases:
        asked = [_request(i, size, policy.vocab_size) for i in range(slots)]

        def call(asked: list[Request] = asked, tokens: int = tokens) -> None:
            for _ in engine.generate(asked, temperature=1.0, max_new_tokens=tokens):
                pass

        call()
        fresh = np.arange(slots) % size == 0
        requests = Requests(np.full(slots, _PROMPT), np.full(slots, tokens), fresh)
        occupied = occupancy(requests, slots)
        taken.append(typical(call, policy.device))
        counted.append(float(prices.seconds(occupied).sum()))
        steps = occupied.steps * (occupied.active > 0)
        sequences, keys = (float((steps * n).sum()) for n in (occupied.active, occupied.keys))
        rows.append([float(steps.sum()), sequences, float(slots), keys])
    measured = np.array(taken)
    found = _not_negative(np.array(rows), measured - np.array(counted), measured)
    names = ("step", "sequence", "request", "key")
    return dict(zip(names, (max(_TINY, value) for value in found), strict=True))


def _refresh(policy: Policy, config: RunConfig, shape: Shape, machine: Machine) -> float:
    """Return the seconds of a canary beyond those that are counted: a call of its own, mostly.

    As in a run, an update comes before each, and the stage's checkpoint is written beside it.
    """
    count = max(1, config.engine.canary_responses)
    prompts, responses = np.full(count, _PROMPT), np.full((count, 1), CANARY_TOKENS)
    rollouts = _experience(as_rollouts(prompts, responses), policy.vocab_size).rollouts
    asked = [Request(rollout.prompt_ids, rollout.seed) for rollout in rollouts]
    engine = ContinuousEngine(policy, ContinuousOptions(slots=_slots(config)))

    def call() -> None:
        for _ in engine.generate(asked, temperature=1.0, max_new_tokens=CANARY_TOKENS):
            pass
        rollout_logprobs(policy, rollouts, config)

    lengths, options = _lengths(2, config.schedule.group_size, CANARY_TOKENS), config.checkpoint
    trained = _experience(as_rollouts(*lengths), policy.vocab_size)
    trainer, writings = Trainer(policy, config), list[Writing]()

    def before() -> None:
        settle()
        trainer.step(trained)
        if options.stage_end and options.beside_training:
            snapshot, then = trainer.snapshot(), lambda: None
            writings.append(Writing(snapshot, place, {"starts": [0]}, first_pid=pid, then=then))

    def settle() -> None:
        while writings:
            writings.pop().published(wait=True)

    call()
    requests = Requests(prompts, responses[:, 0], np.ones(count, bool))
    prices = EnginePrices(shape, machine, config.model.precision)
    counted = float(prices.seconds(occupancy(requests, count)).sum())
    counted += UpdatePrices(shape, machine, config, 1).logprobs(prompts, responses)
    with TemporaryDirectory(dir=Path.cwd()) as folder:
        place, pid = Path(folder, "checkpoint"), os.getpid()
        taken = typical(call, policy.device, before=before)
        settle()
    return max(0.0, taken - counted)


def _slots(config: RunConfig) -> int:
    """Return the slots of an engine that is measured."""
    size = config.schedule.group_size
    return max(4, min(256, int(getattr(config.engine, "slots", None) or 128)) // size * size)


def _request(index: int, size: int, vocabulary: int) -> Request:
    """Return a request whose prompt `size` requests share."""
    return Request(np.full(_PROMPT, 1 + index // size % (vocabulary - 1), np.int32), index)


def _updates(
    policy: Policy, config: RunConfig, prices: UpdatePrices
) -> tuple[float, dict[str, float]]:
    """Return the share of operations that updates reach, and their overheads in seconds.

    A small update, a large one and a large one in small micro-batches are measured.
    """
    size = config.schedule.group_size
    length = min(config.rollouts.max_new_tokens, 64)
    whole = min(config.schedule.problems_per_update, 16)
    while whole > 2 and prices.update(*_lengths(whole, size, length)).seconds > LONGEST:
        whole //= 2
    budget = config.optimizer.micro_batch_tokens
    few = max(2 * (_PROMPT + length), budget // 4)
    taken, flop, batches, adamw = [], [], [], 0.0
    for sizes in (_Sizes(1, budget), _Sizes(whole, budget), _Sizes(whole, few)):
        raw = config.revealed()
        raw["optimizer"]["micro_batch_tokens"] = sizes.budget
        changed = build_config(raw, "the measurement")
        prompts, responses = _lengths(sizes.groups, size, length)
        trainer = Trainer(policy, changed)
        experience = _experience(as_rollouts(prompts, responses), policy.vocab_size)
        trainer.step(experience)
        taken.append(typical(partial(trainer.step, experience), policy.device))
        counted = UpdatePrices(prices.shape, prices.machine, changed, 1)
        cost, adamw = counted.update(prompts, responses), counted.adamw
        flop.append(cost.seconds - adamw)  # at a share of 1 and without overheads
        batches.append(cost.rounds)
    # taken = adamw + update + micro_batch * batches + flop / share, for the three sizes
    rows = np.array([[1.0, n, f] for n, f in zip(batches, flop, strict=True)])
    measured = np.array(taken)
    update, micro_batch, inverse = _not_negative(rows, measured - adamw, measured)
    return min(1.0, 1.0 / max(inverse, 1.0)), {
        "update": max(_TINY, update),
        "micro_batch": max(_TINY, micro_batch),
    }


def _lengths(groups: int, size: int, length: int) -> tuple[Whole, Whole]:
    return np.full(groups, _PROMPT), np.full((groups, size), length)


def _not_negative(rows: np.ndarray, values: np.ndarray, measured: np.ndarray) -> list[float]:
    """Return x, no number of it below zero, for which `rows` x is closest to `values`.

    Errors are squared as shares of `measured`.
    """
    scaled, wanted = rows / measured[:, None], values / measured
    best, least = [0.0] * rows.shape[1], float((wanted**2).sum())
    for count in range(1, rows.shape[1] + 1):
        for chosen in combinations(range(rows.shape[1]), count):
            found = np.linalg.lstsq(scaled[:, chosen], wanted, rcond=None)[0]
            error = float(((scaled[:, chosen] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and error < least - 1e-12:
                least, best = error, [0.0] * rows.shape[1]
                for column, value in zip(chosen, found, strict=True):
                    best[column] = float(value)
    return best


def _experience(rollouts: Sequence[Rollout], vocabulary: int) -> Experience:
    """Return scored rollouts in which every group has a gradient."""
    rng = np.random.default_rng(0)
    filled = []
    for rollout in rollouts:
        ids = rng.integers(1, vocabulary, len(rollout.response_ids)).astype(np.int32)
        prompt = np.full(len(rollout.prompt_ids), 1 + rollout.prompt_ids[0] % (vocabulary - 1))
        filled.append(
            replace(
                rollout,
                prompt_ids=prompt.astype(np.int32),
                response_ids=ids,
                behavior_logprobs=np.full(len(ids), -np.log(vocabulary), np.float32),
            )
        )
    scores = [
        Score(Status.WRONG, 0.0) if rollout.sample else Score(Status.RIGHT, 1.0)
        for rollout in filled
    ]
    return Experience(filled, scores)


def _sources(config: RunConfig, parameters: int) -> dict[str, str]:
    model = (
        f"a model of the shape of {config.model.path}, {parameters / 1e6:.1f} million parameters"
    )
    return {
        "memory_gib": "measured",
        "host_gib": "measured",
        "rates": "measured: the best of several calls",
        "rates.link": "assumed: that of memory",
        "rates.network": "assumed",
        "shares": f"measured with {model}; the engine's are in its overheads",
        "overheads": f"measured with {model}, by the project's own engine and trainer",
        "overheads.start": "assumed",
        "overheads.score": "assumed",
    }


def _as_document(raw: dict[str, Any], comments: Sequence[str] = ()) -> str:
    """Return `raw` as TOML with `comments` above it. Options that are None are left out."""
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    lines += [""] if lines else []
    lines += [_line(name, value) for name, value in raw.items() if not isinstance(value, dict)]
    for group, table in raw.items():
        if isinstance(table, dict):
            lines += ["", f"[{group}]"]
            lines += [_line(name, value) for name, value in table.items() if value is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def _line(name: str, value: Any) -> str:
    return f"{name} = {as_toml(value)}"
