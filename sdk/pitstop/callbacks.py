"""The monitor in other people's training loops: callbacks for PyTorch Lightning and for Hugging Face's Trainer.

    Trainer(callbacks=[pitstop.lightning_callback()])               Lightning, `lightning` or `pytorch_lightning`
    Trainer(..., callbacks=[pitstop.transformers_callback()])       transformers

Each is made when it is asked for, with the base class of the library that the job has; nothing is imported before that.
"""

import importlib
from typing import Any, Dict, Optional

from pitstop.monitor import init

__all__ = ["lightning_callback", "transformers_callback"]


class Sections:
    """Sections that begin in one callback and end in another."""

    def __init__(self) -> None:
        self.monitor = init()
        self._open: Dict[str, Any] = {}

    def begin(self, name: str, section: Any) -> None:
        # One that is still open was left by an exception: it was not finished.
        section.__enter__()
        self._open[name] = section

    def end(self, name: str) -> bool:
        """Whether it had begun."""
        section = self._open.pop(name, None)
        if section is not None:
            section.__exit__(None, None, None)
        return section is not None

    def report(self, values: Dict[str, Any]) -> None:
        """Of `values` those that are numbers (or tensors of one), under the last part of their name."""
        numbers: Dict[str, float] = {}
        for name, value in values.items():
            try:
                numbers[name.rpartition("/")[2]] = float(value)
            except (TypeError, ValueError):
                continue
        if numbers:
            self.monitor.report(**numbers)


def base_class(modules: "tuple[str, ...]", name: str) -> Any:
    """Raises ImportError where none of `modules` is there."""
    problem: Optional[ImportError] = None
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            problem = error
    raise problem or ImportError(name)


def lightning_callback() -> Any:
    """A Lightning Callback that reports steps, evaluations, checkpoints and the loss."""
    base = base_class(("lightning.pytorch", "pytorch_lightning"), "Callback")

    class PitstopCallback(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self._sections = Sections()
            self._watched: Any = None

        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            # Lightning tells no callback that a checkpoint is complete.
            if self._watched is not trainer:
                self._watched, save = trainer, trainer.save_checkpoint

                def save_checkpoint(*args: Any, **options: Any) -> None:
                    with self._sections.monitor.checkpoint():
                        save(*args, **options)

                trainer.save_checkpoint = save_checkpoint

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_index: int) -> None:
            self._sections.begin("step", self._sections.monitor.step(trainer.global_step))

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_index: int) -> None:
            self._sections.end("step")
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                self._sections.report({"loss": loss})

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            self._sections.begin("evaluation", self._sections.monitor.evaluation())

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            self._sections.end("evaluation")

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._sections.monitor.failed(exception)

    return PitstopCallback()


def transformers_callback() -> Any:
    """A TrainerCallback that reports steps, evaluations, checkpoints and what the Trainer logs."""
    base = base_class(("transformers",), "TrainerCallback")

    class PitstopCallback(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self._sections = Sections()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._sections.begin("step", self._sections.monitor.step(state.global_step))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._sections.end("step")
            self._begin_what_follows(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._begin_what_follows(control)

        def _begin_what_follows(self, control: Any) -> None:
            # The Trainer evaluates, and then saves, between this call and the next.
            if control.should_evaluate:
                self._sections.begin("evaluation", self._sections.monitor.evaluation())
            elif control.should_save:
                self._sections.begin("checkpoint", self._sections.monitor.checkpoint())

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._sections.end("evaluation"):
                self._begin_what_follows(control)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self._sections.end("checkpoint"):
                # That the best one is to be saved is found after its evaluation.
                with self._sections.monitor.checkpoint():
                    pass

        def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
            self._sections.report({name: value for name, value in (logs or {}).items() if name in ("loss", "grad_norm")})

    return PitstopCallback()
