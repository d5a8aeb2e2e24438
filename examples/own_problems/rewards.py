def short(completions, **columns):
    return [0.2 if len(completion) < 10 else 0.0 for completion in completions]
