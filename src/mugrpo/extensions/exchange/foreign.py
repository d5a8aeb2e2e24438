"""Rollouts as other programs save them, read as plain rows.

A format says which column holds which field of a row. docs/exchange.md says what each format has
and lacks, and which program's writer was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import outcome_from_text
from mugrpo.extensions.exchange.cells import CHECKS, number

PROBLEMS, HELD_OUT = "problems.jsonl", "held_out.jsonl"  # of an imported run, in its folder

Cells = dict[str, Any]  # column -> value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rollout as its file has it. What the file lacks is None."""

    place: str  # such as "rollouts.jsonl, line 3"
    prompt: Any = None  # text or a conversation; for a format that is `written`, a template's text
    response: str | None = None
    reward: float | None = None  # None if no reward function gave one
    answer: str | None = None
    problem_id: str | None = None
    prompt_ids: list[int] | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None
    temperature: float | None = None
    status: str | None = None
    parts: dict[str, Any] | None = None
    seed: int | None = None
    policy_step: int | None = None
    loss_mask: list[bool] | None = None  # true for the response ids that the model sampled
    turns: list[int] | None = None
    environment: str | None = None  # as JSON
    group: tuple[str, ...] = ()  # tells groups with the same prompt apart
    sample: str | None = None  # tells the rows of a group apart

    @property
    def content(self) -> tuple[Any, ...]:
        """What two rows have in common if one is a copy of the other."""
        lists = (self.response_ids or (), self.logprobs or ())
        return (self.response, *map(tuple, lists), self.reward)


FIELDS = tuple(field.name for field in fields(Row) if field.name not in ("place", "group"))


def _one(place: str, cells: Cells, columns: Mapping[str, str]) -> Iterator[Cells]:
    yield cells


def _with_reward(place: str, cells: Cells, columns: Mapping[str, str]) -> Iterator[Cells]:
    """Name the reward of TRL's row: the only column between the completion and the advantage."""
    names = list(cells)
    if "reward" not in columns and {"completion", "advantage"} <= cells.keys():
        rewards = names[names.index("completion") + 1 : names.index("advantage")]
        if len(rewards) != 1:
            raise UsageError(
                f"{place} has {len(rewards)} columns that may be rewards ({', '.join(rewards)}); "
                "say which ones, and their weights, as in --columns reward=correct+0.5*short"
            )
        cells = {**cells, "reward": cells[rewards[0]]}
    yield cells


def _without_tools(place: str, cells: Cells, columns: Mapping[str, str]) -> Iterator[Cells]:
    if any((cells.get("request_info") or {}).get(key) for key in ("tool_calleds", "num_calls")):
        raise UsageError(
            f"{place} called a tool, so that not all of its response was sampled; only responses "
            "without tools can be trained on"
        )
    yield cells


def _traces(place: str, cells: Cells, columns: Mapping[str, str]) -> Iterator[Cells]:
    """Yield the traces of prime-rl's episode that train its policy, one response each."""
    group = (cells.get("group") or {}).get("id")
    for trace in cells.get("traces") or ():
        if trace["agent"].get("trainable", True):
            yield {"group_id": group, **_trace(place, trace)}


def _trace(place: str, trace: Cells) -> Cells:
    """Return the one response of a trace. Raises UsageError if it has several turns, or none."""
    nodes = trace["nodes"]
    if [node.get("sampled", False) for node in nodes] != [False] * (len(nodes) - 1) + [True]:
        raise UsageError(
            f"{place} has a trace that is not a prompt with one response after it; several turns "
            "cannot be trained on. The folder train/effective has no failed traces"
        )
    ids = [token for node in nodes for token in node.get("token_ids") or ()]
    sampled = [sampled for node in nodes for sampled in node.get("mask") or ()]
    start = len(ids) - sum(sampled)
    if len(sampled) != len(ids) or any(sampled[:start]):
        raise UsageError(f"{place} has a trace whose sampled tokens are not all at its end")
    task = trace["task"]["data"]
    call: Cells = next(
        (call for call in reversed(trace.get("calls") or ()) if not call.get("error")), {}
    )
    rewards = [reward for reward in (trace.get("rewards") or {}).values() if reward]
    return {
        "prompt": [_message(node["message"]) for node in nodes[:-1]],
        "response": nodes[-1]["message"].get("content") or "",
        "prompt_ids": ids[:start] or None,
        "response_ids": ids[start:] or None,
        "logprobs": nodes[-1].get("logprobs") or None,
        "reward": sum(r["score"] * r.get("weight", 1.0) for r in rewards) if rewards else None,
        "answer": task.get("answer"),
        "finish_reason": call.get("finish_reason"),
        "temperature": (call.get("sampling") or {}).get("temperature"),
        "trace_id": trace["id"],
    }


def _message(message: Cells) -> Cells:
    return {"role": message["role"], "content": message["content"]}


@dataclass(frozen=True)
class Format:
    """Where the files of a program are, and which column holds which field of a row."""

    files: str  # in a folder
    columns: Mapping[str, str]  # field -> column
    required: tuple[str, ...]  # fields
    group: tuple[str, ...] = ()  # columns
    written: bool = False  # whether a prompt is what a chat template has written
    parse: Callable[[str, Cells, Mapping[str, str]], Iterator[Cells]] = _one


_TEXT = ("prompt", "response", "reward")
_IDS = ("prompt_ids", "response_ids", "reward")
FORMATS = {
    "table": Format(
        "*", {name: name for name in FIELDS}, ("reward",), ("stage", "occurrence", "group")
    ),
    "trl": Format(
        "completions_*.parquet",
        {"prompt": "prompt", "response": "completion", "reward": "reward"},
        _TEXT,
        ("step",),
        parse=_with_reward,
    ),
    "verl": Format(
        "*.jsonl",
        {"prompt": "input", "response": "output", "answer": "gts", "reward": "score"},
        _TEXT,
        ("step",),
        written=True,
    ),
    "open-instruct": Format(
        "*_rollouts_*.jsonl",
        {
            "prompt_ids": "prompt_tokens",
            "response_ids": "response_tokens",
            "logprobs": "logprobs",
            "answer": "ground_truth",
            "reward": "reward",
            "finish_reason": "finish_reason",
            "sample": "sample_idx",
        },
        _IDS,
        ("step", "prompt_idx"),
        written=True,
        parse=_without_tools,
    ),
    "prime-rl": Format(
        "train/effective/traces.jsonl",
        {name: name for name in FIELDS} | {"sample": "trace_id"},
        _IDS,
        ("group_id",),
        parse=_traces,
    ),
}


def rows_of(form: Format, place: str, cells: Cells, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows that `cells`, one entry of a file, hold. `columns` replaces the form's own.

    Raises UsageError, naming `place`, if a column is missing or a value is not what it must be.
    """
    chosen = {**form.columns, **columns}
    required = [*form.required, *columns]
    try:
        for parsed in form.parse(place, cells, columns):
            for name in required:
                if missing := [c for _, c in terms(name, chosen[name]) if c not in parsed]:
                    raise UsageError(
                        f"{place} has no column {missing[0]!r} for the {name} (it has "
                        f"{', '.join(map(repr, parsed))}); choose another --format, or name the "
                        f"column with --columns {name}=COLUMN"
                    )
            parsed = {n: None if v == "" else v for n, v in parsed.items()}  # CSV has no null
            present = {name: _cell(name, column, parsed) for name, column in chosen.items()}
            values = {n: CHECKS[n](value) for n, value in present.items() if value is not None}
            group = tuple(str(parsed[n]) for n in form.group if parsed.get(n) is not None)
            yield _complete(Row(place=place, group=group, **values))
    except UsageError:
        raise
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{place}: {reason}") from None


def _complete(row: Row) -> Row:
    """Return `row`. Raises ValueError if it has no prompt or response, or parts that do not fit."""
    if row.prompt is None and row.prompt_ids is None:
        raise ValueError("it has neither a prompt nor prompt_ids")
    if row.response_ids is None and not row.response and row.finish_reason != "stop":
        raise ValueError(
            "its response is empty; if the model ended it at once, say so by its ids or by the "
            "finish reason stop"
        )
    ids, logprobs = row.response_ids, row.logprobs
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise ValueError(
            f"it has {len(ids)} response ids with {len(logprobs)} logprobs; each id needs one, or "
            "leave the logprobs out and have them computed with --policy"
        )
    if row.loss_mask is not None and len(row.loss_mask) != len(ids or ()):
        raise ValueError(
            f"it has {len(ids or ())} response ids with {len(row.loss_mask)} entries in loss_mask; "
            "each id needs one"
        )
    return row


def turns_of(row: Row) -> dict[str, Any]:
    """Return the fields of a rollout with turns, which begin wherever sampled ids begin."""
    if row.loss_mask is None:
        return {}
    mask = np.array(row.loss_mask, np.bool_)
    begins = np.flatnonzero(mask & ~np.append(False, mask[:-1]))
    turns = begins if row.turns is None else np.array(row.turns)
    return {
        "loss_mask": mask,
        "turns": turns.astype(np.int32),
        "environment": outcome_from_text(row.environment),
    }


def terms(name: str, column: str) -> list[tuple[float, str]]:
    """Return (weight, column) of the columns whose sum a field is: only a reward has several.

    Raises ValueError if a weight is not a number.
    """
    if name != "reward":
        return [(1.0, column)]
    pairs = [term.rpartition("*") for term in column.split("+")]
    return [(float(weight or 1.0), name) for weight, _, name in pairs]


def _cell(name: str, column: str, cells: Cells) -> Any:
    pairs = terms(name, column)
    if len(pairs) == 1 and pairs[0][0] == 1.0:
        return cells.get(column)
    known = [(w, number(cells[c])) for w, c in pairs if cells.get(c) is not None]
    return sum(weight * value for weight, value in known) if known else None
