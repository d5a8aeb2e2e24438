"""Benchmark suites: which problems, how they are asked, sampled and judged. One TOML file each.

A suite of your own is a file in the same form. A file may also be a group, which names others:

    title = "What we report"
    suites = ["aime24", "math500", "mine.toml"]
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from mugrpo.config.base import Options
from mugrpo.config.load import changes, read_toml, validated
from mugrpo.config.run import PromptOptions
from mugrpo.config.tasks import DatasetOptions
from mugrpo.config.training import SuiteUse, suite_file
from mugrpo.disk.errors import UsageError, absent

_FOLDER = Path(__file__).parent / "suites"

# Options of a task that divide or limit the problems of a run.
_OF_RUNS = ("eval_data", "eval_split", "eval_share", "eval_problems")


class SuiteOptions(Options):
    """A benchmark: its problems, and how models are asked, sampled and judged."""

    title: str = Field(min_length=1)
    """The benchmark's name for readers."""
    task: DatasetOptions
    """The problems, the text around each of them, and how responses are judged."""
    prompt: PromptOptions = PromptOptions(form="chat")
    """How a problem becomes token ids."""
    problems: int | None = Field(None, ge=1)
    """Ask only N problems, those with the lowest hashes. If unset, all."""
    samples: int = Field(1, ge=1)
    """Responses per problem."""
    max_new_tokens: int = Field(ge=1)
    """Longest response in tokens, including its end-of-sequence token."""
    temperature: float = Field(1.0, ge=1e-3, le=10)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample only from the most probable tokens that together have at least this probability."""
    conventions: dict[str, str] = Field(default_factory=dict)
    """Option -> where its value comes from: the paper or harness, and its address."""

    @model_validator(mode="before")
    @classmethod
    def _beneath(cls, raw: Any) -> Any:
        """Return `raw` with prompts in the chat form, unless its table says otherwise."""
        if not isinstance(raw, dict) or not isinstance(prompt := raw.get("prompt", {}), dict):
            return raw
        return {"task": {}, **raw, "prompt": {"form": "chat", **prompt}}

    @model_validator(mode="after")
    def _says_what_is_right(self) -> Self:
        if not any(reward.decides for reward in self.task.rewards):
            raise ValueError(
                "a suite measures accuracy, and none of its task.rewards says what is right; give "
                "verdict = true to the one that does"
            )
        return self

    @model_validator(mode="after")
    def _all_problems_are_asked(self) -> Self:
        fields = DatasetOptions.model_fields
        named = [name for name in _OF_RUNS if getattr(self.task, name) != fields[name].default]
        if named:
            raise ValueError(
                f"task.{named[0]} divides the problems of a run, and a suite asks all of them; "
                "leave it out, and name part of them with task.split or `problems`"
            )
        return self


class GroupOptions(Options):
    """Several suites under one name."""

    title: str = Field(min_length=1)
    """The group's name for readers."""
    suites: tuple[str, ...] = Field(min_length=1)
    """Names of suites or groups, and files beside this one."""


@dataclass(frozen=True)
class Suite:
    """A suite with the name that its results have, which is its file's."""

    name: str
    options: SuiteOptions
    file: Path

    def over(self, raw: Mapping[str, Any]) -> Suite:
        """Return this suite with raw values of options over its own.

        What it says of an option's source is left out if the option has another value now. Raises
        UsageError if a value is out of bounds.
        """
        before = self.options.model_dump()
        options = validated(SuiteOptions, {**before, **raw}, f"suite {self.name}")
        changed = {name.rpartition(".")[2] for name, *_ in changes(before, options.model_dump())}
        kept = {name: why for name, why in options.conventions.items() if name not in changed}
        return dataclasses.replace(self, options=options.model_copy(update={"conventions": kept}))


def packaged() -> list[str]:
    """Return the names of the suites and groups that come with mugrpo."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_suites(words: str) -> list[Suite]:
    """Return the suites that `words` names, with commas between them. Raises as `named_suites`."""
    return named_suites([word for word in words.split(",") if word.strip()])


def suites_in(use: SuiteUse) -> list[Suite]:
    """Return the suites that an entry of evaluation.suites names. Raises as `named_suites`."""
    return named_suites([use.name])


def named_suites(named: Sequence[str]) -> list[Suite]:
    """Return the suites that have these names, or are in these files.

    Groups are expanded. A suite that is named twice counts once. Raises UsageError if a name or
    file does not exist, if a file is not a valid suite, or if two files have the same name.
    """
    if not named:
        raise UsageError(f"no suite is named; choose among {', '.join(packaged())}, or name a file")
    suites: dict[str, Suite] = {}
    for file, raw in (found for word in named for found in _found(word, Path())):
        if (same := suites.get(file.stem)) and same.file != file:
            raise UsageError(
                f"two suites are called {file.stem}, {same.file} and {file}; rename one file, "
                "because results are kept by name"
            )
        suites[file.stem] = Suite(file.stem, validated(SuiteOptions, raw, str(file)), file)
    return list(suites.values())


def _found(
    word: str, folder: Path, within: tuple[Path, ...] = ()
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the file and the raw values of each suite that `word` names, seen from `folder`."""
    file = suite_file(word, folder) or _packaged(word.strip())
    if file in within:
        raise UsageError(f"{file} is a group that holds itself; leave it out of its suites")
    if not file.is_file():
        raise UsageError(absent(file, "suite file"))
    raw = read_toml(file)
    if "suites" not in raw:
        yield file, raw
        return
    for member in validated(GroupOptions, raw, str(file)).suites:
        yield from _found(member, file.parent, (*within, file))


def _packaged(name: str) -> Path:
    """Return the file of a suite that comes with mugrpo."""
    known = packaged()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? There are" if near else "choose among"
        raise UsageError(
            f"there is no suite {name!r}; {hint} {', '.join(known)}, and a suite of your own is "
            "named by its file, such as mine.toml"
        )
    return _FOLDER / f"{name}.toml"
