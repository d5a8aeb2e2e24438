# A script for TRL: a loaded model, a reward function from another file, and a callback.
import letter_rewards
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

EVENTS = []


class Recorder(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        EVENTS.append(("step", state.global_step, state.epoch))

    def on_log(self, args, state, control, logs=None, **kwargs):
        EVENTS.append(("log", state.global_step, "loss" in logs, "reward" in logs))

    def on_save(self, args, state, control, **kwargs):
        EVENTS.append(("save", state.global_step))


model = AutoModelForCausalLM.from_pretrained(MODEL)  # noqa: F821 - given by the test
tokenizer = AutoTokenizer.from_pretrained(MODEL)  # noqa: F821
training_args = GRPOConfig(
    output_dir="loaded-GRPO",
    per_device_train_batch_size=4,
    steps_per_generation=2,
    num_iterations=2,
    num_generations=2,
    max_completion_length=4,
    num_train_epochs=2,
    logging_steps=2,
    save_steps=4,
    loss_type="dr_grpo",
    scale_rewards=False,
    beta=0.01,
    bf16=False,
)
training_args.use_transformers_continuous_batching = True
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[letter_rewards.ones],
    args=training_args,
    train_dataset=({"prompt": f"{a}+{a}="} for a in range(1, 9)),
    callbacks=[Recorder],
)
trainer.train()
