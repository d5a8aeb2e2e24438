# A script for TRL: text prompts, and a reward function of the script's own.
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

CALLS = []

dataset = Dataset.from_list(
    [{"prompt": f"{a}+{b}=", "total": str(a + b)} for a in range(1, 4) for b in range(1, 4)]
)


def starts_right(prompts, completions, total, **kwargs):
    CALLS.append(len(completions))
    pairs = zip(completions, total, strict=True)
    return [float(text.startswith(answer)) for text, answer in pairs]


training_args = GRPOConfig(
    output_dir="plain-GRPO",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_generations=4,
    max_completion_length=6,
    max_steps=3,
    learning_rate=1e-4,
    bf16=False,
    logging_steps=1,
)
trainer = GRPOTrainer(
    model=MODEL,  # noqa: F821 - given by the test
    reward_funcs=starts_right,
    args=training_args,
    train_dataset=dataset,
)
result = trainer.train()
