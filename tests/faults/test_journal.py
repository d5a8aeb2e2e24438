"""Small files of a run that are changed, cut or gone: always found, and always with a way out."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from mugrpo.disk.journal import Journal
from mugrpo.disk.publishing import publish_json
from tests.faults.harm import accepted, contents, edited, flip_bit, stopped
from tests.runs import Command, assert_same, mugrpo, read_metrics

pytest_plugins = ["tests.run_fixtures"]

Harm = Callable[[Path], object]


def emptied(path: Path) -> None:
    path.write_text("{}")


def cut(path: Path) -> None:
    """Remove the last lines of a file, as a copy that was cut short would."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))


def one_digit(path: Path) -> None:
    """Change a digit of the first loss in metrics.jsonl. Every line stays a metrics line.

    A space more lets a repair write other bytes, whatever the number.
    """
    head, key, tail = path.read_text().partition('"loss": ')
    index = next(i for i, character in enumerate(tail) if character.isdigit())
    path.write_text(
        head + key + " " + tail[:index] + str((int(tail[index]) + 1) % 10) + tail[index + 1 :]
    )


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def another_rate(path: Path) -> None:
    stored = json.loads(path.read_text())
    stored["config"]["optimizer"]["lr"] = 0.5
    path.write_text(json.dumps(stored, indent=1) + "\n")


@pytest.mark.promise("changed")
@pytest.mark.parametrize(
    ("name", "harm", "fault"),
    [
        ("config.json", another_rate, "is not what the run wrote"),
        ("config.json", emptied, "is not what the run wrote"),
        ("config.json", Path.unlink, "is missing"),
        ("config.json", folder_instead, "cannot be read"),
        ("stages/000/rollouts/manifest.json", Path.unlink, "is missing"),
        ("stages/001/scores/manifest.json", flip_bit, "is not what the run wrote"),
        ("stages/001/plan/manifest.json", emptied, "is not what the run wrote"),
        ("checkpoints/update-000004/sha256.json", emptied, "is not what the run wrote"),
        ("evaluations/update-000003/scores/manifest.json", Path.unlink, "is missing"),
        ("samples/update-000004.json", flip_bit, "is not what the run wrote"),
        ("metrics.jsonl", cut, "is not what the run wrote"),
        ("metrics.jsonl", one_digit, "is not what the run wrote"),
        ("metrics.jsonl", Path.unlink, "is missing"),
    ],
)
def test_a_damaged_file_is_found_by_each_command_mended_by_repair_and_the_run_ends_the_same(
    run_dir: Path, command: Command, reference: Path, name: str, harm: Harm, fault: str
):
    harm(run_dir / name)
    before = contents(run_dir)
    for words in (["train"], ["evaluate"], ["generate", "--stage", "1"]):
        ended = command(words[0], run_dir, *words[1:])
        stopped(ended, f"{run_dir / name} {fault}", f"`mugrpo repair {run_dir}`")
    assert contents(run_dir) == before
    repaired = command("repair", run_dir)
    assert (
        repaired.status == 0 and "1 damaged" in repaired.out and str(run_dir / name) in repaired.out
    )
    assert command("repair", run_dir).out.endswith("no damage found\n")
    if name.startswith("evaluations/"):
        assert command("evaluate", run_dir, "--update", "3").status == 0
        shutil.rmtree(run_dir / "evaluations/update-000003.bad")
    assert command("train", run_dir).status == 0
    if name != "metrics.jsonl":
        assert_same(run_dir, reference)


@pytest.mark.parametrize(
    ("number", "key", "kept", "lost"),
    [(0, "accuracy", 0, 4), (3, "entropy", 0, 4), (4, "loss", 4, 2), (5, "accuracy", 5, 1)],
)
@pytest.mark.parametrize("journal", ["whole", "lost"])
def test_repair_keeps_only_lines_that_a_checkpoint_confirms(
    run_dir: Path, command: Command, number: int, key: str, kept: int, lost: int, journal: str
):
    """The checkpoints confirm 4, 5 and 8 lines: evaluation 0, refresh 0, updates 1 and 2; update 3;
    evaluation 3, refresh 3, update 4."""
    metrics = run_dir / "metrics.jsonl"
    before = metrics.read_bytes().splitlines(keepends=True)
    false = json.dumps({**json.loads(before[number]), key: 0.875}).encode() + b"\n"
    metrics.write_bytes(b"".join([*before[:number], false, *before[number + 1 :]]))
    if journal == "lost":
        (run_dir / "journal.jsonl").unlink()
    out = command("repair", run_dir).out
    assert f"those of {lost} of 4 updates" in out and f"first {kept} lines" in out
    assert metrics.read_bytes() == b"".join(before[:kept])
    assert "no damage found" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    kinds = [(line["kind"], line["update"]) for line in read_metrics(run_dir)]
    assert ("evaluation", 6) in kinds and ("update", 4) not in kinds


def test_repair_drops_lines_that_nothing_confirms_and_a_resumed_run_makes_them_again(
    run_dir: Path, command: Command, reference: Path
):
    """A killed run appends lines after its last checkpoint. Nobody can tell whether they are so."""
    metrics = run_dir / "metrics.jsonl"
    before = metrics.read_bytes()
    metrics.write_bytes(before + b'{"kind": "evaluation", "update": 4, "accuracy": 0.875}\n')
    assert "no damage found" in command("repair", run_dir).out
    assert metrics.read_bytes() == before
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize(
    ("name", "harm", "place"),
    [("config.json", another_rate, "config"), ("metrics.jsonl", one_digit, "cut metrics")],
)
def test_a_repair_that_is_killed_is_finished_by_the_next_one(
    run_dir: Path, command: Command, reference: Path, name: str, harm: Harm, place: str
):
    harm(run_dir / name)
    assert mugrpo("repair", run_dir, at=place).status == -signal.SIGKILL
    stopped(command("train", run_dir), str(run_dir / name), "`mugrpo repair ")
    assert "1 damaged" in command("repair", run_dir).out
    assert name != "metrics.jsonl" or read_metrics(run_dir) == []  # the first loss was changed
    assert command("train", run_dir).status == 0
    if name != "metrics.jsonl":
        assert_same(run_dir, reference)


def test_a_checkpoint_that_is_published_while_the_journal_is_read_is_no_fault(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its head is in a line that was appended after the reader had read all lines."""
    journal, locked = Journal(run_dir), Journal._locked
    checkpoint = run_dir / "checkpoints/update-000009"

    @contextmanager
    def then_published(self: Journal, *mode: int) -> Iterator[IO[bytes]]:
        with locked(self, *mode) as file:
            yield file
        monkeypatch.undo()
        self.append([{"dropped": "samples/update-000001.json"}])
        checkpoint.mkdir()
        (checkpoint / "stages.json").write_text(json.dumps({"journal": self.head()}))

    monkeypatch.setattr(Journal, "_locked", then_published)
    assert journal.entries() and checkpoint.is_dir()
    assert journal.entries()


def test_a_file_that_is_published_between_the_journal_and_a_look_at_it_is_no_fault(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, old = Journal(run_dir), Journal(run_dir).entries()
    manifest = run_dir / "stages/001/plan/manifest.json"
    stored = json.loads(manifest.read_text())
    publish_json(manifest, {**stored, "shards": {}})
    read = [old]
    entries = Journal.entries
    monkeypatch.setattr(Journal, "entries", lambda self: read.pop() if read else entries(self))
    journal.require()
    assert not read


def test_a_journal_tells_what_changes_in_a_manifest_and_not_all_of_it(tmp_path: Path):
    """100 shards in an order of their own: each line has one shard, and their sum has all."""
    (tmp_path / "journal.jsonl").touch()
    journal, manifest = Journal(tmp_path), tmp_path / "stages/000/plan/manifest.json"
    stored: dict[str, Any] = {"kind": "plan", "shards": {}}
    for number in (7 * n % 100 for n in range(100)):
        stored["shards"] = dict(sorted({**stored["shards"], str(number): {"rows": number}}.items()))
        publish_json(manifest, stored)
    del stored["shards"]["50"]
    publish_json(manifest, stored)
    last = journal.entries()["stages/000/plan/manifest.json"].last
    assert last is not None and last.content == stored and last.can_be_restored()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["changes"] for line in lines[2::2][:2]] == [
        [[["shards", "7"], {"rows": 7}]],
        [[["shards", "14"], {"rows": 14}]],
    ]
    assert json.loads(lines[-2])["changes"] == [[["shards", "50"]]]


def test_changes_that_are_not_those_of_the_content_restore_nothing(tmp_path: Path):
    (tmp_path / "journal.jsonl").touch()
    journal, config = Journal(tmp_path), tmp_path / "config.json"
    publish_json(config, {"format": 2})
    config.write_text('{"format": 3, "seed": 1}')  # not by the run
    publish_json(config, {"format": 3, "seed": 2})
    last = journal.entries()["config.json"].last
    assert last is not None and last.fits(config) and not last.can_be_restored()


def test_a_stage_whose_folder_is_removed_is_made_again(
    run_dir: Path, command: Command, reference: Path
):
    shutil.rmtree(run_dir / "stages/001")
    stopped(command("train", run_dir), "stages/001/", "is missing, and 2 other files are damaged")
    assert command("repair", run_dir).status == 0
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("harm", [Path.unlink, emptied, cut, flip_bit, folder_instead])
def test_a_damaged_journal_is_found_and_repair_begins_another(
    run_dir: Path, command: Command, reference: Path, harm: Harm
):
    journal = run_dir / "journal.jsonl"
    harm(journal)
    for name in ("train", "evaluate"):
        stopped(command(name, run_dir), str(journal), "begins a new one")
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)
    assert command("repair", run_dir).out.endswith("no damage found\n")


def test_the_end_of_a_line_that_a_kill_cut_short_is_left_out(
    run_dir: Path, command: Command, reference: Path
):
    with open(run_dir / "journal.jsonl", "a") as file:
        file.write('{"path": "stages/001/plan/mani')
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


def test_a_run_without_a_journal_from_before_there_were_any_gets_one(
    run_dir: Path, command: Command, reference: Path
):
    (run_dir / "journal.jsonl").unlink()
    edited(run_dir / "config.json", format=1)
    assert command("train", run_dir).status == 0
    assert json.loads((run_dir / "config.json").read_text())["format"] == 2
    assert_same(run_dir, reference)
    (run_dir / "metrics.jsonl").unlink()
    stopped(command("train", run_dir), "metrics.jsonl is missing")


def test_a_journal_from_elsewhere_cannot_make_repair_write_outside_the_run(
    run_dir: Path, command: Command
):
    """Its lines are chained as they should be: whoever writes a run can write its journal."""
    outside = run_dir.parent / "manifest.json"
    name = "stages/../../manifest.json"
    Journal(run_dir).append([{"path": name, "sha256": "0" * 64, "content": {}, "done": True}])
    stopped(command("train", run_dir), "is none that a run writes")
    command("repair", run_dir)
    assert not outside.exists()


@pytest.mark.parametrize("harm", [flip_bit, Path.unlink])
def test_train_on_a_finished_run_finds_a_damaged_final_model(
    reference: Path, tmp_path: Path, command: Command, harm: Harm
):
    run_dir = Path(shutil.copytree(reference, tmp_path / "run"))
    harm(run_dir / "checkpoints/update-000006/model.safetensors")
    stopped(command("train", run_dir), "update-000006", "model.safetensors", "`mugrpo repair")
    assert "an earlier one will be used" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


def test_a_manifest_of_another_kind_has_a_way_out(run_dir: Path, command: Command, reference: Path):
    manifest = run_dir / "stages/001/scores/manifest.json"
    edited(manifest, kind="rollouts")
    accepted(run_dir)
    ended = command("train", run_dir)
    assert ended.status in (2, 3) and f"{manifest} lists rollouts" in ended.err
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)
