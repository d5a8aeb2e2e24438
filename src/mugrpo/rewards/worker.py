"""The main of a worker process: loads the rewards, then judges what it is handed.

    python -P -m mugrpo.rewards.worker SOCKET LIFELINE

It reads and writes on the socket alone. It ends when the run that started it does, even inside a
hot loop, has a limit on its memory, and leaves every deadline to the run (`processes.child`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from mugrpo.config.rewards import FunctionOptions, RewardOption, Rewards
from mugrpo.disk.errors import UsageError
from mugrpo.processes.child import Channel, limit_memory
from mugrpo.processes.messages import printable
from mugrpo.rewards.functions import BrokenContractError, RewardFunction, load_function
from mugrpo.rewards.verdict import Verdict, Verifier
from mugrpo.rewards.verifiers import make_verifier


def main() -> None:
    channel = Channel()
    setup = channel.receive()
    limit_memory(setup["memory_mb"])
    try:
        judge = Judge(TypeAdapter(Rewards).validate_python(setup["rewards"]))
    except UsageError as error:
        channel.send({"refused": str(error)})
        return
    channel.send({"ready": True})
    while True:
        channel.send(judge.answer(channel.receive()))


class Judge:
    """The rewards of a run, loaded."""

    def __init__(self, options: Sequence[RewardOption]) -> None:
        runner = asyncio.Runner()
        self._judges: list[tuple[str, Verifier | RewardFunction]] = [
            (
                option.label,
                RewardFunction(option.label, load_function(option.function), runner)
                if isinstance(option, FunctionOptions)
                else make_verifier(option),
            )
            for option in options
        ]

    def answer(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """{"results": one an item}, {"failure": ...} or {"broken": ...} for a broken contract."""
        results: list[dict[str, Any]] = [{"values": {}} for _ in items]
        for label, judge in self._judges:
            try:
                if isinstance(judge, RewardFunction):
                    for result, value in zip(results, judge(items), strict=True):
                        result["values"][label] = value
                else:
                    for result, item in zip(results, items, strict=True):
                        _note(result, label, judge(item["text"], item["answer"]))
            except BrokenContractError as error:
                return {"broken": str(error)}
            except BaseException as error:
                return _failure(label, error)
        return {"results": results}


def _note(result: dict[str, Any], label: str, verdict: Verdict) -> None:
    """Enter a verifier's verdict; the first verifier's is the status."""
    result["values"][label] = float(verdict.right)
    result.setdefault("status", verdict.status.value)
    if verdict.answer is not None:
        result.setdefault("answer", printable(verdict.answer))


def _failure(label: str, error: BaseException) -> dict[str, Any]:
    """What became of a call; after a MemoryError the process is not to be used again."""
    try:
        text = str(error)
    except Exception:
        text = ""
    reason = printable(f"{label}: {type(error).__name__}: {text}".removesuffix(": "))
    return {"failure": reason, "spent": isinstance(error, MemoryError)}


if __name__ == "__main__":
    main()
