"""Files of a run that are changed, swapped, cut, not readable, or folders."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.publishing import seal_folder
from tests.cases import some
from tests.faults.harm import flip_bit, refused, stopped, truncate
from tests.runs import Command, assert_same, checkpoints, read_metrics, shards

pytestmark = pytest.mark.long

pytest_plugins = ["tests.run_fixtures"]

Harm = Callable[[Path], object]


@pytest.fixture
def whole(reference: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def repaired(command: Command, run_dir: Path, name: str) -> str:
    """Check that `repair` names the file and nothing else, and return what it says."""
    ended = command("repair", run_dir)
    assert ended.status == 0 and f"{run_dir / name} " in ended.out
    assert "1 damaged" in ended.out, ended
    return ended.out


# ---- config.json ----


def another(path: Path, group: str, name: str, value: object) -> None:
    stored = json.loads(path.read_text())
    options = stored["config"][group] if group else stored["config"]
    assert options[name] != value
    options[name] = value
    path.write_text(json.dumps(stored, indent=1) + "\n")


@pytest.mark.parametrize(
    "option",
    [("optimizer", "lr", 2e-3), ("", "seed", 11), ("rollouts", "temperature", 1.0)],
    ids=str,
)
def test_an_option_that_was_changed_by_hand_is_refused_and_the_runs_own_restored(
    run_dir: Path, command: Command, option: tuple[str, str, object]
):
    config = run_dir / "config.json"
    own = config.read_bytes()
    another(config, *option)
    for force in ((), ("--force",)):
        stopped(command("train", run_dir, *force), f"{config} is not what the run wrote")
    assert "it is restored" in repaired(command, run_dir, "config.json")
    assert json.loads(config.read_text()) == json.loads(own)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\x00", b"[]"])
def test_a_config_json_that_cannot_be_read_is_restored(
    run_dir: Path, command: Command, text: bytes
):
    config = run_dir / "config.json"
    own = json.loads(config.read_text())
    config.write_bytes(text)
    stopped(command("train", run_dir), f"{config} is not what the run wrote")
    assert "it is restored" in repaired(command, run_dir, "config.json")
    assert json.loads(config.read_text()) == own


@pytest.mark.parametrize("harm", [Path.unlink, lambda config: config.write_text("[[")])
def test_a_config_json_that_is_lost_with_its_journal_is_restored_from_a_checkpoint(
    run_dir: Path, command: Command, reference: Path, harm: Harm
):
    own = json.loads((run_dir / "config.json").read_text())
    harm(run_dir / "config.json")
    (run_dir / "journal.jsonl").unlink()
    first, last = (run_dir / f"checkpoints/update-{u:06d}" for u in checkpoints(run_dir)[-2:])
    (last / "trainer.json").unlink()  # an earlier one has it as well
    assert f"it is restored from {first}\n" in command("repair", run_dir).out
    assert json.loads((run_dir / "config.json").read_text()) == own
    assert command("repair", run_dir).out.endswith("no damage found\n")
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


# ---- metrics.jsonl ----


def before(text: str) -> Harm:
    return lambda path: path.write_text(text + path.read_text())


def losses_as_text(path: Path) -> None:
    path.write_text(path.read_text().replace('"loss": ', '"loss": "none", "was": '))


def updates_of_another_kind(path: Path) -> None:
    path.write_text(path.read_text().replace('"kind": "update"', '"kind": 7'))


@pytest.mark.parametrize(
    ("harm", "lost"),
    [
        (lambda path: path.write_text(""), 4),
        (lambda path: path.write_text("garbage\n"), 4),
        (before("garbage\n"), 0),
        (before('{"kind": "update", "update": "1"}\n'), 0),
        (before("[" * 10_000 + "\n"), 0),
        (losses_as_text, 4),
        (updates_of_another_kind, 4),
    ],
)
def test_metrics_that_were_changed_are_found_and_what_is_lost_is_counted(
    run_dir: Path, command: Command, harm: Harm, lost: int
):
    metrics = run_dir / "metrics.jsonl"
    harm(metrics)
    for _ in range(2):
        stopped(command("train", run_dir), f"{metrics} is not what the run wrote", "mugrpo repair")
    out = repaired(command, run_dir, "metrics.jsonl")
    assert f"those of {lost} of 4 updates are lost" in out
    assert len([line for line in read_metrics(run_dir) if line["kind"] == "update"]) == 4 - lost


# ---- manifests ----


def entries(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    stored = json.loads(path.read_text())
    change(stored["shards"])
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    "change",
    [
        lambda listed: listed["1"].update(rows=9),
        lambda listed: listed["1"].update(bytes=9),
        lambda listed: listed["1"].pop("sha256"),
        lambda listed: listed.update({"7": listed.pop("1")}),
        lambda listed: listed.update({"one": listed.pop("1")}),
        lambda listed: listed.update({"1": 7}),
    ],
)
def test_a_manifest_with_wrong_counts_or_keys_is_found_and_restored(
    whole: Path, command: Command, change: Callable[[dict[str, Any]], object]
):
    name = "stages/001/rollouts/manifest.json"
    own = json.loads((whole / name).read_text())
    entries(whole / name, change)
    stopped(command("train", whole), f"{whole / name} is not what the run wrote")
    assert "it is restored" in repaired(command, whole, name)
    assert json.loads((whole / name).read_text()) == own


# ---- checkpoints ----


@pytest.mark.parametrize("sealed", [False, True])
def test_weights_of_another_checkpoint_are_refused(
    run_dir: Path, command: Command, reference: Path, sealed: bool
):
    """With new seals they fit these, but not the run's journal."""
    third, fourth = (run_dir / "checkpoints" / f"update-00000{n}" for n in (3, 4))
    shutil.copy(third / "model.safetensors", fourth / "model.safetensors")
    if sealed:
        (fourth / "sha256.json").unlink()
        seal_folder(fourth)
    sentence = "sha256.json is not what the run wrote" if sealed else "does not match its checksum"
    stopped(command("train", run_dir), str(fourth), sentence)
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize("harm", [truncate, lambda path: path.write_bytes(b"")])
def test_a_truncated_final_model_is_found_by_train(
    whole: Path, command: Command, reference: Path, harm: Harm
):
    harm(whole / "checkpoints/update-000006/model.safetensors")
    stopped(command("train", whole), "update-000006", "model.safetensors", "`mugrpo repair")
    assert "1 damaged" in command("repair", whole).out
    assert command("train", whole).status == 0
    assert_same(whole, reference)


# ---- evaluations and samples ----


@pytest.mark.parametrize("kind", ["rollouts", "scores"])
@pytest.mark.parametrize("harm", some(1, [flip_bit, truncate, Path.unlink]))
def test_a_damaged_evaluation_is_set_aside_and_evaluate_makes_it_again(
    whole: Path, command: Command, reference: Path, kind: str, harm: Harm
):
    name = "evaluations/update-000003"
    harm(whole / name / kind / "shard-00000.parquet")
    assert "`mugrpo evaluate` makes it again" in repaired(command, whole, name)
    assert command("evaluate", whole, "--update", 3).status == 0
    shutil.rmtree(whole / f"{name}.bad")
    assert shards(whole) == shards(reference)


@pytest.mark.parametrize("harm", some(1, [flip_bit, truncate, Path.unlink]))
def test_damaged_samples_are_found_and_the_run_goes_on_without_them(
    run_dir: Path, command: Command, reference: Path, harm: Harm
):
    name = "samples/update-000001.json"
    harm(run_dir / name)
    stopped(command("train", run_dir), str(run_dir / name))
    assert "the run goes on without it" in repaired(command, run_dir, name)
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


# ---- folders, and files of somebody else ----


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "name",
    some(
        5,
        [
            "metrics.jsonl",
            "samples/update-000001.json",
            "stages/001/rollouts/manifest.json",
            "stages/001/rollouts/shard-00001.parquet",
            "stages/001/scores/shard-00001.parquet",
            "stages/001/plan/shard-00000.parquet",
            "checkpoints/update-000004/sha256.json",
            "checkpoints/update-000004/model.safetensors",
            "checkpoints/update-000004/optimizer.safetensors",
            "checkpoints/update-000004/stages.json",
            "checkpoints/update-000004/trainer.json",
        ],
    ),
)
def test_a_folder_in_place_of_a_file_is_named_and_repaired(
    run_dir: Path, command: Command, reference: Path, name: str
):
    folder_instead(run_dir / name)
    named = run_dir / name if "checkpoints" not in name else (run_dir / name).parent
    stopped(command("train", run_dir), str(named), "`mugrpo repair")
    assert "1 damaged" in command("repair", run_dir).out
    assert command("train", run_dir).status == 0
    if name != "metrics.jsonl":
        assert_same(run_dir, reference)


@pytest.mark.parametrize("name", some(1, ["stages", "stages/001", "stages/001/rollouts"]))
def test_a_file_in_place_of_a_folder_is_repaired(
    run_dir: Path, command: Command, reference: Path, name: str
):
    shutil.rmtree(run_dir / name)
    (run_dir / name).write_text("a file")
    stopped(command("train", run_dir), "is missing", "`mugrpo repair")
    assert command("repair", run_dir).status == 0
    assert command("train", run_dir).status == 0
    assert (run_dir / f"{name}.bad").read_text() == "a file"
    assert_same(run_dir, reference)


@pytest.mark.parametrize("name", ["lock", "checkpoints"])
def test_what_repair_cannot_mend_is_one_sentence(whole: Path, command: Command, name: str):
    path = whole / name
    if name == "lock":
        folder_instead(path)
    else:
        shutil.rmtree(path)
        path.write_text("a file")
    refused(command("train", whole), str(whole))


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "journal.jsonl",
        "lock",
        "stages/001/rollouts/shard-00001.parquet",
        "checkpoints/update-000004",
    ],
)
@pytest.mark.parametrize("word", some(2, ["train", "repair", "report"]))
def test_a_file_without_permission_is_one_sentence(
    run_dir: Path, command: Command, name: str, word: str
):
    path = run_dir / name
    mode = path.stat().st_mode
    with as_others():
        path.chmod(0)
        ended = command(word, run_dir)
        path.chmod(mode)
    assert ended.status in ((0, 2, 3) if word == "report" else (2, 3)), ended
    assert ended.err.count("mugrpo: ") == ended.err.count("\n") == (ended.status > 0)
    assert ended.status == 0 or (str(run_dir) if name == "lock" else name) in ended.err
    assert command("train", run_dir).status == 0  # nothing was taken for damage


@contextmanager
def as_others() -> Iterator[None]:
    """Take from root, if that runs the tests, the right to read what it has no permission for."""
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    fewer = (ctypes.c_uint32 * 6)(before[0] & ~0b110, *before[1:])
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
