"""From a line to a pattern that finds it again on other hosts, ranks and days: its normal form, masks as bounded classes."""

from __future__ import annotations

import re

from agents.normal_form import normal_line

__all__ = ["line_pattern"]

MASK = re.compile(r"<(?:time|url|address|id|pci|path|hex|host|device|n)>")
CLASSES = {
    "<n>": "[-+0-9.,eEx ]{1,120}",
    "<time>": "[^\\n]{1,60}",
}
ANYTHING_WHOLE = "[^ \\t\\n]{1,300}"
# Longer lines are cut between two words: what follows rarely tells one failure from another.
LONGEST = 160
WORD = re.compile(r"[A-Za-z]{4}")


def literal(text: str, spaced: bool) -> str:
    """`text` as a pattern; digits within words differ from machine to machine, and so may the width of gaps where they vary."""
    pattern = re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)
    pattern = re.sub(r"[0-9]+", "[0-9]{1,20}", pattern)
    return pattern.replace(" ", "[ \\t]{1,20}") if spaced else pattern


def line_pattern(line: str) -> str | None:
    """A pattern for `line`, to be judged by the gate; None where no word of the line stays after masking."""
    normal = normal_line(line)
    if len(normal) > LONGEST:
        normal = normal[:LONGEST].rpartition(" ")[0]
    spaced = re.search(r"\t| {2}", line.strip()) is not None
    texts, masks = MASK.split(normal), MASK.findall(normal)
    told = [index for index, text in enumerate(texts) if WORD.search(text)]
    if not told:
        return None
    # What stands before the first word and behind the last says nothing that the pattern would miss.
    parts = [literal(texts[told[0]].lstrip(" :,;>]").lstrip(), spaced)]
    for index in range(told[0] + 1, told[-1] + 1):
        parts += [CLASSES.get(masks[index - 1], ANYTHING_WHOLE), literal(texts[index], spaced)]
    return "".join(parts).strip()
