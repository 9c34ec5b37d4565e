"""What to tell a person to do: by remedy and severity, beside what the diagnosis itself asks to be collected."""

from __future__ import annotations

from collections.abc import Mapping

from rules.diagnosis import Diagnosis
from rules.taxonomy import UNKNOWN, Remedy, Severity

__all__ = ["next_steps", "severity_meaning"]

MEANING: Mapping[Severity, str] = {
    Severity.SEV1: "isolate and reconfigure",
    Severity.SEV2: "restart on the same resources",
    Severity.SEV3: "retry in place",
    Severity.NONE: "nothing automatic helps",
}
STEPS: Mapping[Remedy, str] = {
    Remedy.ISOLATE_NODE: "Take the node out of service, restart the job without it, and have the hardware checked.",
    Remedy.RESET_GPU: "Drain the node, reset the GPU (nvidia-smi --gpu-reset or a reboot), and test it before it returns.",
    Remedy.RESTART_PROCESS: "Restart the job on the same nodes; if it fails the same way again, look for the cause first.",
    Remedy.RETRY_IN_PLACE: "Retry; if it happens again soon, restart the job and look at the component named above.",
    Remedy.ROLLBACK_CHECKPOINT: "Go back to a checkpoint from before the trouble began.",
    Remedy.FIX_USER_CODE: "Tell the owner of the job: it will fail the same way until code or settings change.",
    Remedy.FIX_CONFIGURATION: "Change the setting that is named above; a restart without the change fails the same way.",
    Remedy.FIX_ENVIRONMENT: "Repair the environment of the job (packages, files, permissions); a restart alone fails again.",
    Remedy.FREE_RESOURCES: "Free the resource that is taken or full, then start again.",
    Remedy.CONTACT_OPERATOR: "Tell the operators: every job on the same path is affected; draining one node cures nothing.",
    Remedy.LOCALISE: "Find which rank or node it is before acting: restart once, and localise if it happens again.",
    Remedy.REQUEUE: "Put the job back into the queue; nothing is broken.",
    Remedy.NONE: "Nothing needs to be repaired.",
}


def severity_meaning(severity: Severity) -> str:
    return MEANING[severity]


def next_steps(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What to do, most important first; empty where nothing failed."""
    if not diagnosis.is_failure:
        return ()
    first = STEPS[diagnosis.remedy]
    if diagnosis.reason == UNKNOWN:
        first = "Restart once on the same resources; if it fails again, stop and ask, with what is listed below."
    return (first, *(f"Collect {item}." for item in diagnosis.collect))
