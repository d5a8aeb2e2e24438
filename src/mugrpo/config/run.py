"""Every option of a run, over its preset: one field, one owner, one description under it.

Presets are methods by name, with the options that a config leaves unset: a TOML file each. No torch
here.
"""

from __future__ import annotations

import copy
import datetime
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mugrpo.config import engines, objectives, tasks, training
from mugrpo.config.base import (
    FIXED,
    HARMLESS,
    Options,
    PathOrName,
    TurnOptions,
    WorkerOptions,
    absolute,
    tuples,
    turn_options,
)
from mugrpo.config.rewards import RewardOptions

_FOLDER = Path(__file__).parent / "presets"

PRESETS: dict[str, dict[str, Any]] = {
    file.stem: tuples(tomllib.loads(file.read_text())) for file in sorted(_FOLDER.glob("*.toml"))
}


def preset_summary(name: str) -> str:
    """Return the first line of a preset's file."""
    return (_FOLDER / f"{name}.toml").read_text().split("\n")[0].lstrip("# ")


# The parts of a config that are the method; the rest says how much is trained, on what and where.
METHOD = (
    *("objective", "advantage", "veto", "sequence_mask", "correction", "reference", "reduction"),
    "sampling",
)


def beneath(preset: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """Return `raw` laid over `preset`, option by option.

    A group that `raw` gives another name takes nothing from `preset`.
    """
    merged = copy.deepcopy({**preset, **raw})
    for name in preset.keys() & raw.keys():
        below, above = preset[name], raw[name]
        tables = isinstance(below, dict) and isinstance(above, dict)
        if tables and above.get("name", below.get("name")) == below.get("name"):
            merged[name] = copy.deepcopy({**below, **above})
    return merged


EMBEDDED_MODELS = ("chain", "letters", "carry")
NAMED_MODELS = (*EMBEDDED_MODELS, "smollm2")
# Defaults for all models but the embedded ones. studies/pretrained_rate.toml measures the rate. TRL
# and verl have 512 tokens, too: worked answers take 100 to 300, reasoning models need thousands.
PRETRAINED_LR, PRETRAINED_LONGEST = 3e-6, 512

# What a run decides when it begins if its config does not. It stays so on another machine.
DECIDED = (("model", "precision"), ("prompt", "date"), ("optimizer", "micro_batch_tokens"))
OPEN = ("auto", None)  # values that leave it to that


class ModelOptions(Options):
    """The policy's model and tokenizer."""

    path: str = Field("chain", json_schema_extra=HARMLESS)
    """A directory in Hugging Face form, a hub id, "chain", "letters" or "carry" for that task's
    embedded model, or "smollm2" once `make smollm2` has made it."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of forward and backward passes. Weights and optimizer stay in fp32. "auto" takes
    bf16 on a GPU that computes in it, which the run says, and fp32 elsewhere. What a run began with
    stays, also on another machine."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    eos_token: str | None = None
    """The end-of-sequence token, for a tokenizer that names none."""

    @field_validator("path")
    @classmethod
    def _absolute_unless_a_name(cls, path: str) -> str:
        return path if path in NAMED_MODELS else absolute(path)


class PromptOptions(Options):
    """How a problem becomes token ids."""

    form: Literal["plain", "chat"] = "plain"
    """Use the problem's text as it is, or as one user message in the chat template."""
    chat_template: PathOrName | None = None
    """A Jinja file to use as the chat template instead of the tokenizer's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables that the chat template gets, such as { enable_thinking = false } for Qwen3. A
    column of this name has those of a problem."""
    date: str | None = None
    """Today, for a chat template that asks (strftime_now), as 2026-11-27. If unset, it is the day
    on which the run began."""
    allow_missing: bool = False
    """Train although the chat template leaves messages out of prompts."""
    overlong: Literal["error", "drop", "truncate"] = "error"
    """If a prompt leaves no room for max_new_tokens in the model's context, refuse it, leave its
    problem out, or use only its last tokens."""

    @field_validator("date", mode="before")
    @classmethod
    def _is_a_day(cls, day: Any) -> Any:
        if isinstance(day, str):
            datetime.date.fromisoformat(day)  # its error says what is wrong
        return f"{day}" if isinstance(day, datetime.date) else day  # TOML has dates

    @model_validator(mode="after")
    def _template_is_used(self) -> Self:
        for name in ("chat_template", "chat_template_kwargs", "date", "allow_missing"):
            if getattr(self, name) and self.form != "chat":
                raise ValueError(f"{name} has no effect with form = 'plain'; use form = 'chat'")
        return self


class RolloutOptions(Options):
    """Sampling, and how rollouts are stored."""

    temperature: float = Field(1.0, ge=1e-3, le=10, json_schema_extra=FIXED)
    """Sampling temperature. Every logprob of the run is log_softmax(logits / temperature)."""
    max_new_tokens: int = Field(48, ge=1)
    """Longest response in tokens, including its end-of-sequence token. Its default is 512 for every
    model.path but those of embedded tasks."""
    shard_rollouts: int = Field(2048, ge=1, json_schema_extra=FIXED)
    """Rollouts per shard, the unit that is published and resumed; rounded up to whole groups."""


if TYPE_CHECKING:
    Environment = TurnOptions
else:
    Environment = turn_options()


class RunConfig(Options):
    """The resolved config of a run: everything that decides its numbers."""

    preset: str = Field("tapered-grpo", json_schema_extra={"enum": [*PRESETS]})
    """The method, which sets the options that the config leaves unset; `mugrpo objectives` lists
    all methods."""
    seed: int = Field(0, ge=0, lt=2**63, json_schema_extra=FIXED)
    """Decides the order of problems and every sampled token."""
    model: ModelOptions = ModelOptions()
    lora: training.LoRAOptions = training.LoRAOptions()
    task: tasks.Task = tasks.ChainOptions()
    """The problems, and how responses to them are judged."""
    prompt: PromptOptions = PromptOptions()
    environment: Environment = Environment()
    schedule: training.ScheduleOptions = training.ScheduleOptions()
    sampling: training.SamplingOptions = training.SamplingOptions()
    """Which of the sampled groups are trained on."""
    rollouts: RolloutOptions = RolloutOptions()
    engine: engines.AnyEngine = engines.ContinuousOptions()
    """What samples the responses."""
    rewards: RewardOptions = RewardOptions()
    workers: WorkerOptions = WorkerOptions()
    advantage: objectives.Advantage = objectives.GroupAdvantage()
    """How rewards become advantages."""
    objective: objectives.Objective = objectives.GRPOOptions()
    """The loss of a token, computed from ratios and advantages."""
    veto: objectives.Veto = objectives.Off()
    """Tokens that a trigger token removes from a response with a negative advantage (Mu-GRPO)."""
    sequence_mask: objectives.SequenceMask = objectives.Off()
    """Whole responses that are left out."""
    correction: objectives.Correction = objectives.Off()
    """A weight that corrects for an engine that disagrees with the trainer: w = trainer's /
    engine's probability of a token under the behavior policy."""
    reference: objectives.Reference = objectives.Off()
    """A penalty on moving away from a reference policy."""
    reduction: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """Divide the summed loss by the update's response tokens ("token_mean"); or divide each
    response's loss by its length and their sum by the number of responses ("sequence_mean"); or
    divide by responses x max_new_tokens ("constant")."""
    optimizer: training.OptimizerOptions = training.OptimizerOptions()
    distributed: training.DistributedOptions = training.DistributedOptions()
    backend: engines.Backend = engines.LocalBackend()
    """What starts engines and update processes."""
    overlap: bool = Field(False, json_schema_extra=HARMLESS)
    """Train on a stage's first shards while its later ones are generated. The weights are the same,
    but the run is faster if the engine has a machine, GPUs or cores of its own. A stage needs
    several shards for this (rollouts.shard_rollouts)."""
    checkpoint: training.CheckpointOptions = training.CheckpointOptions()
    evaluation: training.EvaluationOptions = training.EvaluationOptions()
    sinks: training.SinkOptions = training.SinkOptions()

    @classmethod
    def over_preset(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Return `raw` over its preset. A group that neither names gets the default name.

        If neither names a learning rate or a longest response, they are those of the kind of model.
        """
        fields = cls.model_fields
        names: dict[str, Any] = {
            group: {"name": fields[group].default.name} for group in cls.choices()
        }
        preset = PRESETS.get(str(raw.get("preset", fields["preset"].default)), {})
        model = raw.get("model", {})
        path = (
            model.get("path", "chain")
            if isinstance(model, dict)
            else getattr(model, "path", "chain")
        )
        kind: dict[str, Any] = {}
        if path not in EMBEDDED_MODELS:
            kind = {
                "optimizer": {"lr": PRETRAINED_LR},
                "rollouts": {"max_new_tokens": PRETRAINED_LONGEST},
            }
        return beneath(beneath(names, kind), beneath(preset, raw))

    @model_validator(mode="before")
    @classmethod
    def _lies_over_its_preset(cls, raw: Any) -> Any:
        return cls.over_preset(raw) if isinstance(raw, dict) else raw

    @field_validator("preset", mode="before")
    @classmethod
    def _preset_is_known(cls, name: Any) -> Any:
        if name not in list(PRESETS):
            raise ValueError(f"no such preset; choose among {', '.join(PRESETS)}")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if found := list(self._faults()):
            raise ValueError("; ".join(found))
        return self

    def _faults(self) -> Iterator[str]:
        """Yield a message for each combination of options that does not work, with the remedy."""
        yield from self.engine.faults(
            temperatures=(self.rollouts.temperature, self.evaluation.temperature),
            lora=self.lora,
        )
        yield from self.environment.faults(self.prompt.form, tasks.asks_environment(self.task))
        if self.reference_period and self.checkpoint.every:
            yield (
                "reference.period takes the reference from the checkpoint at a stage's end, so it "
                "needs checkpoint.every = 0"
            )
        alone = self.lora.rank and self.distributed.processes == 1
        if self.lora.quantize and not (alone and isinstance(self.engine, engines.OwnEngineOptions)):
            yield "lora.quantize needs lora.rank = 16 or so, one process, and mugrpo's own engine"
        names = [use.label for use in self.evaluation.suites]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"evaluation.suites has {min(twice)} twice; results are kept by name"
        if self.overlap and self.engine_in_process:
            yield (
                "overlap = true needs an engine outside this process (engine.processes = 1 or "
                "more, or vLLM)"
            )
        if self.overlap and self.checkpoint.every:
            yield "overlap = true needs checkpoint.every = 0: a checkpoint at each stage's end"
        if self.overlap and self.needs and self.distributed.processes > 1:
            yield (
                "overlap = true needs distributed.processes = 1 with an objective or reference "
                "that needs logprobs of other policies"
            )
        if self.proximal_period > 1 and self.distributed.processes > 1:
            yield "objective.proximal_period > 1 needs distributed.processes = 1"

    @property
    def method(self) -> str:
        """Return the name of what is trained: the preset, and what replaces parts of it."""
        return method_of(self.model_dump(mode="json"))

    def checkpoint_due(self, update: int) -> bool:
        """Return whether the policy after `update` updates is saved, however long they took."""
        every, schedule = self.checkpoint.every, self.schedule
        if every:
            return update % every == 0 or update == schedule.total_updates
        return update == schedule.first_update(schedule.stage_of(update))

    def shards_of(self, stage: int) -> list[int]:
        """Return the number of groups of each shard of a stage."""
        needed = self.schedule.batches(stage) * self.schedule.problems_per_update
        groups = math.ceil(self.sampling.surplus * needed)
        size = math.ceil(self.rollouts.shard_rollouts / self.schedule.group_size)
        return [min(size, groups - first) for first in range(0, groups, size)]

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the names of the logprobs that the parts of the loss need beside the rollouts."""
        objective = self.objective.needs
        if self.proximal_period == 1:  # then the proximal policy is the policy itself
            objective = tuple(name for name in objective if name != "proximal_logprobs")
        return (*objective, *self.correction.needs, *self.reference.needs)

    @property
    def engine_in_process(self) -> bool:
        """Return whether the engine runs in the trainer's process, with the trainer's model."""
        own = isinstance(self.engine, engines.OwnEngineOptions) and self.engine.processes == 0
        return own and not self.backend.clustered

    @property
    def engine_shares_model(self) -> bool:
        """Return whether the engine samples from the very model that trains."""
        return self.engine_in_process and self.distributed.processes == 1

    @property
    def shares_gpus(self) -> bool:
        """Return whether processes of engines and those of updates use the same GPUs in turn.

        An engine in the run's own process shares its GPU with a rank, if there are ranks.
        """
        elsewhere = self.overlap or self.backend.clustered or self.engine.runs_already
        return not elsewhere and not self.engine_shares_model

    @property
    def proximal_period(self) -> int:
        """Return for how many updates a proximal policy stays the same; 1 if there is none."""
        chosen = self.objective
        return chosen.proximal_period if isinstance(chosen, objectives.ProximalOptions) else 1

    @property
    def reference_period(self) -> int:
        """Return after how many stages the policy becomes the reference; 0 for never."""
        return self.reference.period if isinstance(self.reference, objectives.KLReference) else 0

    @property
    def own_files(self) -> dict[str, Path]:
        """Return option -> file of what the user has written: an objective, advantages."""
        parts = {"objective": self.objective, "advantage": self.advantage}
        own = {name: part for name, part in parts.items() if isinstance(part, objectives.OfFile)}
        return {f"{name}.path": Path(part.path) for name, part in own.items()}


def method_of(resolved: dict[str, Any]) -> str:
    """Return the name of the method of a resolved config, such as "dapo with objective topr"."""
    name = str(resolved["preset"])
    if name not in PRESETS:
        return name
    pure = RunConfig.model_validate({"preset": name}).model_dump(mode="json")
    parts: list[str] = []
    for group in METHOD:
        theirs, own = pure[group], resolved.get(group)
        if not isinstance(own, dict):
            parts += [f"{group} {own}"] if own != theirs else []
        elif own.get("name") != theirs.get("name") or "path" in own:
            parts.append(f"{group} {Path(own['path']).name if 'path' in own else own['name']}")
        else:
            differing = {key: one for key, one in own.items() if one != theirs.get(key)}
            parts += [f"{group}.{key} = {one}" for key, one in differing.items()]
    return f"{name} with {' and '.join(parts)}" if parts else name
