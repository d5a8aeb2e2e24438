"""Functions and classes of users: loading them, calling reward functions as TRL does, checking
what comes back.
"""

import asyncio
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import TrainerState
from mugrpo.disk.sources import load_file
from mugrpo.processes.messages import printable

_LARGEST = 1e9  # a larger reward's squared gradients may not fit into float32
_LONGEST_EXTRA = 300  # characters kept of a value given to `log_extra`
_NOT_COLUMNS = (
    *("prompts", "completions", "completion_ids"),
    *("prompt", "completion", "trainer_state", "log_extra", "log_metric"),
)


class BrokenContractError(Exception):
    """The error for a function that does not return a usable number or None for each completion.

    Also for one that logs what is not a number, or not one value for each completion.
    """


class CallLog:
    """What reward functions log while they judge the `count` completions of a call together."""

    def __init__(self, count: int) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.extra: dict[str, list[Any]] = {}  # column -> one value per completion
        self._count = count

    def log_metric(self, name: str, value: float) -> None:
        """Log a number, as TRL's `log_metric` does. The metric is the mean of all logged values."""
        number = usable_number(value, largest=math.inf)
        if number is None or not math.isfinite(number):
            raise BrokenContractError(
                f"log_metric({name!r:.60}) got {printable(repr(value), 60)}, not a finite number"
            )
        self.metrics.setdefault(printable(str(name), 60), []).append(number)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a value for each completion, as TRL's `log_extra` does."""
        values = list(values)
        if len(values) != self._count:
            raise BrokenContractError(
                f"log_extra({column!r:.60}) got {len(values)} values for {self._count} completions"
            )
        self.extra[printable(str(column), 60)] = list(map(_shown, values))


def _shown(value: Any) -> float | str | None:
    """Return a logged value as a number if it is one, else as text of limited length."""
    if value is None or isinstance(value, bool):
        return value
    number = usable_number(value)
    return printable(str(value), _LONGEST_EXTRA) if number is None else number


def load_function(function: str, what: str = "reward") -> Callable[..., Any]:
    """Return the function or class that `function` names, `what` for error messages.

    Raises UsageError if it cannot be loaded.
    """
    place, _, name = function.rpartition(":")
    try:
        module = _module(place)
    except BaseException as error:
        text = printable(f"{type(error).__name__}: {error}")
        raise UsageError(f"the {what} {function}: {place} cannot be imported: {text}") from None
    loaded = getattr(module, name, None)
    if not callable(loaded):
        raise UsageError(f"the {what} {function}: {place} has no function {name}")
    return loaded  # type: ignore[no-any-return]


@cache
def _module(place: str) -> Any:
    """Return a module by its name, or the one in a file, which can import from its own folder.

    A module there never takes the place of an installed one, which others import too.
    """
    file = Path(place).resolve() if place.endswith(".py") else None
    folder = str(file.parent) if file else os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    if file is None:
        return importlib.import_module(place)
    # a file named math.py must not replace the module math, nor another folder's math.py
    digest = sha256(str(file).encode()).hexdigest()[:8]
    return load_file(f"user_file_{file.stem}_{digest}", file)


def files_of_code(code: str) -> list[Path]:
    """Return the files that loading `code`, "module:name" or "file.py:name", runs, importing none.

    Of a module, these are its packages' files and its own, as `_module` finds them. What they
    import in turn is only known by running them.
    """
    place = code.rpartition(":")[0]
    if place.endswith(".py"):
        return [Path(place)] if Path(place).is_file() else []
    here = os.getcwd()
    path: Sequence[str] | None = [*(one for one in sys.path if one not in ("", here)), here]
    files, name = list[Path](), ""
    for part in place.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, path) if path is not None else None
        if spec is None:
            return []
        if spec.origin and Path(spec.origin).is_file():
            files.append(Path(spec.origin))
        locations = spec.submodule_search_locations
        path = None if locations is None else [*locations]
    return files


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Find a module as an import does, but import nothing."""
    for finder in sys.meta_path:
        # A nested package without __init__.py asks for its parent, which is not imported.
        with suppress(KeyError):
            if (found := finder.find_spec(name, path)) is not None:
                return found
    return None


class RewardFunction:
    """A loaded function that judges responses, in the event loop of `runner` if it is async."""

    def __init__(self, label: str, function: Callable[..., Any], runner: asyncio.Runner) -> None:
        self.label = label
        self._function = function
        self._runner = runner
        self._parameters = parameters_of(function)

    def __call__(self, items: Sequence[Mapping[str, Any]], log: CallLog) -> list[float | None]:
        """Return a reward, or None for no reward, for each of `items`, and note in `log` what the
        function logs.

        Raises BrokenContractError if the function returns or logs anything else. Errors that the
        function raises are passed on.
        """
        state = items[0]["state"]  # a call's items share it
        arguments: dict[str, Any] = {
            "prompts": [item["prompt"] for item in items],
            "completions": [_completion(item) for item in items],
            "completion_ids": [item["ids"] for item in items],
            **_columns(items),
            "trainer_state": state and TrainerState(**state),
            "log_extra": log.log_extra,
            "log_metric": log.log_metric,
        }
        if self._parameters is not None:
            arguments = {name: arguments[name] for name in self._parameters if name in arguments}
        rewards = self._function(**arguments)
        if inspect.iscoroutine(rewards):
            rewards = self._runner.run(rewards)
        return self._checked(rewards, items)

    def _checked(self, rewards: Any, items: Sequence[Mapping[str, Any]]) -> list[float | None]:
        if not hasattr(rewards, "__len__") or len(rewards) != len(items):
            text = printable(repr(rewards), 60)
            raise BrokenContractError(
                f"`{self.label}` returned {text}, not a list of {len(items)} rewards"
            )
        numbers = [None if reward is None else usable_number(reward) for reward in rewards]
        for index, (reward, number) in enumerate(zip(rewards, numbers, strict=True)):
            if reward is not None and number is None:
                raise BrokenContractError(
                    f"`{self.label}` returned {printable(repr(reward), 60)} as reward {index} of "
                    f"{len(items)} (problem {printable(items[index]['id'], 60)}); a reward must be "
                    f"a number between -{_LARGEST:g} and {_LARGEST:g}, or None for no reward"
                )
        return numbers


def usable_number(reward: Any, largest: float = _LARGEST) -> float | None:
    """Return `reward` as a float, or None if it is not a number of at most `largest`.

    Numbers are int, float, bool (0 or 1, as in TRL), and scalars of numpy and torch.
    """
    if not isinstance(reward, int | float) and hasattr(reward, "item"):
        try:
            reward = reward.item()
        except (ValueError, RuntimeError):  # an array of several numbers
            return None
    if not isinstance(reward, int | float):
        return None
    try:
        return float(reward) if abs(reward) <= largest else None  # nan is not
    except OverflowError:
        return None


def _completion(item: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """Return the text of the last turn, or, after a prompt of messages, those of all turns."""
    if isinstance(item["prompt"], str):
        return str(item["text"])
    return item["messages"] or [{"role": "assistant", "content": item["text"]}]


def _columns(items: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return each column as a list.

    "answer" has the reference answers if there are any, unless a column has that name.
    """
    rows = [
        {**({"answer": item["answer"]} if item["answer"] else {}), **item["columns"]}
        for item in items
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names if name not in _NOT_COLUMNS}


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of the arguments that `function` takes.

    Return None if it takes any keyword, or if its signature is not known.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)
