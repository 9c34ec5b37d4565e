"""Metric jobs, and the sandbox that runs what a model wrote."""

import os
import shutil
import subprocess

import pytest

from evaluation.sandbox import FIRST_USER, Ending, Limits, SandboxUnavailable, other_tasks, run_sandboxed
from evaluation.verification import (
    JudgeUnavailable,
    SampleVerdict,
    code_verifier,
    exact_verifier,
    judge_verifier,
    number_verifier,
    verify_samples,
)

LIMITS = Limits(seconds=2.0)


@pytest.fixture
def bubblewrap():
    if shutil.which("bwrap") is None:
        if os.environ.get("CI"):
            pytest.fail("bubblewrap is not installed")
        pytest.skip("bubblewrap is not installed")


@pytest.mark.parametrize(
    ("program", "ending"),
    [
        ("print('fine')", Ending.PASSED),
        ("assert 1 == 2", Ending.FAILED),
        ("while True: pass", Ending.TIMED_OUT),
        ("import os\nwhile True:\n    os.fork()", Ending.FAILED),
        ("import socket\nsocket.create_connection(('127.0.0.1', 22), 1)", Ending.FAILED),
        ("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)", Ending.FAILED),
        ("open('/usr/pitstop-was-here', 'w')", Ending.FAILED),
        ("open('/pitstop-was-here', 'w')", Ending.FAILED),
        ("open('/work/mine', 'w').write('x')", Ending.PASSED),
        ("file = open('/work/big', 'wb')\nwhile True: file.write(bytes(1 << 20))", Ending.FAILED),
        ("numbers = bytearray(3 << 30)", Ending.FAILED),
        ("open('/etc/passwd')", Ending.FAILED),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", Ending.KILLED),
    ],
)
def test_model_written_code_is_held(bubblewrap, program, ending):
    assert run_sandboxed(program, LIMITS).ending is ending


def test_nothing_survives_the_sandbox_and_output_is_bounded(bubblewrap):
    verdict = run_sandboxed("import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint('x' * 10**6)", LIMITS)
    assert verdict.ending is Ending.PASSED and len(verdict.output) == LIMITS.output_bytes


@pytest.fixture
def neighbours():
    """Processes of the sandbox's user outside it, more than a sandbox may have."""
    user = FIRST_USER + os.getpid() if os.getuid() == 0 else os.getuid()
    started = [
        subprocess.Popen(["/usr/bin/sleep", "60"], user=user if os.getuid() == 0 else None) for _ in range(LIMITS.processes + 4)
    ]
    yield user
    for process in started:
        process.kill()
        process.wait()


def test_tasks_of_the_same_user_outside_do_not_count_against_the_limit(bubblewrap, neighbours):
    assert run_sandboxed("import os\nif os.fork() == 0: os._exit(0)\nos.wait()", LIMITS).ending is Ending.PASSED


def test_kernels_that_count_by_user_alone_get_room_for_the_tasks_outside(neighbours):
    assert other_tasks(neighbours, "4.18.0-553.el8_10.x86_64") >= LIMITS.processes + 4
    assert other_tasks(neighbours, "5.14.0-427.el9.x86_64") == other_tasks(neighbours, "6.18.44-fc") == 0


def test_the_environment_is_not_shown(bubblewrap, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    assert "hunter2" not in run_sandboxed("import os; print(dict(os.environ))", LIMITS).output


def test_without_bubblewrap_nothing_is_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        run_sandboxed("print(1)")


def test_code_is_scored_by_its_tests_and_a_stopped_sample_says_why(bubblewrap):
    verify = code_verifier(Limits(seconds=1.0), "/usr/bin/python3")
    reference = {"prompt": "def add(a, b):\n", "tests": "assert add(1, 2) == 3"}
    assert verify({"output": "    return a + b"}, reference) == SampleVerdict(1.0)
    assert verify({"output": "    return a - b"}, reference) == SampleVerdict(0.0)
    stopped = verify({"output": "    while True: pass"}, reference)
    assert stopped.score == 0.0 and stopped.failed == "still running after 1 s"


def test_answers_are_compared():
    assert exact_verifier({"output": " yes\n"}, {"answer": "yes"}).score == 1
    assert number_verifier({"output": "so 1,200 apples, that is 3.0"}, {"answer": "#### 3"}).score == 1
    assert number_verifier({"output": "no idea"}, {"answer": "3"}).score == 0


def test_an_interrupted_job_resumes_and_no_verdict_is_given_twice():
    outputs = {sample: {"sample": sample, "output": str(sample)} for sample in range(4)}
    references = {sample: {"answer": str(sample)} for sample in range(3)}
    written: list[int] = []
    summary = verify_samples(outputs, references, [0, 1], exact_verifier, lambda record: written.append(record["sample"]))
    assert written == [2, 3]
    assert (summary.verified, summary.failed, summary.left) == (2, 1, 0), "a sample without a reference failed, and is said"


def test_a_judge_that_cannot_be_had_leaves_the_rest_open():
    answers = iter([1.0, 0.5])

    def judge(question: str, answer: str, reference: str) -> float:
        try:
            return next(answers)
        except StopIteration:
            raise JudgeUnavailable("the endpoint is down") from None

    outputs = {sample: {"output": "x"} for sample in range(4)}
    written: list[float] = []
    summary = verify_samples(outputs, outputs, [], judge_verifier(judge), lambda record: written.append(record["score"]))
    assert written == [1.0, 0.5] and summary.left == 2 and summary.why == "the endpoint is down"
