"""The commands of this package, found by `adlm` through an entry point: {path: (module, summary)}."""

COMMANDS = {
    "demo": (
        "adlm_studies.cli.demo",
        "train AR, MDLM, ADLM and ADLM in blocks on bundled text, compare them, and write a report",
    ),
    "evaluate code": (
        "adlm_studies.cli.code",
        "HumanEval and MBPP: the bound of the reference solutions, or pass@k of the model's own (--run)",
    ),
    "experiment": (
        "adlm_studies.cli.experiment",
        "run a study, from training to a report; resumes if it was interrupted",
    ),
    "reason": (
        "adlm_studies.cli.reason",
        "train and evaluate models that answer in steps, with anchors (ACoT), Coconut and others",
    ),
    "report": (
        "adlm_studies.cli.report",
        "compare trained runs on one page: figures, curves, samples, and a player",
    ),
}
