"""Generation with SmolLM2-135M: `python benchmarks/generation_smollm2.py --engine NAME`.

The work is 64 word problems x 8 responses of up to 128 tokens, in fp32, through the chat template.
See generation.py for what is compared and what is outside the clock. Needs `mugrpo convert
smollm2`. --tiny runs the embedded model on its own task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from generation import arguments, generation_config, run
from mugrpo.config.tasks import ChainOptions
from mugrpo.tasks.chain import Chain
from workloads import word_problems


def main(argv: Sequence[str] | None = None) -> Any:
    options = arguments(__doc__, problems=64, peer_batch=128, target=2.0, argv=argv)
    if options.tiny:
        config = generation_config(options, 8)
        problems = Chain(ChainOptions()).train_problems()[: options.problems]
    else:
        config = generation_config(options, 128, model={"path": "smollm2"}, prompt={"form": "chat"})
        problems = word_problems(options.problems)
    return run("generation_smollm2", "Generation, SmolLM2-135M", config, problems, options)


if __name__ == "__main__":
    main()
