"""Pitstop inside a training process: `import pitstop`. Nothing is imported until a name is asked for."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pitstop.callbacks import lightning_callback, transformers_callback
    from pitstop.checkpoint.checkpointer import Checkpointer
    from pitstop.directive import Resume, resume
    from pitstop.elastic.training import Elastic
    from pitstop.monitor import Monitor, init
    from pitstop.sampler import Sampler

__all__ = [
    "Checkpointer",
    "Elastic",
    "Monitor",
    "Resume",
    "Sampler",
    "init",
    "lightning_callback",
    "resume",
    "transformers_callback",
]

HOMES = {
    "Checkpointer": "pitstop.checkpoint.checkpointer",
    "Elastic": "pitstop.elastic.training",
    "Monitor": "pitstop.monitor",
    "Resume": "pitstop.directive",
    "Sampler": "pitstop.sampler",
    "init": "pitstop.monitor",
    "lightning_callback": "pitstop.callbacks",
    "resume": "pitstop.directive",
    "transformers_callback": "pitstop.callbacks",
}


def __getattr__(name: str) -> object:
    if name in HOMES:
        from importlib import import_module

        return getattr(import_module(HOMES[name]), name)
    raise AttributeError("module 'pitstop' has no attribute %r" % name)
