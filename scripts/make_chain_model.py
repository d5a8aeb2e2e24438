"""Make the chain task's warm-started model: `make chain-model` (about two minutes on two cores).

A small Llama with a character tokenizer is trained on demonstrations of which 20 % of the steps
are wrong. It learns the form perfectly and the arithmetic only as well as its teacher, so that
sampling at temperature 1 it is right about 27 % of the time: room for reinforcement learning.
Writes ordinary Hugging Face files into the package.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mugrpo.config.tasks import ChainOptions
from mugrpo.tasks.chain import CHARACTERS, Chain, demonstration

HOME = Path(__file__).parents[1] / "src/mugrpo/tasks/chain_model"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, plus padding and end of sequence."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", model_max_length=512
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HOME)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--mlp", type=int, default=288)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--wrong-steps", type=float, default=0.2)
    args = parser.parse_args()

    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=args.hidden,
            intermediate_size=args.mlp,
            num_hidden_layers=args.layers,
            num_attention_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    chain = Chain(ChainOptions(train_problems=20_000))
    prompts = [problem.prompt for problem in chain.train_problems()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps, pct_start=0.1)
    for step in range(args.steps):
        batch = rng.sample(prompts, args.batch)
        texts = [p + demonstration(p, rng, args.wrong_steps) for p in batch]
        ids_BL = torch.tensor([[*tokenizer(t)["input_ids"], tokenizer.eos_token_id] for t in texts])
        labels_BL = ids_BL.clone()
        labels_BL[:, : len(batch[0])] = -100  # the prompt is given, not learned
        loss = model(input_ids=ids_BL, labels=labels_BL).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
