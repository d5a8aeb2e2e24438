"""Runs with the real vLLM, on the CPU if there is no GPU: `make test-vllm`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from mugrpo.config.engines import VLLMOptions
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.shards import ShardSet, read_rollouts
from mugrpo.engines import make_engines, vllm
from mugrpo.engines.base import Engine, Request
from mugrpo.engines.process import RemoteEngine
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import EMBEDDED
from tests.builders import PROMPTS, chain_tokenizer, encoded, generated, plain_logprobs
from tests.waiting import alive, engines_of, soon, until

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
CONFIG = f"""
seed = 3

[task]
train_problems = 64

[schedule]
stages = 2
batches_per_stage = 3
growth = 1
problems_per_update = 4
group_size = 8

[rollouts]
shard_rollouts = 16
temperature = 1.3

[evaluation]
every = 0

[engine]
name = "vllm"
python = "{PYTHON}"
slots = 8
arguments = {{ max_model_len = 128, enforce_eager = true }}
"""

EAGER = {"max_model_len": 128, "enforce_eager": True}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG)
    return path


def start(config: Path, run_dir: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mugrpo", "train", config, "--run-dir", run_dir, *options]
    return subprocess.Popen(
        [str(word) for word in command], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )


def trained(config: Path, run_dir: Path, *options: str) -> str:
    """Train, check that the run succeeds, and return what it prints."""
    process = start(config, run_dir, *options)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return said


def engine_of(policy: Policy, folder: Path) -> Engine:
    (engine,) = make_engines(
        RunConfig(engine=VLLMOptions(python=str(PYTHON), arguments=EAGER)),
        vocabulary=policy.vocabulary,
        policy=None,
        log=lambda name: folder / name,
        notify=print,
        check=lambda: None,
    )
    return engine


def entries(run_dir: Path, stage: int = 0) -> dict[int, dict]:
    shards = ShardSet(run_dir / "stages" / f"{stage:03d}" / "rollouts", "rollouts")
    return {shard: shards.entry(shard) for shard in shards.numbers()}


def assert_whole(run_dir: Path) -> None:
    """Check that both stages have every rollout once, with the trainer's logprobs to 1e-3."""
    for stage, update in ((0, 0), (1, 3)):
        policy = load_policy(ModelOptions())
        if update:
            policy.load_weights(run_dir / "checkpoints" / f"update-{update:06d}", update)
        shards = ShardSet(run_dir / "stages" / f"{stage:03d}" / "rollouts", "rollouts")
        rollouts = [r for shard in shards.numbers() for r in read_rollouts(shards, shard)]
        assert len({(r.problem_id, r.occurrence, r.sample) for r in rollouts}) == 3 * 4 * 8
        for rollout in rollouts:
            expected = plain_logprobs(policy, rollout.prompt_ids, rollout.response_ids, 1.3)
            np.testing.assert_allclose(rollout.behavior_logprobs, expected.detach(), atol=1e-3)


def test_a_run_samples_from_the_policy_of_each_stage(config: Path, tmp_path: Path):
    trained(config, tmp_path / "run")
    assert_whole(tmp_path / "run")
    gaps = [entry["canary_gap"] for s in (0, 1) for entry in entries(tmp_path / "run", s).values()]
    assert max(gaps) < 1e-3


def test_two_engines_share_a_stage(config: Path, tmp_path: Path):
    trained(config, tmp_path / "run", "--engine.processes", "2")
    assert_whole(tmp_path / "run")
    logs = sorted((tmp_path / "run" / "logs").glob("engine-*.log"))
    assert [log.name for log in logs] == ["engine-0.log", "engine-1.log"]


@pytest.mark.promise("vllm")
def test_a_killed_engine_is_started_again_and_the_shards_that_are_done_are_kept(
    config: Path, tmp_path: Path
):
    process = start(config, tmp_path / "run")
    until(lambda: entries(tmp_path / "run"), 600)
    before = entries(tmp_path / "run")
    for pid in engines_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "ended with SIGKILL" in said and "Restarting it (1/2)" in said
    assert_whole(tmp_path / "run")
    after = entries(tmp_path / "run")
    assert {k: after[k]["sha256"] for k in before} == {k: v["sha256"] for k, v in before.items()}


@pytest.mark.promise("vllm")
def test_a_killed_run_leaves_no_engine_and_goes_on_where_it_was(config: Path, tmp_path: Path):
    process = start(config, tmp_path / "run")
    until(lambda: entries(tmp_path / "run"), 600)
    workers = engines_of(process.pid)
    before = entries(tmp_path / "run")
    process.kill()
    process.communicate()
    assert workers and soon(lambda: not any(map(alive, workers)), 10)
    trained(config, tmp_path / "run")
    after = entries(tmp_path / "run")
    assert {k: after[k]["sha256"] for k in before} == {k: v["sha256"] for k, v in before.items()}
    assert_whole(tmp_path / "run")


def test_tokens_are_drawn_from_the_softmax_at_the_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Compare the first tokens of 2,000 responses, each with its own seed, with probabilities."""
    policy = load_policy(ModelOptions())
    prompt = encoded(policy, PROMPTS[0])
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    engine = engine_of(policy, tmp_path)
    engine.refresh(0, lambda: str(EMBEDDED["chain"]))
    count, temperature = 2000, 2.0
    requests = [Request(prompt, 7_000_000_000 + i) for i in range(count)]
    counts = np.zeros(policy.vocab_size)
    for decoded in engine.generate(requests, temperature=temperature, max_new_tokens=1):
        for _, completion in decoded.completions:
            counts[completion.ids[0]] += 1
    engine.close()
    every = [np.array([token], np.int32) for token in range(policy.vocab_size)]
    logprobs = [plain_logprobs(policy, prompt, ids, temperature).item() for ids in every]
    expected = np.exp(logprobs)
    expected *= count / expected.sum()
    assert expected.min() > 5 and len(expected) > 10
    assert chisquare(counts, expected).pvalue > 1e-3


def test_logprobs_with_top_p_are_those_of_our_engine_under_its_nucleus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Under the renormalized nucleus. A token outside would have the logprob -inf."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    policy, sampling = load_policy(ModelOptions()), {"temperature": 1.5, "top_p": 0.7}
    engine = engine_of(policy, tmp_path)
    engine.refresh(0, lambda: str(EMBEDDED["chain"]))
    requests = [Request(encoded(policy, prompt), seed) for seed in range(8) for prompt in PROMPTS]
    differences = []
    for decoded in engine.generate(requests, max_new_tokens=24, **sampling):
        for index, completion in decoded.completions:
            case = policy, requests[index].prompt_ids, completion.ids
            expected = plain_logprobs(*case, **sampling).detach()
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)
            differences.append(expected - plain_logprobs(*case, sampling["temperature"]).detach())
    engine.close()
    assert len(differences) == len(requests)
    assert torch.cat(differences).max() > 0.1  # the nucleus left something out


def tied_policy(folder: Path, seed: int) -> Policy:
    """Save and return a random model whose head shares the embeddings."""
    torch.manual_seed(seed)
    form = load_policy(ModelOptions()).model.config
    form.tie_word_embeddings, form.initializer_range = True, 0.1
    policy = Policy(AutoModelForCausalLM.from_config(form), chain_tokenizer(), ModelOptions())
    policy.save(folder)
    return policy


VLLMS_OWN = """
class TakesWeights:
    def take_weights(self, path):
        self.reload_weights(weights_path=path)
"""


@pytest.mark.parametrize("ours", [True, False])
def test_a_tied_head_gets_new_weights_and_the_canary_would_see_if_it_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
):
    """If this fails with vLLM's own method alone, vLLM has fixed it: remove ours."""
    if not ours:
        (tmp_path / "mugrpo_vllm.py").write_text(VLLMS_OWN)
        monkeypatch.setattr(vllm, "EXTENSION", tmp_path)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    policies = [tied_policy(tmp_path / str(seed), seed) for seed in (0, 1)]
    engine = engine_of(policies[0], tmp_path)
    requests = [Request(encoded(policies[0], prompt), 5) for prompt in PROMPTS]
    gaps, seconds = [], []
    for update, policy in enumerate([*policies, policies[0]]):
        seconds.append(engine.refresh(update, lambda: str(tmp_path / str(update % 2))))  # noqa: B023
        for decoded in engine.generate(requests, temperature=1.0, max_new_tokens=16):
            for index, completion in decoded.completions:
                request = requests[index]
                expected = plain_logprobs(policy, request.prompt_ids, completion.ids)
                gaps.append((update, np.abs(completion.logprobs - expected.detach().numpy()).max()))
        engine.sleep()
    engine.close()
    worst = [max(gap for u, gap in gaps if u == update) for update in range(3)]
    tolerance = 1e-3  # the canary's in fp32
    assert worst[0] < tolerance and worst[2] < tolerance
    assert (worst[1] < tolerance) == ours
    assert max(seconds[1:]) < seconds[0]  # only the first starts a process


def adapted(folder: Path, seed: int) -> Policy:
    """Save a random adapter of the embedded model, made by peft. Return the model it makes."""
    torch.manual_seed(seed)
    policy = load_policy(ModelOptions())
    form = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.0
    )
    model = get_peft_model(policy.model, form)
    model.save_pretrained(folder)
    return Policy(model.merge_and_unload(), policy.tokenizer, ModelOptions())


def test_adapters_made_by_peft_take_each_others_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The base model, an adapter, another one, and after its process died, the first again."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    base = EMBEDDED["chain"]
    paths = [str(base), *(str(tmp_path / name) for name in ("one", "two"))]
    policies = [load_policy(ModelOptions()), adapted(Path(paths[1]), 1), adapted(Path(paths[2]), 2)]
    options = VLLMOptions(python=str(PYTHON), arguments=EAGER)
    vocabulary, lora = policies[0].vocabulary, LoRAOptions(rank=4)
    host = vllm.vllm_host(vocabulary, ModelOptions(), lora, options, tmp_path / "log")
    engine = RemoteEngine(host, host.start, print, lambda: None)
    requests = [Request(encoded(policies[0], prompt), 5) for prompt in PROMPTS]
    for update, place in enumerate((0, 1, 2, 1)):
        if update == 3:
            engine.close()
        engine.refresh(update, lambda: paths[place])  # noqa: B023
        for decoded in engine.generate(requests, temperature=1.0, max_new_tokens=16):
            for index, completion in decoded.completions:
                prompt = requests[index].prompt_ids
                expected, other = (
                    plain_logprobs(policies[p], prompt, completion.ids).detach().numpy()
                    for p in (place, place - 1)
                )
                np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)
                assert np.abs(completion.logprobs - other).max() > 0.01
    engine.close()


def test_a_live_server_is_handed_the_weights(config: Path, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    pid_file = tmp_path / "server.pid"
    words = [sys.executable, str(ROOT / "scripts" / "serve_vllm.py"), str(PYTHON), str(pid_file)]
    words += ["--dtype", "float32", "--enforce-eager"]
    words += ["--max-model-len", "128", "--max-num-seqs", "8"]
    words += ["--worker-extension-cls", "mugrpo_vllm.TakesWeights"]
    live = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(vllm.EXTENSION)}
    subprocess.run([*words, url, str(EMBEDDED["chain"])], env=ENVIRONMENT | live, check=True)
    head, _, _ = CONFIG.partition("[engine]")
    config.write_text(f'{head}[engine]\nname = "vllm_server"\nurls = ["{url}"]\n')
    try:
        trained(config, tmp_path / "run")
    finally:
        (left,) = tmp_path.glob("server.pid.*")
        os.killpg(int(left.read_text()), signal.SIGKILL)
    assert_whole(tmp_path / "run")


# What somebody else does with a checkpoint: vLLM alone, with its own defaults.
SERVES = """
import json, sys
from vllm import LLM, SamplingParams

model, prompts, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=128)
sampled = llm.generate([{"prompt_token_ids": p} for p in prompts], SamplingParams(
    temperature=0, max_tokens=48))
json.dump([list(one.outputs[0].token_ids) for one in sampled], open(out, "w"))
"""


def test_a_checkpoint_that_vllm_serves_stops_where_training_stopped(tmp_path: Path):
    """The option adds a token that the base model goes on after, and an "<eos>" stops still."""
    policy = load_policy(ModelOptions(eos_token="-"))
    policy.save(tmp_path / "saved")
    prompts = [encoded(policy, prompt).tolist() for prompt in PROMPTS]
    words = [str(PYTHON), "-c", SERVES, str(tmp_path / "saved"), json.dumps(prompts)]
    subprocess.run([*words, str(tmp_path / "ids.json")], env=ENVIRONMENT, check=True)
    theirs = json.loads((tmp_path / "ids.json").read_text())
    requests = [Request(encoded(policy, prompt), 0) for prompt in PROMPTS]
    ours = [one.ids.tolist() for one in generated(policy, requests, temperature=1e-3)]
    assert theirs == ours
    assert set(policy.tokenizer.convert_ids_to_tokens([ids[-1] for ids in ours])) == {"-", "<eos>"}
