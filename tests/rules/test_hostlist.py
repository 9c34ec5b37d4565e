"""Host lists as Slurm writes them; the expected names are what `scontrol show hostnames` prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.hostlist import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n0", "n0"),
        ("n[0-1]", "n0 n1"),
        ("n[1-3,07-09],x[1-2]y[0-1]", "n1 n2 n3 n07 n08 n09 x1y0 x1y1 x2y0 x2y1"),
        ("gpu-a[098-101].rack,login", "gpu-a098.rack gpu-a099.rack gpu-a100.rack gpu-a101.rack login"),
        ("", ""),
        ("(null)", ""),
        ("n[0-", ""),
        ("n[a-b]", ""),
        ("n[0-999999999]", ""),
        ("n0,n0", "n0"),
    ],
)
def test_names_are_those_that_slurm_would_list(text, names):
    assert list(expand(text)) == names.split()


@given(st.text(alphabet="n0123456789[]-,", max_size=60))
def test_no_text_makes_it_fail_or_grow_without_bound(text):
    assert len(expand(text)) <= 200_000
