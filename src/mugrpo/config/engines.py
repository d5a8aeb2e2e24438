"""The options of each engine."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from mugrpo.config.options import HARMLESS, NamedOptions, PathOrName

# Arguments of vLLM's that are the run's to set, and what its sampler knows besides a temperature.
_SET_BY_THE_RUN = (
    "model",
    "tokenizer",
    "skip_tokenizer_init",
    "dtype",
    "seed",
    "logprobs_mode",
    "tensor_parallel_size",
    "max_num_seqs",
    "gpu_memory_utilization",
    "enforce_eager",
    "disable_log_stats",
)
_OTHER_DISTRIBUTION = (
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "generation_config",
    "override_generation_config",
    "quantization",
)


class EngineOptions(NamedOptions):
    """What every engine is asked for."""

    memory_option: ClassVar[str]  # the option that decides how much memory generation takes

    canary_responses: int = Field(4, ge=0)
    """Responses whose logprobs are compared with the trainer's at each refresh; 0 turns it off."""
    canary_tolerance: float | None = Field(None, gt=0)
    """Absolute difference in logprob that the canary lets pass: in fp32 a single token's, 0.001
    where not set; in bf16, where rounding moves single ones by tenths, the mean's, 0.1."""
    canary_warning: float = Field(0.5, ge=0, le=1, json_schema_extra=HARMLESS)
    """Share of the tolerance from which the canary warns."""
    restarts: int = Field(2, ge=0, json_schema_extra=HARMLESS)
    """How often a process of the engine that died or hangs is started again, a refresh."""
    silence: float = Field(600.0, gt=0, json_schema_extra=HARMLESS)
    """Seconds without a word from a process of the engine after which it counts as hanging; "hf"
    says nothing until a batch is done."""

    @property
    def way_out_of_memory(self) -> str:
        """What to do where generation runs out of memory."""
        now = getattr(self, self.memory_option)
        return f"lower --engine.{self.memory_option} (now {now}, with --force)"


class OwnEngineOptions(EngineOptions):
    """What both engines of our own are asked for."""

    processes: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """Processes of their own, each with a copy of the model, that share a stage's shards; 0: in the
    trainer's process, with its model."""
    threads: int = Field(0, ge=0, json_schema_extra=HARMLESS)
    """CPU threads of each such process; 0: the trainer's, divided among them."""


class ContinuousOptions(OwnEngineOptions):
    """Continuous batching of a Hugging Face model."""

    memory_option = "slots"
    name: Literal["continuous"] = "continuous"
    """Which engine."""
    slots: int = Field(128, ge=1)
    """Sequences decoded together; one that ends makes room for the next at once."""
    prefill_tokens: int = Field(2048, ge=1)
    """Padded prompt tokens that go through the model together."""


class HFOptions(OwnEngineOptions):
    """A Hugging Face model in static batches: plain and slower."""

    memory_option = "batch_size"
    name: Literal["hf"] = "hf"
    """Which engine."""
    batch_size: int = Field(128, ge=1)
    """Sequences decoded together."""


class VLLMOptions(EngineOptions):
    """vLLM in processes of its own, which may have another environment (`make vllm-env`)."""

    memory_option = "max_num_seqs"
    name: Literal["vllm"] = "vllm"
    """Which engine."""
    python: PathOrName | None = None
    """The interpreter that has vllm, such as .venv-vllm/bin/python; unset: this one."""
    processes: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """Engines side by side that share a stage's shards: data parallelism. Each has the next
    `tensor_parallel` GPUs, or its share of the CPU cores."""
    tensor_parallel: int = Field(1, ge=1, json_schema_extra=HARMLESS)
    """GPUs that the model is cut over."""
    max_num_seqs: int = Field(256, ge=1)
    """Sequences decoded together."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1, json_schema_extra=HARMLESS)
    """Share of a GPU's memory that the engine takes; the trainer's model stays beside it."""
    enforce_eager: bool = Field(False, json_schema_extra=HARMLESS)
    """Start without compiling and without CUDA graphs: sooner there, then slower."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vllm.EngineArgs, such as { max_model_len = 4096 }."""

    @field_validator("arguments")
    @classmethod
    def _arguments_keep_the_distribution(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name in _OTHER_DISTRIBUTION:
                raise ValueError(
                    f"{name} changes the distribution that tokens are drawn from, and the behavior "
                    "logprobs would not be the policy's; leave it out"
                )
            if name in _SET_BY_THE_RUN:
                raise ValueError(f"{name} is set by the run's other options; leave it out")
        return arguments


class VLLMServerOptions(EngineOptions):
    """A running vLLM server, asked over HTTP for token ids and their logprobs."""

    memory_option = "concurrency"
    name: Literal["vllm_server"] = "vllm_server"
    """Which engine."""
    urls: tuple[str, ...] = Field(("http://localhost:8000",), min_length=1)
    """Where it listens; several servers share a stage's shards."""
    hand_over: tuple[str, ...] = ()
    """A command that is run at each refresh, for each server with its URL and the folder of the
    weights behind it, and that returns once the server samples from them."""
    concurrency: int = Field(256, ge=1, json_schema_extra=HARMLESS)
    """Requests under way at once, a server."""
