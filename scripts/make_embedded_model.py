"""Make an embedded task's warm-started model: `make chain-model`, and so on.

A small Llama with a character tokenizer is trained on demonstrations in which some steps are wrong.
It learns the format perfectly and the steps only as well as they are demonstrated. Sampled at
temperature 1, it is right about a quarter of the time (carry: one time in twenty), which leaves
room for reinforcement learning. Training takes about three minutes on two cores. The result is
written into the package as ordinary Hugging Face files.
"""

import argparse
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mugrpo.config.base import NamedOptions
from mugrpo.config.tasks import CarryOptions, ChainOptions, LettersOptions
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.tasks import make_task
from mugrpo.tasks.embedded import END, LETTERS, MODULUS


def chain_response(prompt: str, rng: random.Random, wrong_steps: float) -> str:
    """Return a response to `prompt`.

    Each step is wrong with probability `wrong_steps`: another digit replaces its
    result, and the chain continues from there.
    """
    terms = re.findall(r"([+-]?)(\d)", prompt)
    state, steps = int(terms[0][1]), []
    for sign, digit in terms[1:]:
        result = (state + (-1 if sign == "-" else 1) * int(digit)) % MODULUS
        if rng.random() < wrong_steps:
            result = (result + rng.randint(1, MODULUS - 1)) % MODULUS
        steps.append(f"{state}{sign}{digit}={result}")
        state = result
    return ",".join(steps)


def letters_response(prompt: str, rng: random.Random, wrong_steps: float) -> str:
    """Return a response to `prompt`.

    Each letter is wrong with probability `wrong_steps`: a different one of the
    remaining letters, if there is one, takes its place. The remaining letters continue in order.
    """
    remaining, answer = sorted(prompt.removesuffix(END)), []
    while remaining:
        others = [letter for letter in remaining if letter != remaining[0]]
        wrong = others and rng.random() < wrong_steps
        chosen = rng.choice(others) if wrong else remaining[0]
        remaining.remove(chosen)
        answer.append(chosen)
    return "".join(answer)


def carry_response(prompt: str, rng: random.Random, wrong_steps: float) -> str:
    """Return a response to `prompt`.

    Each carry is forgotten with probability `wrong_steps`.
    """
    answer, carry = [], 0
    for column in zip(*prompt.removesuffix("=").split("+"), strict=True):
        total = sum(map(int, column)) + carry
        answer.append(str(total % 10))
        carry = int(total >= 10 and rng.random() >= wrong_steps)
    return "".join(answer) + str(carry)


class Lesson(NamedTuple):
    """The task that a model learns, and the demonstrations that it learns from."""

    options: NamedOptions
    characters: str
    demonstration: Callable[[str, random.Random, float], str]
    wrong_steps: float
    steps: int = 600


LESSONS = {
    "chain": Lesson(ChainOptions(train_problems=20_000), "0123456789+-=,", chain_response, 0.2),
    "letters": Lesson(
        LettersOptions(train_problems=20_000),
        LETTERS + END,
        letters_response,
        0.12,
    ),
    "carry": Lesson(CarryOptions(train_problems=20_000), "0123456789+=", carry_response, 0.6, 1000),
}


def make_tokenizer(characters: str, context: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per character, plus padding and end of sequence.

    It tells that texts have at most `context` tokens.
    """
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *characters])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", model_max_length=context
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=LESSONS)
    parser.add_argument("--out", type=Path, help="default: the task's folder in the package")
    parser.add_argument("--terms", type=int, help="terms of a chain (default: the task's)")
    parser.add_argument("--plus", action="store_true", help="chains of additions only")
    parser.add_argument("--start", type=Path, help="a model that was made so, to train further")
    parser.add_argument("--context", type=int, default=512, help="tokens of the longest text")
    parser.add_argument("--steps", type=int, help="default: the task's")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--mlp", type=int, default=288)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument(
        "--wrong-steps", type=float, help="share of wrong steps (default: the task's)"
    )
    args = parser.parse_args()
    lesson = LESSONS[args.task]
    wrong_steps = lesson.wrong_steps if args.wrong_steps is None else args.wrong_steps
    steps = args.steps or lesson.steps
    out = args.out or EMBEDDED[args.task]
    changes = {"terms": args.terms} if args.terms else {}
    changes |= {"minus": False} if args.plus else {}
    problems = lesson.options.model_copy(update=changes)

    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = make_tokenizer(lesson.characters, args.context)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        intermediate_size=args.mlp,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        max_position_embeddings=args.context,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    if args.start:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(args.start).state_dict())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    prompts = [problem.prompt for problem in make_task(problems).train_problems()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, steps, pct_start=0.1)
    for step in range(steps):
        batch = rng.sample(prompts, args.batch)
        texts = [p + lesson.demonstration(p, rng, wrong_steps) for p in batch]
        rows = [[*tokenizer(t)["input_ids"], tokenizer.eos_token_id] for t in texts]
        ids_BL = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        labels_BL = ids_BL.masked_fill(ids_BL == tokenizer.pad_token_id, -100)
        for labels_L, prompt in zip(labels_BL, batch, strict=True):
            labels_L[: len(prompt)] = -100  # the prompt is given, not learned
        loss = model(input_ids=ids_BL, labels=labels_BL).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"written to {out}")


if __name__ == "__main__":
    main()
