"""Plans for every number of lost workers, as `pitstop pipeline plans -o` keeps them, read without the planner."""

import json
import os
import zipfile
from typing import Any, Dict

from pitstop.pipeline.plan import PlanError

__all__ = ["PlanSet"]

KINDS = "FBW"


class PlanSet:
    """The folder of plans; each is read when it is asked for. Needs numpy."""

    def __init__(self, folder: str) -> None:
        """Raises PlanError where there is no set of plans."""
        self.folder = folder
        try:
            with open(os.path.join(folder, "index.json"), encoding="utf-8") as source:
                index = json.load(source)
            self._plans = [(int(item["plan"]), int(item["period"])) for item in index["plans"]]
            self._mode = str(index["mode"])
            self.replicas, self.stages = int(index["replicas"]), int(index["stages"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise PlanError("%s: no set of plans: %r; pitstop pipeline plans makes one" % (folder, problem)) from None

    @property
    def workers(self) -> int:
        return self.replicas * self.stages

    def document(self, failures: int) -> Dict[str, Any]:
        """The plan that serves with `failures` lost workers, as `PipelinePlan.from_document` reads it. Raises PlanError."""
        import numpy

        if not 0 <= failures < len(self._plans):
            raise PlanError("%d workers are lost: plans are there for 0 to %d" % (failures, len(self._plans) - 1))
        count, period = self._plans[failures]
        try:
            with numpy.load(os.path.join(self.folder, "plan-%d.npz" % count)) as arrays:
                starts, routing, failed = arrays["starts"], arrays["routing"], arrays["failed"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
            raise PlanError(
                "%s: plan %d: %r; compute it again with pitstop pipeline plans" % (self.folder, count, problem)
            ) from None
        operations = [
            [int(routing[stage, batch]), stage, KINDS[kind], batch, int(starts[kind, stage, batch])]
            for kind, stage, batch in numpy.ndindex(*starts.shape)
        ]
        return {"mode": self._mode, "period": period, "normalised": failed.tolist(), "ops": operations}
