"""Problems that reasoning-gym generates (arXiv 2505.24760), judged by its own scores."""

from __future__ import annotations

import difflib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from mugrpo.config.base import WorkerOptions
from mugrpo.config.rewards import FunctionOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.extensions.gym import ReasoningGymOptions
from mugrpo.tasks.dataset import GradedTask, with_template
from mugrpo.tasks.embedded import held_out

_REWARD = FunctionOptions(function="mugrpo.extensions.gym.scores:score_answer")
_DRAWS = 4  # problems generated at most, as a multiple of those that one side needs


class ReasoningGym(GradedTask):
    """A task with the problems of one data set of reasoning-gym, always the same ones.

    They are generated at the first use, which raises UsageError if the package is not installed,
    the data set does not exist, its config is refused, or it has too few different problems.
    """

    def __init__(self, options: ReasoningGymOptions, workers: WorkerOptions) -> None:
        super().__init__((_REWARD,), workers)
        self.options = options
        self._name = Path(options.data).name  # a folder here may have the same name
        self._config = json.loads(json.dumps(options.config))  # tuples are lists, as in the file

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
                sides[side].append(self._problem(f"{self._name}-{index}", entry))
            if all(len(some) == count for some, count in zip(sides, wanted, strict=True)):
                return sides
        raise UsageError(
            f"{size} problems of {self._name} have {len(sides[0])} different ones to train on and "
            f"{len(sides[1])} held out, fewer than task.train_problems = {wanted[0]} and "
            f"task.eval_problems = {wanted[1]}; ask for fewer, or make it generate more kinds of "
            "problems with task.config"
        )

    def _generated(self, size: int) -> Any:
        """Return reasoning-gym's data set of `size` problems."""
        try:
            import reasoning_gym as gym
        except ImportError:
            raise UsageError(
                "the task reasoning-gym needs one more package: pip install 'mugrpo[reasoning-gym]'"
            ) from None
        # its composite draws parts by chance; a mixture has exact shares, and a score for each
        known = sorted(set(gym.factory.DATASETS) - {"composite"})
        if self._name not in known:
            near = difflib.get_close_matches(self._name, known, n=1) or known
            raise UsageError(
                f"reasoning-gym has no data set {self._name!r}; did you mean {' or '.join(near)}?"
            )
        config = self._config
        try:
            return gym.create_dataset(self._name, **config, seed=0, size=size)
        except (TypeError, ValueError, AssertionError) as error:
            raise UsageError(
                f"task.config = {config!r} is refused by the data set {self._name}: {error}"
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
                f"problems of {self._name} hold what JSON cannot store, and their scores "
                "depend on it; choose another data set of reasoning-gym"
            )

    def _problem(self, name: str, entry: dict[str, Any]) -> Problem:
        options = self.options
        prompt = with_template(entry["question"], options.prompt_template, options.system_prompt)
        columns = {
            "entry": json.loads(json.dumps(entry)),
            "dataset": self._name,
            "config": self._config,
            "part": options.answer,
        }
        answer = "" if entry["answer"] is None else str(entry["answer"])  # there may be many
        return Problem(name, prompt, answer, columns)
