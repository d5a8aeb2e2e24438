"""All rollouts of a run, to list, filter and open. Nothing here needs torch.

Only small columns of the shards are read at first. Tokens are read when a rollout is opened.
"""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from huggingface_hub import try_to_load_from_cache
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.records import Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import RowReader, ShardSet
from mugrpo.model.pretrained import model_path
from mugrpo.report.read import read_samples, sample_files, stored_config
from mugrpo.report.samples import Token, said, tokens_of
from mugrpo.tasks import make_task

UNREADABLE = (RunStopped, UsageError, OSError, pa.ArrowException, LookupError, ValueError)
NOT_SCORED = "not_scored"
_STATUSES = [*(status.value for status in Status), NOT_SCORED]
_COMPARED = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt}
_COMPARED |= {">=": operator.ge}
_REWARD = re.compile(r"([<>]?=?)(-?\d*\.?\d+)")
_UNJUDGED = {"status": NOT_SCORED, "reward": None}
_LISTED = ["problem_id", "occurrence", "sample", "finish_reason"]

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

    `notes` has a sentence on each file that cannot be read. Raises UsageError if `root` is not a
    run.
    """

    def __init__(self, root: Path) -> None:
        self.config: dict[str, Any] = stored_config(root)["config"]
        self.notes: list[str] = []
        self._run = RunDir(root)
        files = read_samples(sample_files(self._run, "update"), self.notes)
        entries = [(file.get("stage"), entry) for file in files for entry in file["samples"]]
        # As an update saw them; the last one counts.
        self.sampled: dict[Key, dict[str, Any]] = {
            (stage, *(entry[name] for name in _LISTED[:3])): entry for stage, entry in entries
        }
        self.rows = list(self._rows())
        self._tokenizer = self._load_tokenizer()
        # The readers of two folders' rollouts are remembered.
        self._reader = lru_cache(2)(lambda f: RowReader(ShardSet(f / "rollouts", "rollouts")))

    @cached_property
    def references(self) -> dict[str, str]:
        """Return problem -> reference answer, of the task as it is today.

        The problems are read, but no code that the config names is run.
        """
        try:
            task = make_task(build_config(self.config, "config.json").task)
            problems = [*task.train_problems(), *task.eval_problems()]
        except UNREADABLE as error:
            self.notes.append(f"the problems cannot be read: {error}")
            return {}
        return {problem.id: problem.reference for problem in problems}

    def matching(self, words: str) -> Numbers:
        """Return the rollouts that fit all `words`. Raises UsageError if one of them is wrong.

        The words are stage:0,eval8 (eval for all evaluations), problem:PART_OF_ID,
        status:wrong,error and reward:>=0.5.
        """
        tests = [_test(*word.partition(":")[::2]) for word in words.split()]
        fits = [n for n, row in enumerate(self.rows) if all(test(row) for test in tests)]
        return np.array(fits, np.int64)

    def open(self, number: int) -> tuple[str, list[Token], float | None]:
        """Return a rollout's prompt, tokens and advantage. Raises one of UNREADABLE if damaged.

        Ratios, entropies, marks and advantage are those of the last update for which they are
        stored, and None if there is none.
        """
        row = self.rows[number]
        stored = self._reader(row.folder).row(row.shard, row.row)
        prompt = "".join(self._texts(stored["prompt_ids"]))
        texts = self._texts(stored["response_ids"])
        if (kept := self.sampled.get(row.key)) and len(kept["tokens"]) == len(texts):
            return prompt, tokens_of({**kept, "tokens": texts}), kept["advantage"]
        both = zip(texts, stored["behavior_logprobs"].tolist(), strict=True)
        tokens = [Token(text, logprob) for text, logprob in both]
        return prompt, said(tokens, stored.get("loss_mask")), None

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

    def _rows(self) -> Iterator[Row]:
        """Yield the rollouts of each shard, without tokens."""
        stages = [(n, self._run.stage(n)) for n in self._run.stages()]
        for stage, folder in [*stages, *((None, f) for f in self._run.evaluation_folders())]:
            try:
                rollouts, scores = (ShardSet(folder / k, k) for k in ("rollouts", "scores"))
            except UNREADABLE as error:
                self.notes.append(str(error))
                continue
            for shard in rollouts.numbers():
                name = str(stage)
                if stage is None:
                    name = f"{'greedy' if shard else 'eval'}{int(folder.name[7:])}"
                try:
                    listed = rollouts.open(shard).read(_LISTED).to_pylist()
                    judged = _judged(rollouts, scores, shard) or [_UNJUDGED] * len(listed)
                except UNREADABLE as error:
                    self.notes.append(f"{error}")
                    continue
                for number, (row, score) in enumerate(zip(listed, judged, strict=True)):
                    yield Row(name, stage, folder, shard, number, **row, **score)

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


def _judged(rollouts: ShardSet, scores: ShardSet, shard: int) -> list[dict[str, Any]]:
    """Return the scores of a shard, or [] if it is not scored."""
    scored = scores.entry(shard) if shard in scores else {}
    if scored.get("rollouts_sha256") != rollouts.entry(shard)["sha256"]:
        return []
    rows: list[dict[str, Any]] = scores.open(shard).read(["status", "reward"]).to_pylist()
    return rows


def _test(name: str, value: str) -> Callable[[Row], bool]:
    """Return whether a rollout has one of the values after `name`."""
    values = value.split(",")
    if name == "problem":
        return lambda row: value.casefold() in row.problem_id.casefold()
    if name == "stage":
        return lambda row: bool({row.place, row.place.strip("0123456789")} & {*values})
    if name == "status":
        if unknown := sorted({*values} - {*_STATUSES}):
            raise UsageError(
                f"there is no status {unknown[0]!r}; choose among {', '.join(_STATUSES)}"
            )
        return lambda row: row.status in values
    if name != "reward" or not (bound := _REWARD.fullmatch(value)):
        raise UsageError(
            f"{name}:{value} is not a filter; write stage:0, problem:ID, status:wrong or "
            "reward:>=0.5"
        )
    compare, limit = _COMPARED[bound[1] or "="], float(bound[2])
    return lambda row: row.reward is not None and compare(row.reward, limit)
