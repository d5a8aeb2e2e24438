"""Every option of a run: one field, one owner, one description under it. No torch here."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mugrpo.config.backends import LocalBackend
from mugrpo.config.distributed import DistributedOptions
from mugrpo.config.engines import ContinuousOptions, OwnEngineOptions
from mugrpo.config.kept import (
    CheckpointOptions,
    EvaluationOptions,
    SampleOptions,
    SinkOptions,
)
from mugrpo.config.objectives import GroupAdvantage, GRPOOptions, Reduction
from mugrpo.config.optimizer import OptimizerOptions
from mugrpo.config.options import FIXED, HARMLESS, Options, PathOrName, absolute
from mugrpo.config.parts import NoCorrection, NoReference, NoSequenceMask, NoVeto, PlainStep
from mugrpo.config.preset import PRESETS, beneath
from mugrpo.config.registry import (
    AdvantageChoice,
    BackendChoice,
    CorrectionChoice,
    EngineChoice,
    ObjectiveChoice,
    ReferenceChoice,
    SamplingChoice,
    SequenceMaskChoice,
    StageUntilChoice,
    StepChoice,
    TaskChoice,
    VetoChoice,
)
from mugrpo.config.stages import AllUpdates, EveryGroup
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Status

NAMED_MODELS = ("chain", "letters", "smollm2")

# What makes the loss and the step of an update out of scored rollouts.
UPDATE_PARTS = (
    "advantage",
    "objective",
    "veto",
    "sequence_mask",
    "correction",
    "reference",
    "step",
    "reduction",
)


class ModelOptions(Options):
    """The policy's model and tokenizer."""

    path: str = "chain"
    """A directory in Hugging Face form, a hub id, "chain" or "letters" for that task's embedded
    model, or "smollm2" once `mugrpo convert smollm2` has made it."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of forward and backward passes; weights and optimizer stay in fp32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; "auto" takes the GPU where there is one."""
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
    """The problem's text as it is, or one user message through the chat template."""
    chat_template: PathOrName | None = None
    """A Jinja file to use as the chat template instead of the tokenizer's own."""
    overlong: Literal["error", "drop", "truncate"] = "error"
    """A prompt that leaves no room for max_new_tokens in the model's context is refused, its
    problem is left out, or only its last tokens are used."""

    @model_validator(mode="after")
    def _template_is_used(self) -> Self:
        if self.chat_template is not None and self.form != "chat":
            raise ValueError("a chat_template has no effect with form = 'plain'; use form = 'chat'")
        return self


class ScheduleOptions(Options):
    """What is generated when, and how often it is optimized on."""

    stages: int = Field(16, ge=1)
    """Refreshes: in each, the engine takes the newest weights and generates once. The run's updates
    are this x batches x passes, also where `stage_until` ends stages early."""
    batches_per_stage: int = Field(16, ge=1, json_schema_extra=FIXED)
    """Batches of rollouts generated at a refresh."""
    passes_per_batch: int = Field(1, ge=1, json_schema_extra=FIXED)
    """Updates made on a batch, one after another."""
    problems_per_update: int = Field(16, ge=1, json_schema_extra=FIXED)
    """Problems, that is groups, in a batch."""
    group_size: int = Field(8, ge=2, json_schema_extra=FIXED)
    """Responses to a problem."""

    @property
    def updates_per_stage(self) -> int:
        """The literature's mu: updates per refresh."""
        return self.batches_per_stage * self.passes_per_batch

    @property
    def total_updates(self) -> int:
        return self.stages * self.updates_per_stage

    @property
    def groups_per_stage(self) -> int:
        return self.batches_per_stage * self.problems_per_update

    @property
    def rollouts_per_stage(self) -> int:
        return self.groups_per_stage * self.group_size

    @property
    def rollouts_per_update(self) -> int:
        return self.problems_per_update * self.group_size


class RolloutOptions(Options):
    """Sampling, and how rollouts are laid on disk."""

    temperature: float = Field(1.0, ge=1e-3, le=10, json_schema_extra=FIXED)
    """Sampling temperature; every logprob of the run is of log_softmax(logits / temperature)."""
    max_new_tokens: int = Field(48, ge=1)
    """Longest response in tokens, its end-of-sequence token included."""
    shard_rollouts: int = Field(2048, ge=1, json_schema_extra=FIXED)
    """Rollouts in a shard, the unit that is published and resumed; whole groups, rounded up."""


class RewardOptions(Options):
    """What scores mean to the optimizer."""

    truncated: Literal["zero", "masked", "scored"] = "zero"
    """A truncated response gets reward 0 unseen, is left out of its group and of the loss, or is
    judged like any other."""
    overlong_buffer: float = Field(0.0, ge=0, le=1)
    """The last share of max_new_tokens over which a longer and longer response loses 0 to 1 of its
    reward (DAPO's soft overlong punishment); 0: none does."""
    failure_limit: float = Field(0.1, ge=0, le=1, json_schema_extra=HARMLESS)
    """Stop where a larger share of a shard's responses could not be judged (errors, timeouts)."""

    def counts(self, status: Status) -> bool:
        """Whether a response takes part in its group's statistics and in the loss."""
        return status.rewarded and not (status is Status.TRUNCATED and self.truncated == "masked")


class RunConfig(Options):
    """A run, resolved: everything that decides its numbers."""

    preset: str = "mu-grpo"
    """A method by name, which sets what this file does not; `mugrpo objectives` lists them."""
    seed: int = Field(0, ge=0, lt=2**63, json_schema_extra=FIXED)
    """Decides the order of problems and every sampled token."""
    model: ModelOptions = ModelOptions()
    task: TaskChoice = ChainOptions()
    prompt: PromptOptions = PromptOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    stage_until: StageUntilChoice = AllUpdates()
    sampling: SamplingChoice = EveryGroup()
    rollouts: RolloutOptions = RolloutOptions()
    engine: EngineChoice = ContinuousOptions()
    rewards: RewardOptions = RewardOptions()
    advantage: AdvantageChoice = GroupAdvantage()
    objective: ObjectiveChoice = GRPOOptions()
    veto: VetoChoice = NoVeto()
    sequence_mask: SequenceMaskChoice = NoSequenceMask()
    correction: CorrectionChoice = NoCorrection()
    reference: ReferenceChoice = NoReference()
    step: StepChoice = PlainStep()
    reduction: Reduction = "token_mean"
    """Divide the summed loss by the update's response tokens; or each response's by its length and
    the sum by the responses; or by responses x max_new_tokens."""
    optimizer: OptimizerOptions = OptimizerOptions()
    distributed: DistributedOptions = DistributedOptions()
    backend: BackendChoice = LocalBackend()
    overlap: bool = Field(False, json_schema_extra=HARMLESS)
    """Train on a stage's first shards while its later ones are generated: the same weights, sooner
    where the engine has a machine, GPUs or cores of its own. A stage wants several shards
    (rollouts.shard_rollouts)."""
    checkpoint: CheckpointOptions = CheckpointOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    samples: SampleOptions = SampleOptions()
    sinks: SinkOptions = SinkOptions()

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        name = raw.get("preset", cls.model_fields["preset"].default)
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset = {name!r}: no preset; choose among {', '.join(PRESETS)}")
        return beneath(PRESETS[name], raw)

    @model_validator(mode="after")
    def _reference_is_kept(self) -> Self:
        if getattr(self.reference, "period", 0) and not self.checkpoint.stage_end:
            raise ValueError(
                "reference.period makes the policy of a stage's end the reference, which needs "
                "checkpoint.stage_end"
            )
        return self

    @model_validator(mode="after")
    def _vllm_takes_the_temperature(self) -> Self:
        for chosen in (self.rollouts.temperature, self.evaluation.temperature):
            if self.engine.name.startswith("vllm") and not 0.01 <= chosen <= 2:
                raise ValueError(f"vLLM samples at temperatures from 0.01 to 2, not at {chosen:g}")
        return self

    @model_validator(mode="after")
    def _ranks_have_what_they_need(self) -> Self:
        if self.distributed.processes > 1 and getattr(self.objective, "proximal_period", 1) > 1:
            raise ValueError("objective.proximal_period > 1 wants distributed.processes = 1")
        return self

    @model_validator(mode="after")
    def _overlap_has_what_it_needs(self) -> Self:
        lacking = [
            text
            for text, there in (
                (
                    "engines of their own (engine.processes = 1 or more, or vLLM)",
                    not self.engine_in_process,
                ),
                ("sampling.name = 'every'", self.sampling.name == "every"),
                ("checkpoint.stage_end", self.checkpoint.stage_end),
                (
                    "distributed.processes = 1 with an objective or reference that needs logprobs "
                    "of other policies",
                    self.distributed.processes == 1 or not self.needs,
                ),
            )
            if not there
        ]
        if self.overlap and lacking:
            raise ValueError(f"overlap = true wants {lacking[0]}")
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        """Logprobs that the parts of the objective want stored beside the rollouts."""
        parts = (self.objective, self.correction, self.reference)
        return tuple(name for part in parts for name in part.needs)

    @property
    def engine_in_process(self) -> bool:
        """Whether the engine samples in the trainer's process, with its model."""
        own = isinstance(self.engine, OwnEngineOptions) and self.engine.processes == 0
        return own and self.backend.name != "ray"

    @property
    def canary_tolerance(self) -> float:
        """The engine's own, or what rounding explains: bf16 keeps 8 bits of a logit."""
        by_precision = {"fp32": 1e-3, "bf16": 0.1}[self.model.precision]
        return self.engine.canary_tolerance or by_precision
