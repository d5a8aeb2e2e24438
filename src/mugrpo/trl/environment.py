"""The environment and the tools that a GRPOTrainer is given, in forms that a run reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.trl.data import named_function

Held = dict[str, Callable[..., Any]]


def environment_options(
    factory: Any, tools: Sequence[Any] | None, args: Any
) -> tuple[dict[str, Any], Held, bool]:
    """Return `[environment]`, by name what only this process has, and whether there is a reward.

    The options are {} without an environment and tools. As in TRL, an environment is made once to
    see what it has. Raises UsageError if `factory` or one of `tools` is not callable.
    """
    if isinstance(factory, dict):
        raise UsageError(
            "environment_factory is a dict of several; a run has one environment, so give one"
        )
    given = {"environment_factory": [] if factory is None else [factory], "tools": tools or []}
    for name, functions in given.items():
        if wrong := [one for one in functions if not callable(one)]:
            raise UsageError(f"{name}: {wrong[0]!r} cannot be called")
    if not any(given.values()):
        return {}, {}, False
    held: Held = {}
    places = {name: [_place(one, held) for one in some] for name, some in given.items()}
    calls = args.max_tool_calling_iterations
    options: dict[str, Any] = {"tools": places["tools"]}
    # Each turn has a token. TRL counts rounds of calls, after each of which comes a turn.
    options["max_turns"] = 1 + (args.max_completion_length if calls is None else calls)
    if factory is not None:
        options["name"] = places["environment_factory"][0]
    return options, held, hasattr(factory(), "get_reward") if factory is not None else False


def _place(function: Any, held: Held) -> str:
    """Return where a worker can import `function` from, or the name under which it is `held`."""
    if place := named_function(function):
        return place
    name = getattr(function, "__name__", type(function).__name__)
    place = f"<script>:{name if name.isidentifier() else 'environment'}"
    held[place] = function
    return place
