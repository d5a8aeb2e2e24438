"""The task "reasoning-gym": problems that the package of this name generates and scores."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from mugrpo.config.base import TaskOptions, Template, WorkerOptions
from mugrpo.config.extensions import Extension
from mugrpo.config.options import LISTED


class ReasoningGymOptions(TaskOptions):
    """Problems that reasoning-gym generates, judged by its own score_answer."""

    name: Literal["reasoning-gym"] = "reasoning-gym"
    factory: ClassVar[str] = "mugrpo.extensions.gym.task:ReasoningGym"
    packages: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    dataset: str
    """A data set of reasoning-gym, such as "chain_sum"."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The data set's own parameters, such as {min_terms = 2}, which decide how hard it is."""
    train_problems: int = Field(4096, ge=1, le=LISTED)
    """Distinct problems to train on."""
    eval_problems: int = Field(256, ge=1, le=LISTED)
    """Distinct held-out problems: one in eight prompts, by a hash."""
    seed: int = Field(0, ge=0)
    """Chooses the problems, independently of the run's seed."""
    answer: Literal["tags", "last_line", "last_word", "all"] = "tags"
    """What of a response is judged: the text in its last <answer></answer>, its last line, its last
    word without a period, or all of it."""
    system_prompt: str | None = None
    """A system message for every conversation without one. It needs prompt.form = "chat"."""
    prompt_template: Template = "{prompt}"
    """The text of the last user message. {prompt} stands for the text in the data."""
    right_at: float = 1.0
    """If only functions judge, a response with at least this reward counts as right."""
    workers: WorkerOptions = WorkerOptions()

    @field_validator("config")
    @classmethod
    def _has_own_options(cls, config: dict[str, Any]) -> dict[str, Any]:
        if named := [name for name in ("seed", "size") if name in config]:
            other = {"seed": "task.seed", "size": "task.train_problems and task.eval_problems"}
            raise ValueError(f"{named[0]} is set by {other[named[0]]}")
        return config


extension = Extension(tasks=(ReasoningGymOptions,))
