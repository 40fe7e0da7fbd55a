"""The commands of this package, found by `adlm` through an entry point: {path: (module, summary)}."""

COMMANDS = {
    "demo": (
        "adlm_studies.cli.demo",
        "train AR, MDLM and ADLM on text that comes with the package; score them, write samples and a report",
    ),
    "evaluate code": (
        "adlm_studies.cli.code",
        "HumanEval and MBPP: the bound of reference solutions; with --run, pass@k of a model's own",
    ),
    "experiment": (
        "adlm_studies.cli.experiment",
        "run a study of the paper's questions, from training to a report; resumes if it was stopped",
    ),
    "reason": (
        "adlm_studies.cli.reason",
        "train and measure models that answer in steps, with anchors: ACoT, Coconut and others",
    ),
    "report": (
        "adlm_studies.cli.report",
        "compare trained runs on one page: figures, curves, samples, and a text as it appears",
    ),
}
