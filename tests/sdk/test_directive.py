"""Where a restarted process goes on from, as its directive says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pitstop.directive import Resume, parse_resume, resume


def told(**document: object) -> Resume:
    return resume({"PITSTOP_RESUME": json.dumps(document)})


def test_without_a_directive_the_script_decides():
    assert resume({}) == Resume()
    assert not resume({}).is_directed
    assert not told(step=None, checkpoint=None, skip_batches=[]).is_directed


def test_a_rollback_names_the_checkpoint_and_the_batches_to_leave_out():
    where = told(step=200, checkpoint="/ckpt/200", skip_batches=[[200, 231], [300, 301]])
    assert (where.step, where.checkpoint) == (200, "/ckpt/200")
    assert [batch for batch in (199, 200, 230, 231, 300, 301) if where.skips(batch)] == [200, 230, 300]


def test_a_newer_service_may_say_more():
    assert told(step=5, weights="ema") == Resume(step=5)


UNREADABLE = ["nonsense", "[]", '{"step": -1}', '{"step": true}', '{"checkpoint": 3}', '{"skip_batches": [[1]]}']


@pytest.mark.parametrize("text", ["", *UNREADABLE, '{"skip_batches": [3]}'])
def test_what_cannot_be_read_is_said_and_left(text, capsys):
    assert resume({"PITSTOP_RESUME": text}) == Resume()
    said = capsys.readouterr().err
    assert ("cannot be read" in said) == bool(text)
    if text:
        with pytest.raises(ValueError):
            parse_resume(text)


def test_it_is_had_from_the_package_without_torch():
    script = "import sys, pitstop; print(pitstop.resume().step); assert 'torch' not in sys.modules"
    environment = os.environ | {"PITSTOP_RESUME": '{"step": 7}'}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
