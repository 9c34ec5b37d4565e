import subprocess
import sys


def test_pricing_loads_numba_only_when_a_schedule_is_made() -> None:
    code = (
        "import sys, recovery.planning.document, recovery.planning.pipeline.plan_set; "
        "assert not {'numba', 'ortools'} & {name.split('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
