"""SPEC.yaml and the run times that were learnt."""

import json
import re
from pathlib import Path

import pytest

from evaluation.gantt import Bar, draw
from evaluation.priors import Prior, expected_times, learn, read_priors, write_priors
from evaluation.sources import CommandSource, PathSource, UrlSource
from evaluation.spec import SpecError, VerifyCommand, VerifyKind, read_spec
from evaluation.workload import Slot

DATASET = {"name": "d", "samples": 3, "references": "d.jsonl"}
GOOD = {"model": "m", "nodes": {"a": 2}, "generate": "gen --work {work}", "datasets": [DATASET]}


def written(tmp_path, document):
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(document))
    return path


def test_a_specification_is_read_with_its_defaults(tmp_path):
    spec = read_spec(written(tmp_path, GOOD))
    assert spec.name == "spec" and spec.model == PathSource(tmp_path / "m")
    assert spec.slots == (Slot("a", 0), Slot("a", 1))
    assert spec.datasets[0].verify is VerifyKind.EXACT and spec.datasets[0].references == tmp_path / "d.jsonl"


def test_a_command_of_the_site_may_verify(tmp_path):
    dataset = {**DATASET, "verify": "score --in {outputs} --out {verdicts}"}
    assert read_spec(written(tmp_path, {**GOOD, "datasets": [dataset]})).datasets[0].verify == VerifyCommand(
        ("score", "--in", "{outputs}", "--out", "{verdicts}")
    )


def test_only_a_command_that_takes_a_part_can_be_split_and_only_one_with_a_list_shared(tmp_path):
    whole = {**GOOD, "generate": "gen {dataset} {output}"}
    expected = read_spec(written(tmp_path, whole)).datasets[0].expected((1.0, 0.0, True))
    assert not expected.splittable and expected.runner == ""
    assert read_spec(written(tmp_path, GOOD)).datasets[0].expected((1.0, 0.0, True)).runner


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("https://a/b", UrlSource("https://a/b")),
        ({"url": "https://a/b", "sha256": "A" * 64}, UrlSource("https://a/b", {"": "A" * 64})),
        ({"path": "/m", "sha256": {"w": "a" * 64}}, PathSource(Path("/m"), {"w": "a" * 64})),
        ({"command": "aws s3 sync s3://b/c {target}"}, CommandSource(("aws", "s3", "sync", "s3://b/c", "{target}"))),
    ],
)
def test_a_model_may_be_a_path_an_address_or_a_command(tmp_path, model, source):
    assert read_spec(written(tmp_path, {**GOOD, "model": model})).model == source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "'model' has to name"),
        ({"model": {"path": "m", "url": "https://a/b"}}, "one of 'path', 'url' and 'command'"),
        ({"model": {"url": "s3://a/b"}}, "no http(s) address"),
        ({"model": {"command": "aws s3 sync s3://a/b ."}}, "has to name {target}"),
        ({"model": {"path": "m", "sha256": "beef"}}, "64 hexadecimal digits"),
        ({"datasets": []}, "at least one dataset"),
        ({"datasets": [DATASET, DATASET]}, "listed twice"),
        ({"datasets": [{**DATASET, "samples": 0}]}, "whole number of at least 1"),
        ({"datasets": [{**DATASET, "samples": True}]}, "whole number"),
        ({"datasets": [{**DATASET, "verify": "vibes"}]}, "neither one of"),
        ({"datasets": [{**DATASET, "gpu_seconds": -1}]}, "at least 0"),
        ({"datasets": [{**DATASET, "colour": 1}]}, "'colour' is not a field"),
        ({"datasets": ["d"]}, "has to be a mapping"),
        ({"generate": "gen"}, "has to name {work}"),
        ({"generate": "gen {work} {secret}"}, "not a placeholder"),
        ({"generate": "gen '{work}"}, "cannot be read"),
        ({"nodes": {"a": 0}}, "from 1 to 1024"),
        ({"cpu_workers": 0}, "at least 1"),
        ({"cpu_workers": float("nan")}, "whole number"),
    ],
)
def test_a_bad_specification_is_refused_with_the_field(tmp_path, change, words):
    with pytest.raises(SpecError, match=re.escape(words)):
        read_spec(written(tmp_path, {**GOOD, **change}))


@pytest.mark.parametrize("text", ["[", "just words", "", "\x00"])
def test_what_is_no_specification_is_refused(tmp_path, text):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        read_spec(path)


def test_run_times_are_learnt_and_a_damaged_file_is_only_lost_advice(tmp_path):
    priors = learn(learn({}, "d", 2.0, 1.0), "d", 4.0, 1.0)
    assert priors == {"d": Prior(3.0, 1.0, 2)}
    assert learn(priors, "d", float("nan"), 1.0) == priors
    write_priors(tmp_path / "times.json", priors)
    assert read_priors(tmp_path / "times.json") == priors
    (tmp_path / "times.json").write_text("{")
    assert read_priors(tmp_path / "times.json") == {}


def test_an_unknown_dataset_takes_the_median_of_the_known():
    priors = {"a": Prior(1.0, 0.0), "b": Prior(3.0, 0.0), "c": Prior(50.0, 0.0)}
    assert expected_times(priors, "a", 10) == (10.0, 0.0, True)
    assert expected_times(priors, "new", 10) == (30.0, 0.0, False)
    assert expected_times({}, "new", 10)[2] is False


def test_the_drawing_escapes_names_and_says_failures_in_words():
    picture = draw([Bar("n<0", "<script>", 0.0, 5.0, failed=True), Bar("n1", "x", 1.0, 2.0)], "a & b")
    assert "<script>" not in picture and "(failed)" in picture and "a &amp; b" in picture


def test_tasks_of_the_harness_need_no_command(tmp_path):
    document = {
        "model": "m",
        "harness": {"python": "/env/python", "model": "hf", "model_args": "dtype={x}"},
        "datasets": [{"name": "t", "samples": 2}],
    }
    dataset = read_spec(written(tmp_path, document)).datasets[0]
    words = [word.format(model="M", work="W") for word in dataset.generate]
    assert words[0] == "/env/python" and words[2:] == [
        "generate",
        "--model",
        "hf",
        "--path",
        "M",
        "--work",
        "W",
        "--model-args",
        "dtype={x}",
    ]
    assert isinstance(dataset.verify, VerifyCommand) and "score" in dataset.verify.words
    with pytest.raises(SpecError, match="'harness' has to name"):
        read_spec(written(tmp_path, {**document, "harness": {"model": "hf"}}))
