"""The callbacks inside the real training loops of Lightning and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop import layout, protocol
from pitstop.layout import Section

pytestmark = pytest.mark.acceptance


@pytest.fixture
def monitor_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "monitor"
    layout.create(str(file), 0, 0)
    monkeypatch.setenv(protocol.MONITOR, str(file))
    monkeypatch.setattr("pitstop.monitor._present", None)
    return file


def seen(file: Path) -> tuple[layout.Progress, dict[str, tuple[int, float]]]:
    content = file.read_bytes()
    header = layout.read_header(content)
    progress = layout.read_progress(content, header)
    assert progress is not None
    return progress, layout.read_metrics(content, header)


def test_lightning_reports_steps_evaluations_checkpoints_and_the_loss(monitor_file: Path, tmp_path: Path) -> None:
    import pytorch_lightning as lightning
    import torch

    from pitstop.callbacks import lightning_callback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def validation_step(self, batch: torch.Tensor, _: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[lightning_callback()], logger=False, default_root_dir=tmp_path
    )
    trainer.fit(Module(), data, data)
    progress, metrics = seen(monitor_file)
    assert progress.completed == 12 and progress.step == 11
    assert progress.times[Section.EVALUATION].finished >= 2
    # One an epoch, and each is complete when it is told of.
    assert progress.times[Section.CHECKPOINT].finished == 2 and progress.checkpointed == 11
    assert metrics["loss"][0] == 11


def test_transformers_reports_steps_evaluations_checkpoints_and_the_loss(monitor_file: Path, tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from pitstop.callbacks import transformers_callback

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=1))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=2,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, callbacks=[transformers_callback()]).train()
    progress, metrics = seen(monitor_file)
    assert progress.completed == 6 and progress.step == 5
    assert progress.times[Section.EVALUATION].finished == 2
    assert progress.times[Section.CHECKPOINT].finished == 3 and progress.checkpointed == 5
    assert metrics["loss"][1] > 0 and "grad_norm" in metrics
