"""lm-evaluation-harness itself, on local tasks and its own dummy model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[2] / "evaluation" / "harness.py"
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"]}}
metric_list: [{{metric: exact_match}}]
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(float(os.environ.get("SCALE", "1")) < 1, reason="installs lm_eval, which takes minutes: SCALE=1 only"),
]


def test_generation_and_scoring_of_real_tasks_apart(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([str(uv), "pip", "install", "--quiet", "--python", str(python), "lm_eval==0.4.13"], check=True)
    data = tmp_path / "qa.jsonl"
    # The harness's dummy model always answers "lol".
    data.write_text("".join(json.dumps({"question": f"q{i}", "answer": "lol" if i % 2 else "no"}) + "\n" for i in range(20)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "qa.yaml").write_text(TASK.format(name="local_qa", data=data))
    outputs, verdicts, work = (tmp_path / name for name in ("outputs.jsonl", "verdicts.jsonl", "work.jsonl"))
    work.write_text(json.dumps({"dataset": "local_qa", "first": 3, "last": 9, "output": str(outputs)}) + "\n")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    include = ["--include-path", str(tmp_path / "tasks")]

    def harness(*arguments):
        subprocess.run([str(python), str(HARNESS), *arguments, *include], check=True, env=offline, cwd=tmp_path)

    harness("generate", "--model", "dummy", "--path", "/none", "--work", str(work), "--batch-size", "1")
    assert [json.loads(line)["sample"] for line in outputs.read_text().splitlines()] == list(range(3, 9))
    harness("score", "--dataset", "local_qa", "--outputs", str(outputs), "--verdicts", str(verdicts))
    scores = {verdict["sample"]: verdict["score"] for verdict in map(json.loads, verdicts.read_text().splitlines())}
    assert scores == {sample: float(sample % 2) for sample in range(3, 9)}
