"""Pitstop inside a training process: `import pitstop`. Nothing is imported until a name is asked for."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pitstop.monitor import Monitor, init

__all__ = ["Monitor", "init"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("pitstop.monitor"), name)
    raise AttributeError("module 'pitstop' has no attribute %r" % name)
