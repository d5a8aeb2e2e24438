"""Each accident to each kind of file of a run is found, and `repair` mends it.

Mended means: the run ends in the bits of an uninterrupted one, or with lines of metrics.jsonl less,
or the remedy is refused in a sentence. Whoever makes the checksums fit a changed number is not
found, but where something else tells the same number.
"""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.metrics import encoded
from tests.cases import some
from tests.faults.harm import contents, flip_bit, refused, stopped, summed, truncate
from tests.runs import Command, assert_same, final_weights, killed, mugrpo, read_metrics, shards

Harm = Callable[[Path], object]


def number(path: Path, *keys: str) -> None:
    """Change a number of a JSON file."""
    stored = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = inner[keys[-1]] + 1
    path.write_text(json.dumps(stored, indent=1) + "\n")


def in_line(path: Path, line: int, key: str, value: object = 0.875, *, sums: bool = False) -> None:
    """Change a value of a line of a metrics file. With `sums`, its own checksum fits."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert repr(lines[line][key]) != repr(value)
    lines[line][key] = value
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    if sums:
        summed(path)


def of_lines(change: Callable[[list[bytes]], list[bytes]]) -> Harm:
    """Return a harm that changes the lines of a file, each as it is."""

    def harm(path: Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return harm


def says_the_same(command: Command, run_dir: Path, *parts: str) -> None:
    """Check that `train` refuses, that `report` says why, and that `card` refuses with that."""
    before = contents(run_dir)
    before.pop(Path("metrics.jsonl"), None)  # an update before the damage may be made
    stopped(command("train", run_dir), *parts, "`mugrpo repair")
    after = contents(run_dir)
    assert {path: after.get(path) for path in before} == before
    reported = command("report", run_dir, "--out", run_dir.with_name("report.html"))
    if reported.status:  # nothing can be drawn without config.json
        stopped(reported, *parts, "`mugrpo repair")
        stopped(command("card", run_dir), *parts, "`mugrpo repair")
    else:
        assert [p for p in (*parts, "`mugrpo repair") if p not in reported.out] == [], reported
        refused(command("card", run_dir), *parts, f"`mugrpo repair {run_dir}`")


def all_agree_that_it_is_whole(command: Command, run_dir: Path) -> None:
    """Check that `repair`, `report` and `card` find nothing wrong with the run."""
    assert command("repair", run_dir).out.endswith("no damage found\n")
    page = run_dir.with_name("report.html")
    assert command("report", run_dir, "--out", page).out == f"{page}\n"
    card = command("card", run_dir, "--out", run_dir.with_name("card.md"))
    assert card.status == 0 or "has made no update" in card.err, card


RATE = ("config", "optimizer", "lr")
ROLLOUTS, SCORES = "stages/001/rollouts", "stages/001/scores"
NEWEST, EVALUATION = "checkpoints/update-000004", "evaluations/update-000003"
HARMS: list[tuple[str, Harm]] = [
    ("config.json", flip_bit),
    (f"{SCORES}/shard-00001.json", lambda path: number(path, "shard", "reward_sum")),
    (f"{NEWEST}/model.safetensors", flip_bit),
    ("config.json", truncate),
    ("config.json", Path.unlink),
    ("config.json", lambda path: path.write_bytes(b"")),
    ("config.json", lambda path: number(path, *RATE)),
    (f"{ROLLOUTS}/shard-00001.json", truncate),
    (f"{ROLLOUTS}/shard-00001.json", lambda path: number(path, "shard", "tokens")),
    *((f"{ROLLOUTS}/shard-00002.parquet", harm) for harm in (flip_bit, truncate, Path.unlink)),
    (f"{SCORES}/shard-00002.parquet", flip_bit),
    (f"{NEWEST}/optimizer.safetensors", truncate),
    (f"{NEWEST}/trainer.json", Path.unlink),
    (f"{NEWEST}/stages.json", lambda path: path.write_text("{}")),
    (f"{NEWEST}/sha256.json", lambda path: path.write_text("{}")),
]


@pytest.mark.promise("changed")
@pytest.mark.parametrize(("name", "harm"), some(3, HARMS))
def test_a_changed_file_is_named_and_after_repair_the_run_ends_in_the_same_bits(
    run_dir: Path, command: Command, reference: Path, name: str, harm: Harm
):
    harm(run_dir / name)
    named = run_dir / (NEWEST if name.startswith(NEWEST) else name)
    says_the_same(command, run_dir, f"{named}")
    repaired = command("repair", run_dir)
    assert repaired.status == 0 and "1 damaged" in repaired.out and f"{named}" in repaired.out
    all_agree_that_it_is_whole(command, run_dir)
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


# The run has 8 lines: evaluation 0, refresh 0, updates 1 to 3, evaluation 3, refresh 3, update 4.
# Four updates have checkpoints. `lost` are updates whose lines `repair` cannot keep.
LINES: list[tuple[Harm, int, int]] = [
    (lambda path: in_line(path, 3, "loss"), 7, 1),
    (of_lines(lambda lines: [*lines[:4], lines[4], lines[4], *lines[5:]]), 8, 0),
    (of_lines(lambda lines: lines[:-1]), 7, 1),
    (of_lines(lambda lines: lines[:2]), 2, 4),
    (of_lines(lambda lines: []), 0, 4),
    (Path.unlink, 0, 4),
    (flip_bit, 7, 1),
    (truncate, 7, 1),
    (lambda path: in_line(path, 0, "accuracy"), 7, 0),
    (lambda path: in_line(path, 6, "mean_length"), 7, 0),
    (of_lines(lambda lines: [b"garbage\n", *lines]), 8, 0),
    (of_lines(lambda lines: [*lines, *lines]), 8, 0),
    (of_lines(lambda lines: [*lines, lines[5]]), 8, 0),
    (of_lines(lambda lines: [*lines[:3], *lines[4:]]), 7, 1),
    (of_lines(lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]]), 7, 1),
    (of_lines(lambda lines: [*lines, encoded({"kind": "update", "update": 2, "loss": 9.0})]), 8, 0),
    (of_lines(lambda lines: [*lines, encoded({"kind": "update", "update": 900})]), 8, 0),
    (of_lines(lambda lines: [*lines, encoded({"kind": "evaluation", "update": 5})]), 8, 0),
    *(
        (lambda path, key=key, value=value: in_line(path, 3, key, value, sums=True), 7, 1)
        for key, value in [
            *(("kind", x) for x in (None, 7, [], {})),
            *(("update", x) for x in ("2", -1, True, 2.0, None, 10**30)),
            *(("loss", x) for x in ("x", [1], {"a": {}}, True, float("nan"), 10**400)),
        ]
    ),
]


@pytest.mark.promise("changed")
@pytest.mark.parametrize(("harm", "kept", "lost"), some(3, LINES))
def test_repair_keeps_the_lines_that_are_right_and_says_what_is_lost(
    run_dir: Path, command: Command, reference: Path, harm: Harm, kept: int, lost: int
):
    metrics, before = run_dir / "metrics.jsonl", read_metrics(run_dir)
    harm(metrics)
    says_the_same(command, run_dir, f"{metrics}")
    out = command("repair", run_dir).out
    assert f"; {kept} of " in out and f"those of {lost} of 4 updates are lost" in out, out
    left = [line for line in read_metrics(run_dir) if line["kind"] != "repair"]
    assert len(left) == kept and [line for line in left if line not in before] == []
    all_agree_that_it_is_whole(command, run_dir)
    assert command("train", run_dir).status == 0
    true = read_metrics(reference)
    found = [line for line in read_metrics(run_dir) if line["kind"] != "repair"]
    missing = [line for line in true if line not in found]
    assert [line for line in found if line not in true] == []
    assert [line for line in missing if line["kind"] == "refresh"] == []  # made again
    assert len([line for line in missing if line["kind"] == "update"]) == lost
    assert final_weights(run_dir) == final_weights(reference)
    all_agree_that_it_is_whole(command, run_dir)


@pytest.fixture
def whole(reference: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def shard_of(kind: str, update: int = 6) -> str:
    return f"evaluations/update-{update:06d}/{kind}/shard-00000.parquet"


def changed_accuracy(run: Path, sums: bool = True) -> None:
    in_line(run / "metrics.jsonl", -1, "accuracy", sums=sums)


# In each, the last evaluation may be wrong, and is made again.
WITNESSES: list[Callable[[Path], object]] = [
    lambda run: (changed_accuracy(run), flip_bit(run / shard_of("scores"))),
    changed_accuracy,
    lambda run: changed_accuracy(run, sums=False),
    lambda run: flip_bit(run / shard_of("rollouts")),
    lambda run: (run / shard_of("scores")).unlink(),
    lambda run: flip_bit(run / "evaluations/update-000006/scores/shard-00000.json"),
]


@pytest.mark.promise("changed")
@pytest.mark.parametrize("harm", some(2, WITNESSES))
def test_an_evaluation_and_its_line_must_agree_and_are_made_again_together(
    whole: Path, command: Command, reference: Path, harm: Callable[[Path], object]
):
    """Not even a changed accuracy whose checksum fits is believed because its shard is damaged."""
    assert read_metrics(whole)[-1]["kind"] == "evaluation"
    harm(whole)
    says_the_same(command, whole, str(whole))
    out = command("repair", whole).out
    assert "damaged" in out and "mugrpo" in out
    assert read_metrics(whole) == read_metrics(reference)[:-1]
    all_agree_that_it_is_whole(command, whole)
    assert command("train", whole).status == 0
    for bad in whole.glob("evaluations/*.bad"):
        shutil.rmtree(bad)
    assert_same(whole, reference)


def test_a_number_that_is_changed_with_its_checksum_is_not_found(run_dir, command, reference):
    """Whoever may write a run's folder may write any number: docs/reliability.md says so."""
    in_line(run_dir / "metrics.jsonl", 3, "loss", sums=True)
    all_agree_that_it_is_whole(command, run_dir)
    assert command("train", run_dir).status == 0
    (changed,) = [line for line in read_metrics(run_dir) if line not in read_metrics(reference)]
    assert changed["loss"] == 0.875 and final_weights(run_dir) == final_weights(reference)


@pytest.mark.long
def test_lines_of_updates_that_no_checkpoint_holds_are_made_again(tmp_path, command, reference):
    """It is killed before the checkpoint of update 6, in whose place there could be any number."""
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 6)
    assert read_metrics(run_dir)[-1]["update"] == 5
    in_line(run_dir / "metrics.jsonl", -1, "loss", sums=True)
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: number(path, *RATE)])
def test_a_config_that_no_checkpoint_knows_is_refused_and_never_guessed(
    scored_run: Path, tmp_path: Path, command: Command, harm: Harm
):
    """Nothing else has a copy of it before the first checkpoint."""
    run_dir = Path(shutil.copytree(scored_run, tmp_path / "run"))
    config = run_dir / "config.json"
    harm(config)
    ended = command("repair", run_dir)
    refused(ended, f"{run_dir}")
    assert not config.exists() or "begin the run again in a new --run-dir" in ended.err


@pytest.mark.long
def test_a_change_that_was_forced_is_no_damage_before_and_after_the_next_checkpoint(
    run_dir: Path, command: Command
):
    words = ("train", run_dir, "--optimizer.lr=2e-3")
    refused(command(*words), "optimizer.lr", "--force")
    assert mugrpo(*words, "--force", at="gradient").status == -signal.SIGKILL
    assert command("report", run_dir).status == command("train", run_dir).status == 0
    assert json.loads((run_dir / "config.json").read_text())["config"]["optimizer"]["lr"] == 2e-3
    assert command("repair", run_dir).out.endswith("no damage found\n")


@pytest.mark.promise("changed")
@pytest.mark.parametrize(
    "name",
    some(1, [NEWEST, f"{ROLLOUTS}/shard-00001.json", f"{SCORES}/shard-00001.json", "stages/001"]),
)
def test_what_is_missing_is_made_again_as_if_it_had_not_been_published(
    run_dir: Path, command: Command, reference: Path, name: str
):
    path = run_dir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "harm"), [("rollouts", flip_bit), ("scores", Path.unlink)])
def test_a_damaged_evaluation_is_set_aside_with_its_line_and_evaluate_makes_both_again(
    whole: Path, command: Command, reference: Path, kind: str, harm: Harm
):
    harm(whole / EVALUATION / kind / "shard-00000.parquet")
    out = command("repair", whole).out
    assert f"{whole / EVALUATION} is damaged" in out, out
    assert f"`mugrpo evaluate {whole} --update 3` makes it again" in out
    assert len(read_metrics(whole)) == len(read_metrics(reference)) - 1
    assert command("evaluate", whole, "--update", 3).status == 0
    shutil.rmtree(whole / f"{EVALUATION}.bad")
    assert shards(whole) == shards(reference)

    def in_order(run: Path) -> list[dict[str, Any]]:
        return sorted(read_metrics(run), key=lambda line: (line["kind"], line["update"]))

    assert in_order(whole) == in_order(reference)


@pytest.mark.promise("copy")
@pytest.mark.parametrize("cut", some(1, [False, True]))
def test_a_copy_of_a_run_that_goes_on_meanwhile_is_repaired_and_ends_in_the_same_bits(
    run_dir: Path, command: Command, reference: Path, tmp_path: Path, cut: bool
):
    """Checkpoints are copied last. If it is cut then, they know of more lines than the copy has."""
    copy, others = tmp_path / "copy", shutil.ignore_patterns("checkpoints", "lock")
    shutil.copytree(run_dir, copy, ignore=others)
    assert command("train", run_dir).status == 0
    shutil.copytree(run_dir / "checkpoints", copy / "checkpoints")
    if not cut:
        shutil.copytree(run_dir, copy, ignore=others, dirs_exist_ok=True)
    assert command("repair", copy).out.endswith("no damage found\n") == (not cut)
    assert command("train", copy).status == 0
    assert final_weights(copy) == final_weights(reference)
    if not cut:
        assert_same(copy, reference)
