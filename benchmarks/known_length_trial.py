"""A trial of known length, run as a program: a real small model is loaded from a path or an http address, then each sample is one
inference and as long a wait as an accelerator would take for it. The waits leave the processor to the verifications.

`known_length_trial.py --model PATH_OR_ADDRESS --work FILE --seconds FILE`: FILE of seconds per sample by dataset (JSON).
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime

WORDS = np.array([[101, 2054, 3478, 1029, 102]], dtype=np.int64)


def load(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if model.startswith("http://"):
        with urllib.request.urlopen(model, timeout=120) as incoming:
            return onnxruntime.InferenceSession(incoming.read(), options, providers=["CPUExecutionProvider"])
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--work", "--seconds"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    session = load(arguments.model)
    seconds = json.loads(Path(arguments.seconds).read_text())
    for line in Path(arguments.work).read_text().splitlines():
        task = json.loads(line)
        with Path(task["output"]).open("a") as output:
            for sample in range(task["first"], task["last"]):
                ready = time.monotonic() + seconds[task["dataset"]]
                inputs = {"input_ids": WORDS, "attention_mask": np.ones_like(WORDS), "token_type_ids": np.zeros_like(WORDS)}
                session.run(None, inputs)
                time.sleep(max(0.0, ready - time.monotonic()))
                output.write(json.dumps({"sample": sample, "output": f"    return {sample}"}) + "\n")
                output.flush()


if __name__ == "__main__":
    main()
