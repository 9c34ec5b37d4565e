"""lm-evaluation-harness with generation and scoring apart: a file for the interpreter that has lm_eval. Imports nothing of ours.

    python harness.py generate --model hf --path CHECKPOINT --work WORK.jsonl      fills the outputs that WORK names
    python harness.py score --dataset TASK --outputs O.jsonl --verdicts V.jsonl    scores them, without the model

Generation is the harness's own `predict_only`; scoring is the task's own `process_results` on the answers of its first filter.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# The figure that stands for a task, where it has several (lm_eval/api/metrics.py).
MAIN_METRICS = ("exact_match", "acc", "pass@1", "f1", "bleu")


def task_manager(arguments: argparse.Namespace) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=arguments.include_path)


def generate(arguments: argparse.Namespace) -> None:
    """One model for all the work; each piece's outputs are written at once, when they are whole."""
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import simple_evaluate

    given = ",".join(part for part in (f"pretrained={arguments.path}", arguments.model_args) if part)
    model = get_model(arguments.model).create_from_arg_string(given, {"batch_size": arguments.batch_size})
    manager = task_manager(arguments)
    pieces = [json.loads(line) for line in Path(arguments.work).read_text(encoding="utf-8").splitlines()]
    for piece in pieces:
        samples = {piece["dataset"]: list(range(piece["first"], piece["last"]))}
        results = simple_evaluate(
            model=model,
            tasks=[piece["dataset"]],
            samples=samples,
            predict_only=True,
            log_samples=True,
            bootstrap_iters=0,
            task_manager=manager,
        )
        written = set()
        with Path(piece["output"]).open("a", encoding="utf-8") as output:
            for sample in results["samples"][piece["dataset"]]:
                # Every filter of the task logs the sample again; the first is the one that the task reports first.
                if sample["doc_id"] not in written:
                    written.add(sample["doc_id"])
                    answers = sample["filtered_resps"]
                    shown = answers[0] if len(answers) == 1 and isinstance(answers[0], str) else None
                    output.write(json.dumps({"sample": sample["doc_id"], "output": shown, "answers": answers}) + "\n")


def score(arguments: argparse.Namespace) -> None:
    """Score each output with its task; a sample that its task cannot score is a failed one, with the reason."""
    from lm_eval.tasks import get_task_dict

    task = get_task_dict([arguments.dataset], task_manager(arguments))[arguments.dataset]
    docs = task.eval_docs
    with (
        Path(arguments.outputs).open(encoding="utf-8") as outputs,
        Path(arguments.verdicts).open("a", encoding="utf-8") as verdicts,
    ):
        for line in outputs:
            record = json.loads(line)
            verdict: dict[str, Any] = {"sample": record["sample"], "score": 0.0, "failed": None}
            try:
                # JSON has no tuples: (log-likelihood, greedy) pairs come back as lists.
                answers = [tuple(answer) if isinstance(answer, list) else answer for answer in record["answers"]]
                metrics = task.process_results(docs[record["sample"]], answers)
                verdict["metrics"] = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
                verdict["score"] = float(main_metric(verdict["metrics"]))
            except Exception as problem:  # whatever a task's own code raises is that sample's
                verdict["failed"] = f"{type(problem).__name__}: {problem}"[:300]
            verdicts.write(json.dumps(verdict) + "\n")
            verdicts.flush()


def main_metric(metrics: dict[str, float]) -> float:
    """The task's figure. Raises ValueError where it has none that is a number."""
    for name in (*MAIN_METRICS, *metrics):
        if name in metrics:
            return metrics[name]
    raise ValueError("the task has no metric of one sample that is a number")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    generating = commands.add_parser("generate")
    generating.set_defaults(act=generate)
    generating.add_argument("--model", required=True)
    generating.add_argument("--model-args", default="")
    generating.add_argument("--path", required=True)
    generating.add_argument("--work", required=True)
    generating.add_argument("--batch-size", default="auto")
    scoring = commands.add_parser("score")
    scoring.set_defaults(act=score)
    for option in ("--dataset", "--outputs", "--verdicts"):
        scoring.add_argument(option, required=True)
    for each in (generating, scoring):
        each.add_argument("--include-path")
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
