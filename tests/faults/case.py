"""A data set of chains and a run on it, for tests of data, rewards and models that are refused."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from mugrpo.tasks.embedded import running_states
from tests.faults.harm import refused
from tests.runs import Command, Ended, state, write_config

CONFIG = """
seed = 10

[task]
name = "dataset"
data = "DATA"
eval_share = 0.2
rewards = { name = "regex", pattern = "=([0-9])$" }

[workers]
count = 1

[schedule]
stages = 1
batches_per_stage = 3
problems_per_update = 2
group_size = 4

[rollouts]
shard_rollouts = 24
max_new_tokens = 8
temperature = 1.3

[evaluation]
every = 0
"""

Row = dict[str, Any]


def chain(*terms: int) -> Row:
    """Return the problem "3+2-1=" with the answer "4" for the terms 3, 2 and -1."""
    prompt = f"{terms[0]}{''.join(f'{term:+d}' for term in terms[1:])}="
    return {"prompt": prompt, "answer": str(running_states(prompt)[-1])}


def chains() -> list[Row]:
    """Return 27 problems of eight terms, of the kind that the embedded model knows."""
    beginnings = itertools.product((1, 2, 3), (1, -2, 3), (-1, 2, -3))
    return [chain(*terms, 1, 2, -1, 3, 1) for terms in beginnings]


def lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


GOOD = lines(chains())


@dataclasses.dataclass
class Case:
    """A folder for a data file and a run on it, and the models loaded so far."""

    folder: Path
    command: Command
    loads: list[str]

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def data(self, content: bytes = GOOD, name: str = "p.jsonl") -> Path:
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def words(self, *options: object, name: str = "p.jsonl") -> list[object]:
        text = CONFIG.replace("DATA", str(self.folder / name))
        return [write_config(self.folder, text), "--run-dir", self.run_dir, *options]

    def train(self, *options: object, name: str = "p.jsonl") -> Ended:
        return self.command("train", *self.words(*options, name=name))

    def refused(self, *options: object, parts: tuple[str, ...], name: str = "p.jsonl") -> None:
        """Check that training is refused before a model is loaded or anything is written."""
        refused(self.train(*options, name=name), *parts)
        assert self.loads == [] and not self.run_dir.exists()

    def starts(self, *options: object, shards: int = 1, name: str = "p.jsonl") -> Ended:
        """Check that the run starts in the same directory, without --force."""
        ended = self.command("generate", *self.words(*options, name=name))
        assert ended.status == 0, ended
        assert state(self.run_dir).rollouts == (shards, 0) and self.loads
        return ended
