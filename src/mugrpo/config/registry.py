"""Option groups chosen by name: `[task] name = "chain"` selects ChainOptions, and so on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from mugrpo.config import backends, parts, stages
from mugrpo.config import objectives as o
from mugrpo.config.engines import (
    ContinuousOptions,
    EngineOptions,
    HFOptions,
    VLLMOptions,
    VLLMServerOptions,
)
from mugrpo.config.options import NamedOptions
from mugrpo.config.tasks import ChainOptions, DatasetOptions, LettersOptions

Group = dict[str, type[NamedOptions]]


def _by_name(*options: type[NamedOptions]) -> Group:
    return {group.model_fields["name"].default: group for group in options}


CHOICES: dict[str, Group] = {
    "task": _by_name(ChainOptions, LettersOptions, DatasetOptions),
    "engine": _by_name(ContinuousOptions, HFOptions, VLLMOptions, VLLMServerOptions),
    "backend": _by_name(backends.LocalBackend, backends.RayBackend),
    "sampling": _by_name(stages.EveryGroup, stages.DynamicSampling),
    "stage_until": _by_name(stages.AllUpdates, stages.TokenVariation, stages.SequenceVariation),
    "advantage": _by_name(o.GroupAdvantage, o.ShiftedAdvantage, o.AsymREAdvantage),
    "objective": _by_name(
        o.GRPOOptions,
        o.KLSurrogateOptions,
        o.CISPOOptions,
        o.M2POOptions,
        o.M2POReleasedOptions,
        o.DecoupledPPOOptions,
        o.TOPROptions,
        o.MinPROOptions,
        o.PNPOOptions,
        o.ReinforceOptions,
        o.FileOptions,
    ),
    "veto": _by_name(parts.NoVeto, parts.NegativeAdvantageVeto),
    "sequence_mask": _by_name(parts.NoSequenceMask, parts.OffPolicySequenceMask),
    "correction": _by_name(parts.NoCorrection, parts.TruncatedCorrection, parts.MaskedCorrection),
    "reference": _by_name(parts.NoReference, parts.KLReference),
    "step": _by_name(parts.PlainStep, parts.ESSStep),
}


def _chosen(group: str, default: str) -> BeforeValidator:
    def choose(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name, options = value.get("name", default), CHOICES[group]
        if not isinstance(name, str) or name not in options:
            raise ValueError(f"no such name {name!r}: choose among {', '.join(sorted(options))}")
        return options[name].model_validate(value)

    return BeforeValidator(choose)


TaskChoice = Annotated[SerializeAsAny[NamedOptions], _chosen("task", "chain")]
EngineChoice = Annotated[SerializeAsAny[EngineOptions], _chosen("engine", "continuous")]
BackendChoice = Annotated[SerializeAsAny[backends.BackendOptions], _chosen("backend", "local")]
SamplingChoice = Annotated[SerializeAsAny[stages.SamplingOptions], _chosen("sampling", "every")]
StageUntilChoice = Annotated[
    SerializeAsAny[stages.StageUntilOptions], _chosen("stage_until", "all_updates")
]
AdvantageChoice = Annotated[SerializeAsAny[o.AdvantageOptions], _chosen("advantage", "group")]
ObjectiveChoice = Annotated[SerializeAsAny[o.ObjectiveOptions], _chosen("objective", "grpo")]
VetoChoice = Annotated[SerializeAsAny[parts.VetoOptions], _chosen("veto", "negative_advantage")]
SequenceMaskChoice = Annotated[
    SerializeAsAny[parts.SequenceMaskOptions], _chosen("sequence_mask", "off")
]
CorrectionChoice = Annotated[SerializeAsAny[parts.CorrectionOptions], _chosen("correction", "off")]
ReferenceChoice = Annotated[SerializeAsAny[parts.ReferenceOptions], _chosen("reference", "off")]
StepChoice = Annotated[SerializeAsAny[parts.StepOptions], _chosen("step", "plain")]
