"""Problems that reasoning-gym generates (arXiv 2505.24760), judged by its own scores."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.rewards import FunctionOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Problem, Score
from mugrpo.extensions.gym import ReasoningGymOptions
from mugrpo.rewards.grading import Grader
from mugrpo.tasks.embedded import held_out

_REWARD = FunctionOptions(function="mugrpo.extensions.gym.scores:score_answer")
_DRAWS = 4  # problems generated at most, as a multiple of those that one side needs


class ReasoningGym:
    """A task with the problems of one data set of reasoning-gym, always the same ones.

    They are generated at the first use, which raises UsageError if the package is not installed,
    the data set does not exist, its config is refused, or it has too few different problems.
    """

    def __init__(self, options: ReasoningGymOptions) -> None:
        self.options = options
        self.grader = Grader((_REWARD,), options.workers, right_at=options.right_at)

    def train_problems(self) -> Sequence[Problem]:
        return self._split[0]

    def eval_problems(self) -> Sequence[Problem]:
        return self._split[1]

    def prepare(self, log: Path) -> list[str]:
        return self.grader.start(log)

    def score(self, answers: Iterable[Answer]) -> Iterator[Score]:
        return self.grader.scores(answers)

    def close(self) -> None:
        self.grader.close()

    @cached_property
    def _split(self) -> tuple[list[Problem], list[Problem]]:
        options = self.options
        wanted = (options.train_problems, options.eval_problems)
        size = _DRAWS * max(wanted[0], 8 * wanted[1])  # one in eight is held out
        sides: tuple[list[Problem], list[Problem]] = ([], [])
        seen: set[str] = set()
        generated = self._generated(size)
        for index in range(size):
            entry = generated[index]
            if not index:
                self._require_stable_scores(generated, entry)
            question = entry["question"]
            side = int(held_out(question))
            if question not in seen and len(sides[side]) < wanted[side]:
                seen.add(question)
                sides[side].append(self._problem(f"{options.dataset}-{index}", entry))
            if all(len(some) == count for some, count in zip(sides, wanted, strict=True)):
                return sides
        side = int(len(sides[0]) == wanted[0])
        name = ("train_problems", "eval_problems")[side]
        raise UsageError(
            f"task.{name} = {wanted[side]}, but {size} problems of {options.dataset} have "
            f"{len(sides[side])} different ones for it; ask for fewer, or make it generate more "
            "kinds of problems with task.config"
        )

    def _generated(self, size: int) -> Any:
        """Return reasoning-gym's data set of `size` problems."""
        gym, options = _package(), self.options
        known = sorted(set(gym.factory.DATASETS) - {"composite"})
        if options.dataset == "composite":
            raise UsageError(
                "reasoning-gym's composite draws by chance; for exact shares and a score for each "
                "data set, make every one a source of task.name = 'mixture'"
            )
        if options.dataset not in known:
            near = difflib.get_close_matches(options.dataset, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise UsageError(f"reasoning-gym has no data set {options.dataset!r}; {hint}")
        config = _as_lists(options.config)
        try:
            return gym.create_dataset(options.dataset, **config, seed=options.seed, size=size)
        except (TypeError, ValueError, AssertionError) as error:
            raise UsageError(
                f"task.config = {config!r} is refused by the data set {options.dataset}: {error}"
            ) from None

    def _require_stable_scores(self, generated: Any, entry: dict[str, Any]) -> None:
        """Raise UsageError if an answer's score depends on what JSON does not keep of a problem."""
        try:
            stored = json.loads(json.dumps(entry))
            same = generated.score_answer(entry["answer"], stored) == generated.score_answer(
                entry["answer"], entry
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            same = False
        if not same:
            raise UsageError(
                f"problems of {self.options.dataset} hold what JSON cannot store, and their scores "
                "depend on it; choose another data set of reasoning-gym"
            )

    def _problem(self, name: str, entry: dict[str, Any]) -> Problem:
        options = self.options
        text = options.prompt_template.replace("{prompt}", entry["question"])
        system = {"role": "system", "content": options.system_prompt or ""}
        user = {"role": "user", "content": text}
        columns = {
            "entry": json.loads(json.dumps(entry)),
            "dataset": options.dataset,
            "config": _as_lists(options.config),
            "part": options.answer,
        }
        prompt = text if options.system_prompt is None else (system, user)
        answer = "" if entry["answer"] is None else str(entry["answer"])  # there may be many
        return Problem(name, prompt, answer, columns)


def _package() -> Any:
    """Return the package reasoning_gym. Raises UsageError if it is not installed."""
    try:
        import reasoning_gym
    except ImportError:
        raise UsageError(
            "the task reasoning-gym needs one more package: pip install 'mugrpo[reasoning-gym]'"
        ) from None
    return reasoning_gym


def _as_lists(value: Any) -> Any:
    """Return `value` with every tuple as a list, as the config file had it."""
    if isinstance(value, Mapping):
        return {name: _as_lists(entry) for name, entry in value.items()}
    return [_as_lists(entry) for entry in value] if isinstance(value, tuple) else value
