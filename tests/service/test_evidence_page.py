"""Evidence is shown where it stands, and what waits can be settled from the overview."""

from __future__ import annotations

from fastapi.testclient import TestClient

from service.dashboard.evidence_page import passages
from service.kept_evidence import KeptLine
from tests.service.failed_jobs import fail

LINES = [KeptLine("a.log", number, f"line {number}") for number in range(1, 101)]


def quoted(*numbers: int, role: str = "root", path: str = "a.log") -> list[dict[str, object]]:
    return [{"path": path, "line": number, "role": role} for number in numbers]


def test_a_line_is_shown_with_six_around_it() -> None:
    (passage,) = passages(LINES, quoted(50))
    assert [line.number for line in passage.lines] == list(range(44, 57)) and passage.roles == {50: "root"}


def test_near_lines_share_a_passage_and_distant_ones_do_not() -> None:
    assert [passage.roles for passage in passages(LINES, quoted(20, 30, 80))] == [{20: "root", 30: "root"}, {80: "root"}]


def test_roots_come_first_and_what_was_not_kept_is_left_out() -> None:
    found = passages(
        LINES, [*quoted(10, role="cascade"), *quoted(60), *quoted(7, path="gone.log"), {"path": "a.log", "role": "root"}]
    )
    assert [passage.roles for passage in found] == [{60: "root"}, {10: "cascade"}]


def test_the_page_marks_the_line_and_the_overview_quotes_it(client: TestClient) -> None:
    lines = ("step 1", "before <it>", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "after it")
    number = fail(client, "gpt", lines)
    text = client.get(f"/incidents/{number}/evidence").text
    assert f"<mark>{lines[2]}</mark>" in text and "before &lt;it&gt;" in text and "<mark>after" not in text
    assert lines[2] in client.get("/").text
    assert f'href="/incidents/{number}/evidence"' in client.get(f"/incidents/{number}").text
