"""All rollouts of a run, to list, filter, open and compare. Nothing here needs torch.

Only small columns of the shards are read at first. Tokens are read when a rollout is opened, or row
group by row group when texts are searched.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import try_to_load_from_cache
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ROLLOUT_SCHEMA, SCORE_SCHEMA, RowReader, ShardSet
from mugrpo.model.pretrained import model_path
from mugrpo.report.read import read_samples, sample_files, stored_config
from mugrpo.report.samples import Sample, Token, finite, probability, read_sample_file, said

UNREADABLE = (RunStopped, UsageError, OSError, pa.ArrowException, LookupError, ValueError)
NOT_SCORED = "not_scored"
_STATUSES = [*(status.value for status in Status), NOT_SCORED]
_COMPARED = {
    **{"": pc.equal, "=": pc.equal, "<": pc.less},
    **{"<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal},
}
_REWARD = re.compile(r"([<>]?=?)(-?\d+\.?\d*|-?\.\d+)")
_LISTED = ("problem_id", "occurrence", "sample", "finish_reason")
_SMALL = pa.schema([ROLLOUT_SCHEMA.field(name) for name in _LISTED])
_SCORED = pa.schema([SCORE_SCHEMA.field(name) for name in ("status", "reward")])
_PLACED = [pa.field(name, pa.int64()) for name in ("place", "shard", "row")]
_TABLE = pa.schema([*_PLACED, *_SMALL, *_SCORED])

Numbers = NDArray[np.int64]  # of rollouts, ascending
Key = tuple[int | None, str, int, int]  # stage, problem, occurrence, sample


@dataclass(frozen=True)
class Row:
    """A rollout without its tokens. `place` is a stage's number, "eval8", or "greedy8"."""

    place: str
    stage: int | None
    folder: Path
    shard: int
    row: int
    problem_id: str
    occurrence: int
    sample: int
    finish_reason: str
    status: str
    reward: float | None

    @property
    def key(self) -> Key:
        return self.stage, self.problem_id, self.occurrence, self.sample


class Rollouts:
    """The rollouts of the run at `root`, by number: those of stages, then those of evaluations.

    `notes` has a sentence on each file that cannot be read. `references` has the known reference
    answers by problem. Raises UsageError if `root` is not a run.
    """

    def __init__(self, root: Path) -> None:
        self.config: dict[str, Any] = stored_config(root)["config"]
        self.notes: list[str] = []
        self.references: dict[str, str] = {}
        self.sampled: dict[Key, Path] = {}  # the file that has a rollout's ratios
        self._run = RunDir(root)
        self._places: list[tuple[str, int | None, Path]] = []  # as in Row
        self._index_samples()
        self._table = pa.concat_tables([_TABLE.empty_table(), *self._tables()]).combine_chunks()
        self._tokenizer = self._load_tokenizer()
        self._reader = _readers()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def row(self, number: int) -> Row:
        stored = self._table.slice(number, 1).to_pylist()[0]
        return Row(*self._places[stored.pop("place")], **stored)

    def matching(self, words: str) -> tuple[Numbers, str]:
        """Return the rollouts that `words` allow, and the text that is still to be searched for.

        The words are stage:0,eval8 (eval for all evaluations), problem:PART_OF_ID,
        status:wrong,error and reward:>=0.5; what is left is the text. Raises UsageError if one of
        them is wrong.
        """
        try:
            split = shlex.split(words)
        except ValueError:
            raise UsageError(
                f"{words}: a quote is not closed; close it, or write \\' for an apostrophe"
            ) from None
        fits, text = np.ones(len(self), bool), []
        for word in split:
            name, colon, value = word.partition(":")
            if colon and name in ("stage", "problem", "status", "reward"):
                fits &= self._mask(name, value).fill_null(False).to_numpy()
            else:
                text.append(word)
        return fits.nonzero()[0], " ".join(text)

    def _mask(self, name: str, value: str) -> pa.ChunkedArray:
        values = value.split(",")
        if name == "problem":
            return pc.match_substring(self._table["problem_id"], value, ignore_case=True)
        if name == "status":
            if unknown := sorted({*values} - {*_STATUSES}):
                raise UsageError(
                    f"there is no status {unknown[0]!r}; choose among {', '.join(_STATUSES)}"
                )
            return pc.is_in(self._table["status"], pa.array(values))
        if name == "stage":
            names = [{place, place.strip("0123456789")} for place, _, _ in self._places]
            chosen = [n for n, own in enumerate(names) if own & {*values}]
            return pc.is_in(self._table["place"], pa.array(chosen, pa.int64()))
        if not (bound := _REWARD.fullmatch(value)):
            raise UsageError(f"reward:{value} is no bound; write reward:>=0.5 or reward:1")
        return _COMPARED[bound[1]](self._table["reward"], float(bound[2]))

    def search(self, numbers: Numbers, text: str) -> Iterator[bool]:
        """Yield for each rollout whether its prompt or response contains `text`, in any case.

        At most a few row groups are in memory at a time. This may run in a thread of its own. What
        cannot be read contains nothing, and is noted.
        """
        reader, wanted, unreadable = _readers(), text.casefold(), dict[str, None]()
        for number in numbers.tolist():
            try:
                stored = self._tokens_of(self.row(number), reader)
                ids = (stored[f"{part}_ids"] for part in ("prompt", "response"))
                yield any(wanted in "".join(self._texts(part)).casefold() for part in ids)
            except UNREADABLE as error:
                unreadable[f"texts are not searched: {error}"] = None
                yield False
        self.notes += unreadable

    def open(self, number: int) -> Sample:
        """Return a rollout with its tokens. Raises one of UNREADABLE if its shard is damaged.

        Ratios, entropies, marks and advantage are those of the last update for which they are
        stored, and None if there is none.
        """
        row = self.row(number)
        stored = self._tokens_of(row, self._reader)
        texts = self._texts(stored["response_ids"])
        kept = self._kept(row.key, len(texts))
        seen = kept.tokens if kept else [Token("", None, None)] * len(texts)
        behavior = [probability(finite(value)) for value in stored["behavior_logprobs"].tolist()]
        both = zip(seen, texts, behavior, strict=True)
        tokens = [replace(token, text=text, behavior=chance) for token, text, chance in both]
        return Sample(
            problem_id=row.problem_id,
            occurrence=row.occurrence,
            sample=row.sample,
            prompt="".join(self._texts(stored["prompt_ids"])),
            status=row.status,
            reward=finite(row.reward),
            advantage=kept.advantage if kept else None,
            finish_reason=row.finish_reason,
            tokens=said(tokens, stored.get("loss_mask")),
            reference=self.references.get(row.problem_id),
        )

    def others(self, number: int) -> dict[str, list[int]]:
        """Return place -> rollouts of the same problem, for every place but the rollout's own."""
        own = self.row(number)
        same = pc.equal(self._table["problem_id"], own.problem_id).to_numpy()
        found: dict[str, list[int]] = {}
        for other in same.nonzero()[0].tolist():
            if (place := self.row(other).place) != own.place:
                found.setdefault(place, []).append(other)
        return found

    def _tokens_of(self, row: Row, reader: Callable[[Path], RowReader]) -> dict[str, Any]:
        return reader(row.folder).rows([(row.shard, row.row)])[0]

    def _texts(self, ids: NDArray[np.int32]) -> list[str]:
        """Return the text of each token. A character of several tokens is in the last of them."""
        tokenizer, stream = self._tokenizer, DecodeStream(skip_special_tokens=False)
        texts = []
        for token in ids.tolist():
            if tokenizer is None or tokenizer.id_to_token(token) is None:
                texts.append(f"⟨{token}⟩")
                continue
            try:
                texts.append(stream.step(tokenizer, token) or "")
            except Exception:  # of no narrower class: the decoder changed what it wrote before
                stream = DecodeStream(skip_special_tokens=False)
                texts.append(stream.step(tokenizer, token) or "")
        return texts

    def _kept(self, key: Key, length: int) -> Sample | None:
        """Return a rollout as an update saw it, if that is stored."""
        file = self.sampled.get(key)
        document = read_samples(file, read_sample_file, self.notes) if file else None
        for one in document.samples if document else ():
            own = (one.problem_id, one.occurrence, one.sample)
            if own == key[1:] and len(one.tokens) == length:
                return one
        return None

    def _index_samples(self) -> None:
        def references(document: Any) -> dict[Key, Any]:
            stage, names = document.get("stage"), ("problem_id", "occurrence", "sample")
            entries = document["samples"]
            return {(stage, *(e.get(n) for n in names)): e.get("reference") for e in entries}

        for kind in ("evaluation", "update"):
            for file in sample_files(self._run, kind):
                for key, reference in (read_samples(file, references, self.notes) or {}).items():
                    self.sampled |= {key: file} if kind == "update" else {}
                    self.references |= {key[1]: reference} if isinstance(reference, str) else {}

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the small columns of each shard."""
        stages = [(n, self._run.stage(n)) for n in self._run.stages()]
        for stage, folder in [*stages, *((None, f) for f in self._run.evaluation_folders())]:
            rollouts, scores = (self._shards(folder / kind) for kind in ("rollouts", "scores"))
            for shard in rollouts.numbers() if rollouts else ():
                if not rollouts or (table := self._columns(rollouts, shard, _SMALL)) is None:
                    continue
                scored = scores.entry(shard) if scores and shard in scores else {}
                judged, rows = None, table.num_rows
                if scores and scored.get("rollouts_sha256") == rollouts.entry(shard)["sha256"]:
                    judged = self._columns(scores, shard, _SCORED)
                if judged is None or judged.num_rows != rows:
                    judged = pa.table([[NOT_SCORED] * rows, pa.nulls(rows, pa.float64())], _SCORED)
                name = str(stage)
                if stage is None:
                    name = f"{'greedy' if shard else 'eval'}{int(folder.name[7:])}"
                if (place := (name, stage, folder)) not in self._places:
                    self._places.append(place)
                where = [np.full(rows, n) for n in (self._places.index(place), shard)]
                yield pa.table([*where, np.arange(rows), *table.columns, *judged.columns], _TABLE)

    def _shards(self, folder: Path) -> ShardSet | None:
        try:
            return ShardSet(folder, folder.name)
        except UNREADABLE as error:
            self.notes.append(str(error))
            return None

    def _columns(self, shards: ShardSet, shard: int, columns: pa.Schema) -> pa.Table | None:
        """Return columns of a shard, checked by their pages' checksums, or None with a note."""
        path = shards.path(shard)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                table = file.read(columns.names).select(columns.names).cast(columns)
            if table.num_rows == shards.entry(shard)["rows"]:
                return table
            fault = f"has {table.num_rows} rows instead of {shards.entry(shard)['rows']}"
        except UNREADABLE as error:
            fault = shards.fault(shard) or f"cannot be read ({error})"
        self.notes.append(
            f"{path} {fault}; its {shards.kind} are left out, and `mugrpo repair {self._run.root}` "
            "has them made again"
        )
        return None

    def _load_tokenizer(self) -> Tokenizer | None:
        """Return the newest checkpoint's tokenizer, or the model's, or None with a note."""
        updates = self._run.checkpoint_updates()
        try:
            files = [self._run.checkpoint(n) / "tokenizer.json" for n in reversed(updates)]
            if not files:
                path = model_path(ModelOptions.model_validate(self.config["model"]))
                local, name = Path(path), "tokenizer.json"
                cached = None if local.is_dir() else try_to_load_from_cache(path, name)
                files = [Path(cached) if isinstance(cached, str) else local / name]
            return Tokenizer.from_file(str(files[0]))
        except Exception as error:  # tokenizers raises no narrower one
            self.notes.append(f"token ids are shown, as there is no tokenizer to read: {error}")
            return None


def _readers() -> Callable[[Path], RowReader]:
    """Return a function from a folder to the reader of its rollouts. It remembers two."""
    return lru_cache(2)(lambda folder: RowReader(ShardSet(folder / "rollouts", "rollouts")))
