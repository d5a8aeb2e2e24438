"""The engine "vllm_server": a vLLM that runs already, asked over HTTP (README.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from mugrpo.config.base import EngineOptions, Extension

if TYPE_CHECKING:
    from mugrpo.config.training import LoRAOptions


class VLLMServerOptions(EngineOptions):
    """A running vLLM server, asked over HTTP for token ids and their logprobs."""

    name: Literal["vllm_server"] = "vllm_server"
    factory: ClassVar[str] = "mugrpo.extensions.vllm_server.engine:server_engines"
    reaches = ("urls",)
    urls: tuple[str, ...] = Field(("http://localhost:8000",), min_length=1)
    """The servers' URLs. Several servers share a stage's shards. A user with a password in a URL is
    sent to the server; config.json has them too."""
    slots: int = Field(256, ge=1)
    """Requests in flight per server."""

    @property
    def loading_remedy(self) -> str:
        return self.memory_remedy

    def faults(self, *, temperatures: Sequence[float], lora: LoRAOptions) -> Iterator[str]:
        from mugrpo.config.engines import vllm_faults  # which reads the registry of extensions

        yield from vllm_faults(temperatures, lora)
        if lora.rank:
            yield "lora.rank needs an engine that the run starts: 'vllm', 'continuous' or 'hf'"


extension = Extension(engines=(VLLMServerOptions,))
