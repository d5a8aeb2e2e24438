"""A run's model and rollouts on a stand-in for the Hub: what is sent, what is not, and failures."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import peft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import OIDCError
from huggingface_hub.utils import _http, disable_progress_bars, enable_progress_bars
from transformers import AutoModelForCausalLM, AutoTokenizer

from mugrpo.disk.shards import ShardSet, read_rollouts
from mugrpo.tools import publish as publishing
from tests.faults.harm import accepted, edited, flip_bit, refused, resume_words, stopped
from tests.runs import ENVIRONMENT, MODEL, ROOT, Command, finished
from tests.tools.hub import TOKEN, Hub, Refusal

pytest_plugins = ["tests.run_fixtures"]

MODEL_REPO, DATA_REPO = ("model", "alice/tiny"), ("dataset", "alice/rollouts")


@pytest.fixture(scope="session")
def adapter_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with lora.rank. Tests only read it."""
    run_dir = tmp_path_factory.mktemp("adapter") / "run"
    finished(run_dir, "--lora.rank", 4, "--evaluation.every", 0)
    return run_dir


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in, with the library's constants as its environment variables would set them."""
    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(_http.time, "sleep", lambda _: None)  # between its attempts
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Drawing takes longer than the rest. Processes of their own, and test_card.py, do draw.
    monkeypatch.setattr("mugrpo.tools.publish.learning_curve", lambda _: b"a picture")
    disable_progress_bars()
    yield hub
    enable_progress_bars()
    hub.close()


def publish(command: Command, run_dir: Path, *options: object) -> Any:
    ended = command("publish", run_dir, "alice/tiny", *options)
    assert TOKEN not in ended.out + ended.err
    return ended


def published(command: Command, run_dir: Path, *options: object) -> None:
    ended = publish(command, run_dir, *options)
    assert (ended.status, ended.err) == (0, ""), ended


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def gap(model: Any, run_dir: Path, stage: int) -> float:
    """Return the largest difference from the logprobs that the run has stored of a stage."""
    gaps = []
    shards = ShardSet(run_dir / f"stages/{stage:03d}/rollouts", "rollouts")
    for rollout in read_rollouts(shards, 0):
        ids = torch.tensor(np.concatenate([rollout.prompt_ids, rollout.response_ids])[None])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
        logprobs = (logits / rollout.temperature).log_softmax(-1)
        chosen = logprobs.gather(-1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]
        gaps.append((chosen - torch.tensor(rollout.behavior_logprobs)).abs().max().item())
    return max(gaps)


@pytest.mark.long
def test_a_published_model_gives_the_runs_own_logprobs(reference: Path, hub: Hub, tmp_path: Path):
    """In a process of its own, which finds the stand-in by the documented variables.

    The run's second stage was sampled from the model after update 3.
    """
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), ENVIRONMENT["PYTHONPATH"]]),
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HOME": str(tmp_path / "home"),
    }
    words = [sys.executable, "-m", "mugrpo", "publish", reference, "alice/tiny", "--update", "3"]
    done = subprocess.run(
        [*words, "--rollouts", "alice/rollouts"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.count(hub.url) == 2 and TOKEN not in done.stdout
    for key in (MODEL_REPO, DATA_REPO):
        assert hub.repos[key].private and len(hub.repos[key].commits) == 2
    assert hub.repos[MODEL_REPO].files["learning_curve.png"].startswith(b"\x89PNG")
    model: Any = AutoModelForCausalLM.from_pretrained("alice/tiny", cache_dir=tmp_path / "cache")
    assert gap(model, reference, 1) < 1e-5 < gap(model, reference, 0)
    tokenizer = AutoTokenizer.from_pretrained("alice/tiny", cache_dir=tmp_path / "cache")
    assert tokenizer("3+2=").input_ids == AutoTokenizer.from_pretrained(MODEL)("3+2=").input_ids


def test_an_adapter_is_published_as_peft_reads_it_or_merged(
    adapter_run: Path, hub: Hub, tmp_path: Path, command: Command
):
    published(command, adapter_run, "--update", 3)
    repo = hub.repos[MODEL_REPO]
    assert {"adapter_config.json", "adapter_model.safetensors"} < repo.files.keys()
    assert json.loads(repo.files["adapter_config.json"])["base_model_name_or_path"] is None
    base: Any = AutoModelForCausalLM.from_pretrained(MODEL)
    for name, data in repo.files.items():  # peft would ask the place that it was imported with
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "copy")
    assert gap(adapted, adapter_run, 1) < 1e-5
    repo.commit("a note", {**repo.files, "NOTES.txt": b"the user's own"})
    published(command, adapter_run, "--update", 3, "--merged")
    names = repo.files.keys()
    assert not [name for name in names if "adapter" in name] and "model.safetensors" in names
    assert repo.files["NOTES.txt"] == b"the user's own"
    merged: Any = AutoModelForCausalLM.from_pretrained("alice/tiny", cache_dir=tmp_path / "cache")
    assert gap(merged, adapter_run, 1) < 1e-5
    published(command, adapter_run, "--base-model", "alice/base")
    config = json.loads(repo.files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "alice/base"
    card = huggingface_hub.ModelCard(repo.files["README.md"].decode())
    assert (card.data.base_model, card.data.library_name) == ("alice/base", "peft")


def test_a_dry_run_is_what_is_sent_and_asks_nobody(
    reference: Path, hub: Hub, tmp_path: Path, command: Command
):
    options = ("--rollouts", "alice/rollouts", "--license", "mit")
    published(command, reference, *options, "--dry-run", tmp_path / "dry")
    assert hub.asked == []
    published(command, reference, *options)
    assert files_in(tmp_path / "dry" / "model") == hub.repos[MODEL_REPO].files
    assert files_in(tmp_path / "dry" / "dataset") == hub.repos[DATA_REPO].files
    assert command("export", reference, tmp_path / "exported").status == 0
    exported = files_in(tmp_path / "exported")
    sent = hub.repos[DATA_REPO].files
    assert {n: sent[n] for n in exported if n != "README.md"} == {
        n: data for n, data in exported.items() if n != "README.md"
    }
    assert 'load_dataset("alice/rollouts", split="train")' in sent["README.md"].decode()
    assert "license: mit" in sent["README.md"].decode()
    refused(publish(command, reference, "--dry-run", tmp_path / "dry"), "name a new folder")


def test_rollouts_are_those_of_the_updates_that_are_published(
    reference: Path, hub: Hub, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """The second stage was sampled after update 3. What errors said is never among them."""
    table = pa.table({"status": ["none"]})
    monkeypatch.setattr("mugrpo.extensions.exchange.exporting._without_reasons", lambda _: table)
    options = ("--rollouts", "alice/rollouts", "--base-model", "alice/base", "--update", 3)
    published(command, reference, *options, "--dry-run", tmp_path / "dry")
    files = files_in(tmp_path / "dry" / "dataset")
    names = {name for name in files if name.endswith(".parquet")}
    assert names == {f"data/stage-000-{shard:05d}.parquet" for shard in range(3)}
    assert all(pq.read_table(io.BytesIO(files[name])) == table for name in names)
    card = " ".join(files["README.md"].decode().split())
    assert "model before the first update was alice/base." in card


@pytest.mark.parametrize("when", ["mugrpo.tools.publish.model_card", "mugrpo.tools.publish.send"])
def test_a_checkpoint_that_the_run_removes_meanwhile_is_one_sentence(
    run_dir: Path, hub: Hub, command: Command, monkeypatch: pytest.MonkeyPatch, when: str
):
    original = getattr(publishing, when.rpartition(".")[2])

    def late(*arguments: Any, **options: Any) -> Any:
        shutil.rmtree(run_dir / "checkpoints" / "update-000004")
        return original(*arguments, **options)

    monkeypatch.setattr(when, late)
    stopped(publish(command, run_dir, "--update", 4), "update-000004 meanwhile; publish again")
    assert not any(repo.files for repo in hub.repos.values())


@pytest.mark.parametrize(
    ("error", "ends", "sentence"),
    [
        (OIDCError("no id token"), refused, "(OIDCError: no id token); correct HF_ENDPOINT"),
        (OSError(28, "No space left on device"), stopped, "device); mend that on this machine"),
        (PermissionError(13, "Permission denied", "token"), stopped, "mend that on this machine"),
    ],
)
def test_a_failure_on_this_machine_is_not_one_of_the_network(
    reference: Path,
    hub: Hub,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    ends: Any,
    sentence: str,
):
    def fails() -> None:
        raise error

    monkeypatch.setattr("mugrpo.tools.repository.get_token", fails)
    ends(publish(command, reference), "alice/tiny was not published (", sentence)


def test_a_commit_that_is_perhaps_made_is_not_denied(reference: Path, hub: Hub, command: Command):
    hub.refusals.append(Refusal("POST .*/commit/", 504))
    stopped(publish(command, reference), "(504: as the test", "look whether it has the commit")


def test_an_adapter_that_cannot_be_merged_is_told_without_options_of_merge(
    adapter_run: Path, hub: Hub, command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mugrpo.tools.merge.model_fingerprint", lambda _: "other")
    ended = publish(command, adapter_run, "--merged")
    refused(ended, "has changed since; make it with `mugrpo merge`, or publish the adapter")
    assert "--base" not in ended.err and "--force" not in ended.err


def test_nothing_is_sent_but_weights_configs_tokenizer_and_card(
    run_dir: Path, hub: Hub, command: Command
):
    """Not even files that somebody has put beside them."""
    checkpoint = run_dir / "checkpoints" / "update-000004"
    for name in ("modeling_own.py", "train.log", ".env", "notes.md", "notes.txt", "own.json"):
        (checkpoint / name).write_text("sesame")
    published(command, run_dir)
    assert sorted(hub.repos[MODEL_REPO].files) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "learning_curve.png",
        "model.safetensors",
        "mugrpo-run.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_second_publish_of_a_run_is_one_more_commit(reference: Path, hub: Hub, command: Command):
    published(command, reference, "--update", 3)
    first = hub.repos[MODEL_REPO].files
    published(command, reference)
    repo = hub.repos[MODEL_REPO]
    assert repo.titles == ["initial commit", "Model after update 3", "Model after update 6"]
    assert repo.files.keys() == first.keys()
    assert repo.files["model.safetensors"] != first["model.safetensors"]
    assert json.loads(repo.files["mugrpo-run.json"])["update"] == 6


def test_a_repository_of_something_else_is_refused_and_replaced_with_force(
    reference: Path, adapter_run: Path, hub: Hub, command: Command
):
    published(command, adapter_run)
    repo = hub.repos[MODEL_REPO]
    before = repo.files
    ended = publish(command, reference)
    refused(ended, "alice/tiny holds another run;", "replace all of it with --force")
    assert repo.files == before
    published(command, reference, "--force")
    assert "adapter_config.json" not in repo.files and "model.safetensors" in repo.files
    hub.create("model", "alice/tiny", **{"pytorch_model.bin": b"other"})
    refused(publish(command, reference), "holds something that no run has published")
    hub.create("model", "alice/tiny")
    published(command, reference)  # it was empty


def test_visibility_is_never_a_surprise(reference: Path, hub: Hub, command: Command):
    published(command, reference, "--public")
    assert not hub.repos[MODEL_REPO].private
    refused(publish(command, reference), "alice/tiny is public; add --public")
    hub.create("model", "alice/tiny")
    refused(publish(command, reference, "--public"), "alice/tiny is private; leave out --public")


@pytest.mark.parametrize(
    ("at", "status", "sentence"),
    [
        ("GET /api/models", 401, "the token is not valid: log in again with `hf auth login`"),
        ("GET /api/models", 403, "the token must be allowed to write to alice"),
        ("POST /api/repos/create", 403, "the token must be allowed to write to alice"),
        ("POST /api/repos/create", 404, "check that alice exists"),
        ("POST /api/repos/create", 409, "it exists, and the token may not see it"),
        ("POST .*/preupload/", 403, "the token must be allowed to write to alice"),
        ("POST .*/commit/", 403, "the token must be allowed to write to alice"),
        ("POST .*/commit/", 422, "look at what --dry-run FOLDER writes"),
    ],
)
def test_a_refusal_of_the_hub_is_one_sentence(
    reference: Path, hub: Hub, command: Command, at: str, status: int, sentence: str
):
    hub.refusals.append(Refusal(at, status))
    ended = publish(command, reference)
    refused(ended, f"the Hub refuses alice/tiny ({status}: as the test wants it); {sentence}")
    assert not any(repo.files for repo in hub.repos.values())


@pytest.mark.parametrize(
    ("at", "status"), [("PUT /upload", 0), ("PUT /upload", 503), ("POST .*/commit/", 500)]
)
def test_an_upload_that_is_cut_short_leaves_the_repository_as_it_was(
    reference: Path, hub: Hub, command: Command, at: str, status: int
):
    published(command, reference, "--update", 3)
    before = hub.repos[MODEL_REPO].files
    hub.refusals.append(Refusal(at, status))
    ended = publish(command, reference, "--update", 6)
    stopped(ended, hub.url if status == 0 else f"the Hub did not take alice/tiny ({status}: ")
    assert hub.repos[MODEL_REPO].files == before
    hub.refusals.clear()
    words = resume_words(ended)
    assert words == ["publish", str(reference), "alice/tiny", "--update", "6"]
    assert command(*words).status == 0
    assert json.loads(hub.repos[MODEL_REPO].files["mugrpo-run.json"])["update"] == 6


def test_a_commit_of_someone_else_meanwhile_is_not_overwritten(
    reference: Path, hub: Hub, command: Command, monkeypatch: pytest.MonkeyPatch
):
    published(command, reference, "--update", 3)
    repo = hub.repos[MODEL_REPO]
    original = huggingface_hub.HfApi.create_commit

    def late(*arguments: Any, **options: Any) -> Any:
        repo.commit("theirs", {**repo.commits[-1], "theirs.txt": b""})
        return original(*arguments, **options)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", late)
    stopped(publish(command, reference), "alice/tiny was changed by someone else meanwhile (412: ")
    assert repo.titles[-1] == "theirs"


def test_without_token_or_network_one_sentence_says_so(
    reference: Path, hub: Hub, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(publish(command, reference), "HF_HUB_OFFLINE is set; unset it")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.close()
    stopped(publish(command, reference), f"{hub.url} cannot be reached (", "check the network")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    refused(publish(command, reference), "there is no token; log in with `hf auth login`")


def test_a_damaged_run_and_a_strangers_code_are_refused_before_anything_is_asked(
    run_dir: Path, hub: Hub, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = run_dir / "checkpoints" / "update-000004" / "model.safetensors"
    flip_bit(model)
    ended = publish(command, run_dir)
    stopped(ended, "model.safetensors that does not match its checksum", "mugrpo repair")
    flip_bit(model)
    metrics = (run_dir / "metrics.jsonl").read_bytes()
    edited(run_dir / "samples" / "update-000001.json", update=7)
    stopped(publish(command, run_dir), "is not what the run wrote")
    accepted(run_dir)
    assert metrics == (run_dir / "metrics.jsonl").read_bytes()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    ended = publish(command, run_dir)
    refused(ended, "names what you have not used", "scratchpad.jinja")
    refused(publish(command, run_dir, "--update", 5), "--trust")
    assert hub.asked == []
    published(command, run_dir, "--trust")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--update", 5), "update 5 has no checkpoint; choose one of [2, 3, 4, 6]"),
        (("--merged",), "--merged is for runs with lora.rank"),
        (("--rollouts", "rollouts"), "a repository is called OWNER/NAME"),
        (("--base-model", "/home/alice/base"), "a repository is called OWNER/NAME"),
    ],
)
def test_what_cannot_be_published_is_refused(
    reference: Path, hub: Hub, command: Command, options: tuple[object, ...], sentence: str
):
    refused(publish(command, reference, *options), sentence)
    assert hub.asked == []


def test_rollouts_of_other_problems_are_refused(run_dir: Path, hub: Hub, command: Command):
    config = json.loads((run_dir / "config.json").read_text())
    config["provenance"]["problems_sha256"] = "0" * 64
    edited(run_dir / "config.json", provenance=config["provenance"])
    accepted(run_dir)
    ended = publish(command, run_dir, "--rollouts", "alice/rollouts")
    refused(ended, "the problems of", "have changed since it began")
    assert not [asked for asked in hub.asked if asked.startswith(("POST", "PUT"))]
