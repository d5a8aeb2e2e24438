"""One stage of tapered GRPO, from a prompt to AdamW's step.

    python examples/one_stage.py                        takes ten seconds on one core
    python examples/one_stage.py --optimizer.lr 5e-5    with other options of `mugrpo train`

A stage samples all its rollouts at once. Then it makes many updates on them, while the policy
moves away from the one that sampled. `mugrpo train` does the same with shards on disk between the
two halves. On a CPU, with the same number of threads and a stage of one shard, it ends in the same
weights, bit for bit (tests/test_example.py).

Shapes: N responses of the stage; P problems of an update, G responses to each, R = P x G; B
responses of a micro-batch, T response tokens, padded.
"""

import sys
from collections.abc import Sequence

import torch

import mugrpo

OPTIONS = """
    --preset tapered-grpo --schedule.stages 1 --schedule.batches_per_stage 16
    --schedule.problems_per_update 8 --schedule.group_size 8 --optimizer.lr 2e-4
    --engine.slots 512 --task.eval_problems 128
"""
ABSENT = "sampling rewards veto sequence_mask correction reference"
config = mugrpo.load_config(overrides=[*OPTIONS.split(), *sys.argv[1:]])
for part in ABSENT.split():
    if getattr(config, part) != getattr(mugrpo.load_config(), part):
        sys.exit(f"{part} is not part of this example; use `mugrpo train`")
if config.objective.name != "topr":
    sys.exit("the objective of this example is topr; use `mugrpo train`")
G, R = config.schedule.group_size, config.schedule.rollouts_per_update
longest = config.rollouts.max_new_tokens

# The policy, its engine, and the groups of stage 0. A problem comes up once per epoch, so a group
# is a problem and its occurrence.
policy = mugrpo.load_policy(config.model)
engine = mugrpo.make_engine(policy, config.engine)
encode = mugrpo.prompt_encoder(config)
task = mugrpo.make_task(config.task)
problems = encode.fitting(task.train_problems())
groups = list(mugrpo.Schedule(config.schedule, problems, config.seed).groups(stage=0))
held_out = [(problem, 0) for problem in encode.fitting(task.eval_problems())]
problem_of = {problem.id: problem for problem, _ in [*groups, *held_out]}

# ---- Generate: prompt ids in, response ids and their logprobs out -------------------------------

Groups = Sequence[tuple[mugrpo.Problem, int]]


def generate(stage: str, groups: Groups, samples: int, temperature: float) -> list[mugrpo.Rollout]:
    """Return `samples` rollouts per group, in order, from the policy as it is now.

    A response is determined by the weights, its prompt and its seed. Token t is the first at which
    the cumulative sum of softmax(logits / temperature) exceeds the seed's t-th uniform number.
    """
    draws, rollouts = [], {}
    for problem, occurrence in groups:
        for sample in range(samples):
            seed = mugrpo.rollout_seed(config.seed, stage, problem.id, occurrence, sample)
            draws.append((problem.id, occurrence, sample, seed, encode(problem)))
    requests = [mugrpo.Request(prompt_ids, seed) for *_, seed, prompt_ids in draws]
    for decoded in engine.generate(requests, temperature=temperature, max_new_tokens=longest):
        for n, c in decoded.completions:  # in the order in which they end; ids and logprobs [T]
            sampled = (c.ids, c.logprobs, c.finish_reason)
            rollouts[n] = mugrpo.Rollout(*draws[n], *sampled, temperature, policy_step=0)
    return [rollouts[n] for n in range(len(draws))]


# ---- Score: a reward for each response ----------------------------------------------------------


def score(rollouts: Sequence[mugrpo.Rollout]) -> torch.Tensor:
    """Return the task's rewards [N]. A response that is cut off at `longest` gets 0."""
    answers = []
    for r in rollouts:
        text = policy.tokenizer.decode(r.response_ids[:-1], skip_special_tokens=True)
        ids = r.response_ids.tolist()
        answers.append(mugrpo.Response(problem_of[r.problem_id], text, ids, r.finish_reason))
    rewards_N = torch.tensor([score.reward for score in task.score(answers)], dtype=torch.double)
    return rewards_N * torch.tensor([r.finish_reason == "stop" for r in rollouts])


reward_before = score(generate("evaluation", held_out, 1, config.evaluation.temperature)).mean()
rollouts = generate("0", groups, G, config.rollouts.temperature)
rewards_N = score(rollouts)

# ---- Optimize: advantages, micro-batches, logprobs, loss, backward, step ------------------------

options = config.optimizer
matrices = [p for p in policy.model.parameters() if p.ndim >= 2]
vectors = [p for p in policy.model.parameters() if p.ndim < 2]
decayed = {"params": matrices, "weight_decay": options.weight_decay}
parts = [decayed, {"params": vectors, "weight_decay": 0.0}]
fused = policy.device.type == "cpu"
optimizer = torch.optim.AdamW(parts, betas=options.betas, eps=options.eps, fused=fused)
for parameter in [*matrices, *vectors]:
    parameter.grad = torch.zeros_like(parameter)

for update in range(config.schedule.updates_per_stage):
    start = config.schedule.batch_of(update) * R
    batch = rollouts[start : start + R]

    # A = (reward - mean) / (std + eps) over a group; 0 if the group's rewards are all equal.
    rewards_PG = rewards_N[start : start + R].view(-1, G)
    valid_PG = torch.ones_like(rewards_PG, dtype=torch.bool)
    advantages_PG = mugrpo.group_advantages(rewards_PG, valid_PG, **config.advantage.knobs)
    advantages_R = advantages_PG.flatten()

    # The denominator is the whole update's, so the cut into micro-batches does not change the sum.
    tokens = sum(len(r.response_ids) for r in batch)
    counts = {"tokens": tokens, "responses": R, "max_new_tokens": longest}
    divisor = mugrpo.denominator(config.reduction, **counts)
    varied_R = advantages_R != 0
    responses = mugrpo.Responses(batch, advantages_R, varied_R, torch.ones_like(varied_R))
    places = advantages_R.nonzero().flatten().tolist()  # the others have no gradient
    loss = 0.0
    for b in mugrpo.micro_batches(policy, responses, places, options.micro_batch_tokens or 4096):
        # loss_t = -w_t A logprob_t,  w_t = 1 if A > 0, else min(ratio of the prefix up to t, 1)
        logprobs_BT, entropy_BT = mugrpo.batch_logprobs(policy, b, config)
        tensors = (logprobs_BT, b.behavior_logprobs, b.advantages, b.mask)
        loss_BT, metrics = mugrpo.topr_loss(*tensors, **config.objective.knobs)
        loss_of_part = mugrpo.reduced_loss(loss_BT, b.mask, config.reduction, divisor)
        loss_of_part.backward()
        loss += loss_of_part.item()

    norm = torch.nn.utils.clip_grad_norm_([*matrices, *vectors], options.max_grad_norm).item()
    for group in optimizer.param_groups:
        group["lr"] = mugrpo.learning_rate(
            update,
            peak=options.lr,
            schedule=options.lr_schedule,
            warmup_updates=options.warmup_updates,
            total_updates=config.schedule.total_updates,
        )
    optimizer.step()
    policy.weights_changed()  # engines and bf16 keep copies
    optimizer.zero_grad(set_to_none=False)
    print(f"update {update:3}  reward {rewards_PG.mean():.3f}  loss {loss:+.4f}  norm {norm:.3f}")

reward_after = score(generate("evaluation", held_out, 1, config.evaluation.temperature)).mean()
print(f"{len(held_out)} held-out problems: {reward_before:.3f} before, {reward_after:.3f} after")
