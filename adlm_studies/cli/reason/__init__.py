"""`adlm reason`: models that answer questions in steps."""

COMMANDS = {
    "train": "train a model on a task, by a method with its stages; resumes if it was interrupted",
    "evaluate": "measure accuracy on held-out problems, with its interval and the number of tokens written",
    "show": "show one problem: what each thought predicted, what was written, right or wrong",
}
ABOUT = """Chain of thought, none, pauses, implicit, Coconut, and anchored chain of thought (ACoT), on GSM8K, ProsQA,
ProntoQA and small generated tasks; left to right, or with anchored diffusion."""
