"""Failures as frameworks, kernels, schedulers and log shippers write them, and healthy logs (formats.yaml has them)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.rules.test_confusions import diagnose

FORMATS = yaml.safe_load((Path(__file__).parent / "formats.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FORMATS, ids=lambda name: name.replace(" ", "_"))
def test_a_failure_is_known_as_it_is_written(name: str) -> None:
    expected, found = FORMATS[name], diagnose(FORMATS[name]["log"])
    assert found.reason == expected["reason"]
    for place in ("rank", "node"):
        if place in expected:
            assert getattr(found.fault_domain, place) == expected[place]
