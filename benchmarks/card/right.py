"""Is what a GPU computes right? `python -m card.right [--old FOLDER] [--tiny]`

tokens    Steps of static shapes (on a GPU, in CUDA graphs) give the tokens of the old tree, or of
          this one's eager steps. Tiny random models of three families, requests in groups of
          eight that end at any length, more requests than slots. In fp32 all responses are equal.
          In bf16 no two arithmetics are: "apart" is the mean distance of the engine's logprobs
          from the trainer's own pass, which must not grow.
kernel    torch's packed kernel agrees with masks at real widths, in trained precision.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from card.decode import engine_of
from card.turns import NEW, OLD, processes, serve, trees_parser
from card.work import (
    DEVICE,
    FORMS,
    logprobs_apart,
    model_config,
    random_ids,
    random_policy,
    run_config,
    stand_in,
    tell,
)
from mugrpo.engines.base import Request
from mugrpo.model.varlen import varlen_kernel
from mugrpo.optimize.kernel import kernel_fault

FAMILIES = {"Qwen2": Qwen2Config, "Llama": LlamaConfig, "Qwen3": Qwen3Config}


def small_policy(family: str, precision: str) -> Any:
    """Return a policy that ends responses at any length. Its heads suit a GPU's kernels there."""
    size = 64 if DEVICE.type == "cuda" else 16
    config = FAMILIES[family](
        vocab_size=1031,
        hidden_size=4 * size,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=size,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.15,
        tie_word_embeddings=True,
    )
    policy = random_policy(config, run_config(precision))
    policy.stop_ids = list(range(20, 40))
    return policy


def small_requests(count: int) -> list[Request]:
    rng = np.random.default_rng(0)
    prompts = [random_ids(rng, 1031, int(rng.integers(3, 40))) for _ in range(-(-count // 8))]
    return [Request(prompts[i // 8], 1000 + i, None if i % 5 else 7) for i in range(count)]


class Decoding:
    """Decodes the requests with a small model, and says what came."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str], Any] = {}

    def __call__(
        self, family: str, precision: str, way: str, slots: int, count: int
    ) -> dict[str, Any]:
        key = family, precision
        policy = self.made.setdefault(key, None) or small_policy(*key)
        self.made = {key: policy}
        requests = small_requests(count)
        engine = engine_of(policy, way, slots)
        half = [requests[count // 2 :]]
        reports = engine.generate(
            requests[: count // 2], temperature=1.0, max_new_tokens=60, more=half
        )
        got = {index: c for report in reports for index, c in report.completions}
        assert got.keys() == set(range(count)), "responses are missing"
        found = {
            i: [c.ids.tolist(), c.logprobs.tolist(), str(c.finish_reason)] for i, c in got.items()
        }
        return {"got": found, "apart": logprobs_apart(policy, requests, got)}


def compared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many responses are equal in tokens and reason, and how far their logprobs are."""
    equal, gap = 0, 0.0
    for index, (ids, logprobs, reason) in ours.items():
        other_ids, other_logprobs, other_reason = theirs[index]
        if ids == other_ids and reason == other_reason:
            equal += 1
            gap = max(gap, *(abs(a - b) for a, b in zip(logprobs, other_logprobs, strict=True)))
    lengths = [len(ids) for ids, *_ in ours.values()]
    row = {"equal": f"{equal} of {len(ours)}", "tokens": sum(lengths)}
    return row | {"lengths": f"{min(lengths)} to {max(lengths)}", "logprobs differ by": gap}


def tokens(options: Any) -> list[dict[str, Any]]:
    rows = []
    with processes("card.right", options, (OLD, NEW)) as trees:
        peer = "old" if OLD in trees else "eager"
        known = {"static": (NEW, "static"), peer: (OLD, "made") if OLD in trees else (NEW, peer)}
        for family in list(FAMILIES)[: 1 if options.tiny else None]:
            for precision in ("fp32", "bf16"):
                count = 24 if options.tiny else 192
                for slots in (count, count // 4):
                    how = {"family": family, "precision": precision, "slots": slots, "count": count}
                    row: dict[str, Any] = {"": f"{family} {precision}", "slots": slots}
                    try:
                        got = {w: trees[t].ask(way=name, **how) for w, (t, name) in known.items()}
                        found = compared(got["static"]["got"], got[peer]["got"])
                        rows.append(row | found | {f"apart, {w}": got[w]["apart"] for w in known})
                    except RuntimeError as error:
                        rows.append(row | {"failed": str(error)})
    return tell("tokens", "Tokens of two ways to decode", rows, options)


def kernel(options: Any) -> list[dict[str, Any]]:
    rows = []
    found = varlen_kernel() if DEVICE.type == "cuda" else stand_in
    for form in sorted(folder.name for folder in FORMS.iterdir()):
        config = model_config(form, tiny=options.tiny)
        config.num_hidden_layers = min(2, config.num_hidden_layers)
        policy = random_policy(config, run_config())
        fault = "this torch has none" if found is None else kernel_fault(policy, found)
        rows.append({"form": form, "packed kernel against masks": fault or "agrees"})
        del policy
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    return tell("kernel", "torch's packed kernel", rows, options)


def main(argv: Sequence[str] | None = None) -> list[list[dict[str, Any]]]:
    options = trees_parser(__doc__ or "").parse_args(argv)
    return [kernel(options), tokens(options)]


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(Decoding())
    else:
        main()
