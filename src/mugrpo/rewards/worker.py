"""The program of a reward worker: loads the rewards, then judges the items that it receives.

python -P -m mugrpo.rewards.worker SOCKET LIFELINE
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from mugrpo.config.base import RewardOption
from mugrpo.config.rewards import EnvironmentReward, FunctionOptions, Rewards
from mugrpo.processes.messages import printable
from mugrpo.processes.workers import Answer, failure, serve
from mugrpo.rewards.functions import (
    BrokenContractError,
    CallLog,
    RewardFunction,
    load_function,
)
from mugrpo.rewards.verdict import Unfinished, Verdict, Verifier


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    judge = Judge(TypeAdapter(Rewards).validate_python(setup["rewards"]))
    return {"said": judge.said}, judge.answer


class Judge:
    """The loaded rewards of a run."""

    def __init__(self, options: Sequence[RewardOption]) -> None:
        runner = asyncio.Runner()
        judges: dict[str, Verifier | RewardFunction | EnvironmentReward] = {}
        # files last, as their folders may have modules with the names of others
        for option in sorted(options, key=lambda option: option.file is not None):
            if isinstance(option, FunctionOptions):
                function = load_function(option.function)
                judges[option.label] = RewardFunction(option.label, function, runner)
            elif isinstance(option, EnvironmentReward):
                judges[option.label] = option
            else:
                judges[option.label] = option.made()
        self.said = [one.said for one in judges.values() if hasattr(one, "said")]
        self._judges = [(option.label, judges[option.label]) for option in options]

    def answer(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Judge `items` by all rewards and return the answer to send.

        The answer is {"results": one per item}, {"failure": ..., "unfinished": ..., "spent": ...}
        if a reward raised an error, or {"broken": ...} if a function broke its contract. What the
        functions log comes with the results, the metrics of the call with the first one.
        """
        results: list[dict[str, Any]] = [{"values": {}, "answers": {}} for _ in items]
        log = CallLog(len(items))
        for label, judge in self._judges:
            try:
                if isinstance(judge, RewardFunction):
                    for result, value in zip(results, judge(items, log), strict=True):
                        result["values"][label] = value
                elif isinstance(judge, EnvironmentReward):
                    for result, item in zip(results, items, strict=True):
                        result["values"][label] = item["environment"]
                else:
                    for result, item in zip(results, items, strict=True):
                        _note(result, label, judge(item["text"], item["answer"]))
            except BrokenContractError as error:
                return {"broken": str(error)}
            except BaseException as error:
                return failure(label, error, (MemoryError, RecursionError, Unfinished))
        results[0]["metrics"] = log.metrics
        for index, result in enumerate(results):
            logged = {column: values[index] for column, values in log.extra.items()}
            result["extra"] = {**result.get("extra", {}), **logged}
        return {"results": results}


def _note(result: dict[str, Any], label: str, verdict: Verdict) -> None:
    """Record a verdict in `result`. The status, and "answer", are the first verifier's."""
    part = f"answer/{label}" if "status" in result else "answer"
    result["values"][label] = verdict.value
    result.setdefault("status", verdict.status.value)
    if verdict.answer is not None:
        result["answers"][part] = printable(verdict.answer)
    if verdict.detail is not None:
        result.setdefault("extra", {})[label] = printable(verdict.detail)


if __name__ == "__main__":
    serve(_load)
