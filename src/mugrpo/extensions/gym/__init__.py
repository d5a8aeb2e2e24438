"""The task "reasoning-gym": problems that the package of this name generates and scores."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from mugrpo.config.base import Extension, GeneratedOptions, TextOptions


class ReasoningGymOptions(GeneratedOptions, TextOptions):
    """Problems that reasoning-gym generates, judged by its own score_answer."""

    name: Literal["reasoning-gym"] = "reasoning-gym"
    factory: ClassVar[str] = "mugrpo.extensions.gym.task:ReasoningGym"
    packages: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    config: dict[str, Any] = Field(default_factory=dict)
    """The data set's own parameters, such as {min_terms = 2}, which decide how hard it is."""
    answer: Literal["tags", "last_line", "last_word", "all"] = "tags"
    """What of a response is judged: the text in its last <answer></answer>, its last line, its last
    word without a period, or all of it."""

    @field_validator("config")
    @classmethod
    def _has_own_options(cls, config: dict[str, Any]) -> dict[str, Any]:
        if named := {"seed", "size"} & config.keys():
            raise ValueError(f"{min(named)} is not for the config; mugrpo sets it")
        return config


extension = Extension(tasks=(ReasoningGymOptions,))
