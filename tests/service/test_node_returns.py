"""Taking nodes out and bringing them back with a site's own commands, which are real programs here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from sqlalchemy import select

from recovery.decision import Mode
from recovery.drivers.command import Operation
from recovery.node_return import Approved, Part, Phase, RepairNoted, Tick, Uncordoned
from service.driver_calls import DriverCalls
from service.node_returns import NodeReturns
from service.settings import SettingsError
from service.site_drivers import load_drivers
from service.situations import FREEZE, MODES
from service.store import Store
from service.store.access import AuditEntry, Switch
from service.store.fleet import DriverCall, NodeReturn
from service.store.jobs import Node

# A site's tool: a folder with one file per cordoned node that says who holds it and why; each call is written to its log.
TOOL = """
import os, pathlib, sys
world, operation, node, *rest = sys.argv[1:]
held = pathlib.Path(world, node)
with open(pathlib.Path(world, "log"), "a") as log:
    log.write(f"{operation} {node} {' '.join(rest)} {os.environ['PITSTOP_KEY']}\\n")
if operation == "state" and pathlib.Path(world, "deaf").exists():
    sys.exit("no answer")
elif operation == "state":
    print(held.read_text() if held.exists() else "")
elif operation == "cordon" and not pathlib.Path(world, "vain").exists():
    held.write_text(rest[0])
elif operation == "uncordon":
    held.unlink()
elif operation.startswith("probe"):
    sys.exit(1 if pathlib.Path(world, "broken").exists() else 0)
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Site:
    """The store, the runner and a site's tool with its own little world."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.world = folder / "world"
        self.world.mkdir()
        tool = folder / "tool.py"
        tool.write_text(TOOL)
        start = [sys.executable, str(tool), str(self.world)]
        document = {
            operation.value: {
                "command": [*start, operation.value, "{node}", *(["{why}"] if operation is Operation.CORDON else [])]
            }
            for operation in Operation
        }
        drivers = folder / "drivers.yaml"
        drivers.write_text(yaml.safe_dump(document))
        self.store, self.clock = store, Clock()
        self.returns = NodeReturns(store, self.clock, load_drivers(drivers))
        self.calls = DriverCalls(store, self.clock, self.returns)
        with store.writing() as session:
            for name in ("n1", "n2"):
                session.add(Node(id=name, state="ready", versions={}, lease_until=1e9, seen_at=1.0))

    def take_out(self, *, reset: bool = False) -> int:
        with self.store.writing() as session:
            row = self.returns.take_out(
                session, "n1", key="a1/n1", why="Xid 79", incident=None, recovery=None, generation=4, reset=reset
            )
            return row.id

    def tell(self, return_id: int, event: object) -> None:
        with self.store.writing() as session:
            self.returns.tell(session, return_id, event)  # type: ignore[arg-type]

    def row(self) -> NodeReturn:
        with self.store.reading() as session:
            return session.scalars(select(NodeReturn)).one()

    def did(self) -> list[str]:
        """What the tool was told to do, looking aside."""
        log = self.world / "log"
        calls = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
        return [call for call in calls if call != "state"]

    def set_modes(self, mode: Mode) -> None:
        with self.store.writing() as session:
            session.merge(Switch(name=MODES, value={part.value: mode.value for part in Part}, set_by="ann", set_at=1.0))


@pytest.fixture
def site(store: Store, tmp_path: Path) -> Site:
    return Site(store, tmp_path)


def test_in_mode_auto_a_node_goes_all_the_way_out_and_back(site: Site) -> None:
    site.set_modes(Mode.AUTO)
    out = site.take_out()
    site.calls.work()
    assert (site.world / "n1").read_text() == "pitstop : Xid 79"
    site.tell(out, RepairNoted(1100.0, "ann", "GPU replaced"))
    site.calls.work()
    assert site.row().phase == Phase.PROBATION.value
    site.clock.now += 4 * 3600
    assert site.returns.tick()
    site.calls.work()
    row = site.row()
    assert (row.phase, row.over) == (Phase.RETURNED.value, True)
    assert site.did() == ["cordon", "probe", "probe_pair", "uncordon"]
    assert not (site.world / "n1").exists()
    with site.store.reading() as session:
        assert session.get_one(Node, "n1").state == "ready"
        acts = set(session.scalars(select(AuditEntry.act)))
    assert {"driver.cordon", "driver.uncordon", "node.returned"} <= acts


def test_by_default_people_decide_each_part(site: Site) -> None:
    out = site.take_out()
    site.tell(out, RepairNoted(1100.0, "ann", "GPU replaced"))
    site.calls.work()
    assert site.did() == ["cordon"]
    site.tell(out, Approved(1200.0, "ann"))
    site.calls.work()
    site.clock.now += 4 * 3600
    site.tell(out, Tick(site.clock.now))
    site.calls.work()
    assert site.did() == ["cordon", "probe", "probe_pair"]
    site.tell(out, Approved(site.clock.now, "ann"))
    site.calls.work()
    assert site.row().phase == Phase.RETURNED.value


def test_a_failed_probe_keeps_the_node_out(site: Site) -> None:
    site.set_modes(Mode.AUTO)
    out = site.take_out()
    (site.world / "broken").touch()
    site.tell(out, RepairNoted(1100.0, "ann", "reseated"))
    site.calls.work()
    assert site.row().phase == Phase.CORDONED.value
    assert site.did() == ["cordon", "probe"]


def test_taking_out_twice_under_one_key_or_again_while_out_does_it_once(site: Site) -> None:
    first = site.take_out()
    assert site.take_out() == first
    with site.store.writing() as session:
        other = site.returns.take_out(
            session, "n1", key="a2/n1", why="again", incident=None, recovery=None, generation=5, reset=False
        )
        assert other.id == first
    site.calls.work()
    assert site.did() == ["cordon"]


def test_a_call_whose_maker_died_is_looked_at_before_it_is_made_again(site: Site) -> None:
    site.take_out()
    claimed = site.calls._claim()
    assert claimed is not None
    (site.world / "n1").write_text("pitstop : Xid 79")
    site.calls.work()
    assert site.did() == []
    site.clock.now += 120
    site.calls.work()
    assert site.did() == []
    with site.store.reading() as session:
        call = session.scalars(select(DriverCall)).one()
    assert (call.state, call.attempts) == ("done", 2)
    assert "so already" in call.detail


def test_a_node_that_others_hold_is_neither_cordoned_nor_put_back(site: Site) -> None:
    (site.world / "n1").write_text("bad PSU [root]")
    site.take_out()
    site.calls.work()
    assert site.did() == []
    assert (site.world / "n1").read_text() == "bad PSU [root]"
    assert site.returns.state_of(site.row()).held_by == "bad PSU [root]"


def test_a_node_put_back_by_hand_is_noticed_and_its_return_cancelled(site: Site) -> None:
    site.take_out()
    site.calls.work()
    (site.world / "n1").unlink()
    site.clock.now += 60
    site.calls.work()
    row = site.row()
    assert (row.phase, row.cancelled_by) == (Phase.CANCELLED.value, "somebody")
    assert site.did() == ["cordon"]


def test_a_gpu_reset_counts_as_the_repair(site: Site) -> None:
    site.set_modes(Mode.AUTO)
    site.take_out(reset=True)
    site.calls.work()
    assert site.did() == ["cordon", "reset_gpu", "probe", "probe_pair"]
    assert site.row().phase == Phase.PROBATION.value


def test_while_the_state_cannot_be_read_nothing_is_done_and_nothing_is_concluded(site: Site) -> None:
    site.take_out()
    site.calls.work()
    (site.world / "deaf").touch()
    site.clock.now += 60
    site.calls.work()
    assert site.row().phase == Phase.CORDONED.value
    site.tell(site.row().id, Uncordoned(site.clock.now, "ann", ours=False))
    with site.store.writing() as session:
        site.returns.take_out(session, "n2", key="a3/n2", why="Xid 79", incident=None, recovery=None, generation=6, reset=False)
    site.calls.work()
    assert site.did() == ["cordon"]
    (site.world / "deaf").unlink()
    site.clock.now += 120
    site.calls.work()
    assert site.did() == ["cordon", "cordon"]


def test_a_cordon_that_did_not_take_is_not_taken_for_done(site: Site) -> None:
    (site.world / "vain").touch()
    site.take_out()
    site.calls.work()
    with site.store.reading() as session:
        call = session.scalars(select(DriverCall)).one()
    assert (call.state, call.attempts) == ("pending", 1)
    assert "in service" in call.detail


def test_frozen_nothing_is_called(site: Site) -> None:
    site.take_out()
    with site.store.writing() as session:
        session.add(Switch(name=FREEZE, value={"on": True}, set_by="ann", set_at=1.0))
    site.calls.work()
    assert site.did() == []


def test_a_driver_file_that_cannot_be_used_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "drivers.yaml"
    path.write_text("cordon: {command: [drain]}")
    with pytest.raises(SettingsError, match=r"PITSTOP_DRIVERS_FILE: .*does not name \{node\}"):
        load_drivers(path)
    with pytest.raises(SettingsError, match="No such file"):
        load_drivers(tmp_path / "none.yaml")
