"""How processes of the SDK are started under the job's own interpreter: store, warm spare, checkpoint host, probe worker."""

from __future__ import annotations

from pathlib import Path

from pitstop import protocol

__all__ = ["program_of"]


def program_of(module: str) -> str:
    """What `python -c` is given to run `main` of one of the SDK's modules.

    The SDK is loaded from the agent's own folder, whatever else the path holds under its name: a folder `pitstop` that PYTHONPATH
    or the working directory leads to, or another version. The path itself stays the job's; only the working directory, which
    `-c` puts first, is taken off, so that the agent's folder shadows no package of the job, and no folder there one of Python's.
    """
    folder = Path(protocol.__file__).resolve().parent
    inside = f"submodule_search_locations=[{str(folder)!r}]"
    return "; ".join(
        (
            "import sys",
            "sys.path[:] = [place for place in sys.path if place]",
            "from importlib.util import module_from_spec, spec_from_file_location",
            f"sdk = spec_from_file_location('pitstop', {str(folder / '__init__.py')!r}, {inside})",
            "package = sys.modules['pitstop'] = module_from_spec(sdk)",
            "sdk.loader.exec_module(package)",
            f"from {module} import main",
            "main()",
        )
    )
