"""Staging a state that lives on a GPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from pitstop.checkpoint.checkpointer import Checkpointer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"),
]


def test_a_state_on_a_gpu_is_staged_bit_by_bit_and_faster_than_it_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    keeper = Checkpointer(str(tmp_path / "checkpoints"), model=model, optimizer=optimizer)
    keeper.save(1)
    keeper.save(2)
    saved = keeper.save(3)
    began = time.perf_counter()
    with (tmp_path / "peer.pt").open("wb") as target:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, target)
    peer = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n{saved.bytes / 1e6:.0f} MB on a GPU: stall {saved.stall_seconds:.3f} s, torch.save {peer:.3f} s")
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert keeper.restore().step == 3
    assert all(torch.equal(one, two) and two.is_cuda for one, two in zip(expected, model.parameters(), strict=True))
    assert saved.stall_seconds < peer
    assert keeper.flush()
