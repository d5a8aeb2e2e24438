"""Rollouts as other programs save them, read as plain rows.

A format says which column holds which field. README.md says what each format has and lacks, and
which program's writer was read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Status
from mugrpo.processes.messages import first_line
from mugrpo.tasks.cells import number_text
from mugrpo.tasks.rows import read_rows

Cells = Mapping[str, Any]  # column -> value


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value  # CSV has no lists


def _response(value: Any) -> Any:
    """Return a response's text. TRL's are conversations with one turn if the prompt is one."""
    one_turn = isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)
    return value[0].get("content") if one_turn else value


def _text(value: Any) -> Any:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return number_text(value) or value


def _json_text(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value)


# What other programs write of a response: the status that it has here (None: its reward's), and
# why it ended. slime's Sample.Status, its and SGLang's and vLLM's finish reasons, and plain words.
WORDS: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(("completed", "complete", "finished", "success"), (None, "stop")),
    **dict.fromkeys(("eos", "end_turn", "stop_sequence", "eos_token"), (None, "stop")),
    **dict.fromkeys(("max_tokens", "max_length"), (None, "length")),
    **dict.fromkeys(("aborted", "abort", "failed", "failure", "pending"), ("error", None)),
    **{"truncated": ("truncated", "length"), "correct": ("right", None)},
    "incorrect": ("wrong", None),
}


def _reason(value: Any) -> Any:
    """Return why a response ended, in our word if it has one: SGLang's is {"type": ...}."""
    value = value.get("type") if isinstance(value, dict) else value
    return WORDS.get(str(value).lower(), (None, None))[1] or value


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
Logprobs = list[Annotated[FiniteFloat, Field(le=0, gt=-1e38)]]  # natural logarithms, as float32
ListOf = BeforeValidator(_from_json)


class Row(BaseModel):
    """A rollout as its file has it. What the file lacks is None."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    where: str  # such as "rollouts.jsonl, line 3"
    group: tuple[str, ...] = ()  # tells draws of the same prompt apart
    prompt: Any = None  # text or a conversation
    response: Annotated[str | None, BeforeValidator(_response)] = None
    reward: FiniteFloat | None = None  # None if no reward function gave one
    answer: Annotated[str, BeforeValidator(_text)] = ""
    problem_id: Annotated[str | None, BeforeValidator(_text)] = None
    prompt_ids: Annotated[Ids | None, ListOf] = None
    response_ids: Annotated[Ids | None, ListOf] = None
    logprobs: Annotated[Logprobs | None, ListOf] = None
    finish_reason: Annotated[str | None, BeforeValidator(_reason)] = None
    temperature: FiniteFloat | None = None
    status: Status | None = None
    parts: Annotated[dict[str, Any], ListOf] = {}
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    policy_step: Annotated[int, Field(ge=0, lt=2**63)] = 0
    loss_mask: Annotated[list[bool] | None, ListOf] = None  # true for ids that the model sampled
    turns: Annotated[list[int] | None, ListOf] = None
    environment: Annotated[str | None, BeforeValidator(_json_text)] = None

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, raw: Any) -> Any:
        """Return the values with our status. A response that failed elsewhere has no reward."""
        word = raw.get("status")
        if word is None or str(word) in list(Status):
            return raw
        if str(word).lower() not in WORDS:
            raise ValueError(
                f"status = {str(word)[:60]!r} is no word that is known ({', '.join([*Status])}, "
                f"{', '.join(WORDS)}); leave the column out with --columns status="
            )
        status, ended = WORDS[str(word).lower()]
        kept = {"finish_reason": ended, **raw} if ended else raw
        return {**kept, "status": status, **({"reward": None} if status == "error" else {})}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.prompt is None and self.prompt_ids is None:
            raise ValueError("it has neither a prompt nor prompt_ids")
        if self.response_ids is None and not self.response and self.finish_reason != "stop":
            raise ValueError("its response is empty")
        for name in ("logprobs", "loss_mask"):
            values, ids = getattr(self, name), self.response_ids or ()
            if values is not None and len(values) != len(ids):
                raise ValueError(f"it has {len(ids)} response_ids, but {len(values)} {name}")
        return self


FIELDS = tuple(name for name in Row.model_fields if name not in ("where", "group"))


@dataclass(frozen=True)
class Format:
    """Where the files of a program are, and which column holds which field of a row."""

    files: str  # in a folder
    columns: Mapping[str, str]  # field -> column
    group: tuple[str, ...]  # columns
    written: bool = False  # whether a prompt is what a chat template has written


FORMATS = {
    "table": Format("*", {name: name for name in FIELDS}, ("stage", "occurrence", "group")),
    "trl": Format(  # a column for each reward function: the user names them, with their weights
        "completions_*.parquet",
        {"prompt": "prompt", "response": "completion", "reward": "reward"},
        ("step",),
    ),
    "verl": Format(
        "*.jsonl",
        {"prompt": "input", "response": "output", "answer": "gts", "reward": "score"},
        ("step",),
        written=True,
    ),
    "open-instruct": Format(  # RolloutRecord of open_instruct/rl_utils.py: ids and no text
        "*_rollouts_*.jsonl",
        {
            **{name: name for name in ("reward", "finish_reason", "logprobs")},
            **{"prompt_ids": "prompt_tokens", "response_ids": "response_tokens"},
        },
        ("step", "prompt_idx"),
    ),
}


# What other programs call the fields of a table, in place of a column with the field's own name:
# files of verl, TRL and open-instruct, verifiers' results and the orchestrator of prime-rl.
OTHER_NAMES = {
    "prompt": ("input", "question", "problem", "messages"),
    "response": ("completion", "output"),
    "reward": ("score",),
    "answer": ("gts", "ground_truth"),
    "prompt_ids": ("prompt_token_ids", "prompt_tokens"),
    "response_ids": ("completion_ids", "completion_token_ids", "response_tokens"),
    "logprobs": ("completion_logprobs",),
}


def format_of(name: str, columns: Mapping[str, str], *, without: Sequence[str] = ()) -> Format:
    """Return a format with the user's columns in the place of its own, and some fields left out.

    A field whose column is "" is left out, too.
    """
    form = FORMATS[name]
    kept = {field: column for field, column in form.columns.items() if field not in without}
    named = {field: column for field, column in {**kept, **columns}.items() if column}
    return replace(form, columns=named)


def read(names: Sequence[str], form: Format, named: Cells) -> Iterator[Row]:
    """Yield the rows of files, of folders, or of data sets on the hub.

    `named` are the columns that the user names, which must exist, as a reward must. Raises
    UsageError, naming the row, if a column is missing or a value is not what it must be.
    """
    for name in names:
        files = [name]
        if Path(name).is_dir():
            kinds = (".jsonl", ".parquet", ".csv")
            found = (path for path in Path(name).rglob(form.files) if path.suffix in kinds)
            files = sorted(map(str, found))
            if not files:
                raise UsageError(f"{name} has no file {form.files}; name the files, or a --format")
        for file in files:
            for where, cells in read_rows(file):
                yield _row(where, cells, form, named)


def _row(where: str, cells: Cells, form: Format, named: Cells) -> Row:
    cells = {name: None if value == "" else value for name, value in cells.items()}  # as in CSV
    try:
        values: dict[str, Any] = {}
        for name, column in form.columns.items():
            if column == name and column not in cells:
                column = next((c for c in OTHER_NAMES.get(name, ()) if c in cells), column)
            terms = _terms(name, column)
            absent = [one for _, one in terms if one not in cells]
            if absent and (name in named or name == "reward"):
                raise ValueError(
                    f"there is no column {absent[0]!r} for the {name} (there are "
                    f"{', '.join(map(repr, cells))}); name it with --columns {name}=COLUMN"
                )
            if not absent:
                values[name] = _sum(terms, cells) if name == "reward" else cells[column]
        group = tuple(str(cells[name]) for name in form.group if cells.get(name) is not None)
        present = {name: value for name, value in values.items() if value is not None}
        return Row(where=where, group=group, **present)
    except ValidationError as error:
        first = error.errors()[0]
        text = str(first["msg"]).removeprefix("Value error, ")
        name = ".".join(map(str, first["loc"]))
        said = f"{name} = {first['input']!s:.60}: {text}" if name else text
        raise UsageError(f"{where}: {said}") from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UsageError(f"{where}: {first_line(error)}") from None


def _terms(name: str, column: str) -> list[tuple[float, str]]:
    """Return (weight, column) of the columns whose sum a field is: only a reward has several."""
    if name != "reward":
        return [(1.0, column)]
    pairs = [term.rpartition("*") for term in column.split("+")]
    return [(float(weight or 1.0), one) for weight, _, one in pairs]


def _sum(terms: Sequence[tuple[float, str]], cells: Cells) -> float | None:
    """Return a weighted sum of the cells that have a number, None if none has."""
    known = [(weight, cells[column]) for weight, column in terms if cells[column] is not None]
    return sum(weight * float(value) for weight, value in known) if known else None
