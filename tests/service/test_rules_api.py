"""The rules in use, over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from rules.pack import load_packs


def test_rules_are_listed_in_pages_and_one_is_told_whole(client: TestClient) -> None:
    known = [rule.code for rule in load_packs()]
    codes: list[str] = []
    page = {"next_cursor": "0"}
    while page["next_cursor"] is not None:
        page = client.get("/api/v1/rules", params={"limit": 500, "cursor": page["next_cursor"]}).json()
        codes += [rule["code"] for rule in page["items"]]
        assert page["total"] == len(known)
    assert codes == known
    found = client.get("/api/v1/rules", params={"contains": "gpu_fallen xid 79"}).json()
    assert [rule["code"] for rule in found["items"]] == ["PS-XID-079"]
    rule = client.get("/api/v1/rules/PS-XID-079").json()
    assert rule["reason"] == "gpu_fallen_off_bus" and rule["examples"]
    assert client.get("/api/v1/rules/PS-NO-1").status_code == 404
