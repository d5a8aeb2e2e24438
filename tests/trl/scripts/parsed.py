# A script for TRL: arguments are parsed, prompts are conversations, and an adapter is trained.
from dataclasses import dataclass

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer


@dataclass
class ScriptArguments:
    model_name_or_path: str


def make_conversation(example):
    return {"prompt": [{"role": "user", "content": example["problem"]}]}


if __name__ == "__main__":
    parser = HfArgumentParser((ScriptArguments, GRPOConfig))
    script_args, training_args = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(script_args.model_name_or_path)
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    rows = [{"problem": f"{a}-{b}=", "solution": str(a - b)} for a in range(5, 8) for b in (1, 2)]
    dataset = Dataset.from_list(rows).map(make_conversation).remove_columns("problem")
    unseen = Dataset.from_list([{"problem": "9-3=", "solution": "6"}]).map(make_conversation)

    async def accuracy_reward(completions, solution, **kwargs):
        contents = [completion[0]["content"] for completion in completions]
        return [float(s in content) for content, s in zip(contents, solution, strict=True)]

    trainer = GRPOTrainer(
        model=script_args.model_name_or_path,
        args=training_args,
        reward_funcs=[accuracy_reward, lambda completions, **kwargs: [0.5] * len(completions)],
        train_dataset=dataset,
        eval_dataset=unseen,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
