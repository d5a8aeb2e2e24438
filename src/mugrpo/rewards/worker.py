"""The program of a reward worker: loads the rewards, then judges the items that it receives.

python -m mugrpo.rewards.worker SOCKET LIFELINE
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from mugrpo.config.base import RewardOption
from mugrpo.config.rewards import FunctionOptions, Rewards
from mugrpo.processes.functions import (
    BrokenContractError,
    CallLog,
    RewardFunction,
    load_function,
)
from mugrpo.processes.messages import printable
from mugrpo.processes.workers import Handler, failure, serve
from mugrpo.rewards.verdict import Unfinished, Verdict, Verifier


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    judge = Judge(TypeAdapter(Rewards).validate_python(setup["rewards"]))
    return {"said": judge.said}, judge.answer


class Judge:
    """The loaded rewards of a run."""

    def __init__(self, options: Sequence[RewardOption]) -> None:
        runner = asyncio.Runner()
        judges: dict[str, Callable[..., Any]] = {}
        self.said: list[str] = []
        # files last, as their folders may have modules with the names of others
        for option in sorted(options, key=lambda option: option.file is not None):
            if isinstance(option, FunctionOptions):
                function = load_function(option.function)
                judges[option.label] = RewardFunction(option.label, function, runner)
            elif option.in_rollout:
                judges[option.label] = lambda items, _: [item["environment"] for item in items]
            else:
                verifier = option.made()
                judges[option.label] = partial(_verdicts, verifier)
                self.said += [verifier.said] if hasattr(verifier, "said") else []
        self._judges = [(option.label, judges[option.label]) for option in options]

    def answer(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Judge `items` by all rewards and return the answer to send.

        The answer is {"results": one per item}, {"failure": ..., "unfinished": ..., "spent": ...}
        if a reward raised an error, or {"broken": ...} if a function broke its contract. What the
        functions log comes with the results, the metrics of the call with the first one.
        """
        results: list[dict[str, Any]] = [{"values": {}, "answers": {}, "extra": {}} for _ in items]
        log = CallLog(len(items))
        for label, judge in self._judges:
            try:
                for result, value in zip(results, judge(items, log), strict=True):
                    _note(result, label, value)
            except BrokenContractError as error:
                return {"broken": str(error)}
            except BaseException as error:
                return failure(label, error, (MemoryError, RecursionError, Unfinished))
        results[0]["metrics"] = log.metrics
        for index, result in enumerate(results):
            result["extra"] |= {column: values[index] for column, values in log.extra.items()}
        return {"results": results}


def _verdicts(verifier: Verifier, items: Sequence[dict[str, Any]], _: CallLog) -> list[Verdict]:
    return [verifier(item["text"], item["answer"]) for item in items]


def _note(result: dict[str, Any], label: str, value: Verdict | float | None) -> None:
    """Record a value or a verdict in `result`. The status and "answer" are the first verifier's."""
    if not isinstance(value, Verdict):
        result["values"][label] = value
        return
    part = f"answer/{label}" if "status" in result else "answer"
    result["values"][label] = value.value
    result.setdefault("status", value.status.value)
    if value.answer is not None:
        result["answers"][part] = printable(value.answer)
    if value.detail is not None:
        result["extra"][label] = printable(value.detail)


if __name__ == "__main__":
    serve(_load)
