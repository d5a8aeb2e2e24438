"""The program of a process that generates problems of reasoning-gym.

    python -m mugrpo.extensions.gym.worker SOCKET LIFELINE

Some data sets draw from a set of texts, whose order Python chooses anew in each process. A worker's
hashes are fixed (`processes.workers.Worker`), so that it draws the same each time.
"""

import difflib
import json
from types import CodeType
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.processes.messages import first_line
from mugrpo.processes.workers import Handler, serve
from mugrpo.tasks.embedded import held_out

_DRAWS = 4  # problems generated at most, as a multiple of those that one side needs


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    """Return [index, entry] of the problems of both sides, and nothing that answers calls."""
    return {"sides": sides_of(setup["dataset"], setup["config"], setup["wanted"])}, dict


def sides_of(
    name: str, config: dict[str, Any], wanted: list[int]
) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
    """Return (index, entry) of different problems to train on, and of different ones held out.

    Raises UsageError if the package is not installed, the data set does not exist, its config is
    refused, a problem cannot be generated, or it has too few different problems.
    """
    size = _DRAWS * max(wanted[0], 8 * wanted[1])  # one in eight is held out
    sides: tuple[list[tuple[int, Any]], list[tuple[int, Any]]] = ([], [])
    seen: set[str] = set()
    generated = _generated(name, config, size)
    for index in range(size):
        try:
            entry = generated[index]
        except Exception as error:  # the data set's code may raise any
            raise UsageError(
                f"the data set {name} of reasoning-gym fails on its problem {index} "
                f"({type(error).__name__}: {first_line(error)}); choose another task.config, or "
                "another data set"
            ) from None
        if not index:
            _refuse_evaluation(name, generated)
            _require_stable_scores(name, generated, entry)
        question = entry["question"]
        side = int(held_out(question))
        if question not in seen and len(sides[side]) < wanted[side]:
            seen.add(question)
            sides[side].append((index, json.loads(json.dumps(entry))))
        if all(len(some) == count for some, count in zip(sides, wanted, strict=True)):
            return sides
    raise UsageError(
        f"{size} problems of {name} have {len(sides[0])} different ones to train on and "
        f"{len(sides[1])} held out, fewer than task.train_problems = {wanted[0]} and "
        f"task.eval_problems = {wanted[1]}; ask for fewer, or make it generate more kinds of "
        "problems with task.config"
    )


def _generated(name: str, config: dict[str, Any], size: int) -> Any:
    """Return reasoning-gym's data set of `size` problems."""
    try:
        import reasoning_gym as gym
    except ImportError:
        raise UsageError(
            "the task reasoning-gym needs one more package: pip install 'mugrpo[reasoning-gym]'"
        ) from None
    # its composite draws parts by chance; a mixture has exact shares, and a score for each
    known = sorted(set(gym.factory.DATASETS) - {"composite"})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1) or known
        raise UsageError(
            f"reasoning-gym has no data set {name!r}; did you mean {' or '.join(near)}?"
        )
    try:
        return gym.create_dataset(name, **config, seed=0, size=size)
    except (TypeError, ValueError, AssertionError) as error:
        raise UsageError(
            f"task.config = {config!r} is refused by the data set {name}: {error}"
        ) from None


_EVALUATE = ("eval", "exec", "parse_expr", "sympify")  # Python's own, and sympy's on top of them


def _refuse_evaluation(name: str, generated: Any) -> None:
    """Raise UsageError if scores come from running the text of a response as Python."""
    waiting, seen = ["score_answer"], set[str]()
    while waiting:
        seen.add(method := waiting.pop())
        function: Any = getattr(type(generated), method, None)
        names = _names(function.__code__) if hasattr(function, "__code__") else set[str]()
        for one in names.intersection(_EVALUATE) - set(dir(type(generated))):
            raise UsageError(
                f"the scores of {name} run a response as Python ({method} calls {one}), which "
                "mugrpo never does; choose another data set of reasoning-gym"
            )
        waiting += [one for one in names - seen if hasattr(type(generated), one)]


def _names(code: CodeType) -> set[str]:
    """Return the names that a function uses, those of functions within it included."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _require_stable_scores(name: str, generated: Any, entry: dict[str, Any]) -> None:
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
            f"problems of {name} hold what JSON cannot store, and their scores "
            "depend on it; choose another data set of reasoning-gym"
        )


if __name__ == "__main__":
    serve(_load)
