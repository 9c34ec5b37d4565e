"""Collectors that hang, fail and speak, beside one another."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from detectors.machine import Machine
from node.collectors import Collector, Collectors, exporter_collector, machine_collector
from tests.node.peer import wait_for


def test_a_collector_that_hangs_silences_no_other_and_is_told_once() -> None:
    hold = threading.Event()
    count = iter(range(10_000))

    def hang() -> Sequence[str]:
        hold.wait(120)
        return ()

    def fail() -> Sequence[str]:
        raise OSError("no such device")

    collectors = Collectors(
        [
            Collector("nvml", hang, 0.01, limit_seconds=0.05),
            Collector("links", lambda: [f"line {next(count)}"], 0.01),
            Collector("disks", fail, 0.01),
        ]
    )
    found: list[tuple[str, str]] = []
    try:
        wait_for(lambda: found.extend(collectors.look()) or sum(name == "links" for name, _ in found) > 20, 20)
        wait_for(lambda: found.extend(collectors.look()) or any(name == "nvml" for name, _ in found))
        assert [text for name, text in found if name == "nvml"] == [
            "the collector has not answered for 0 s: what it watches is not known"
        ]
        assert [text for name, text in found if name == "disks"] == ["the collector failed: OSError: no such device"]
        hold.set()
        wait_for(lambda: found.extend(collectors.look()) or ("nvml", "the collector answers again") in found, 20)
    finally:
        hold.set()
        collectors.close()


def test_the_machine_is_compared_with_the_look_before() -> None:
    readings = iter([Machine(0.0, links={"eth0": True}), Machine(5.0, links={"eth0": False})])
    collector = machine_collector(lambda: next(readings))
    assert list(collector.collect()) == []
    assert list(collector.collect()) == ["link eth0 went down"]


def test_an_exporter_is_scraped_and_its_xid_told_in_the_drivers_words() -> None:
    xids = iter(["0", "79"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",pci_bus_id="00000000:3B:00.0"}} {next(xids)}\n'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        collector = exporter_collector(f"http://127.0.0.1:{server.server_address[1]}/metrics")
        assert list(collector.collect()) == []
        (line,) = collector.collect()
        assert line.startswith("NVRM: Xid (PCI:00000000:3B:00.0): 79, told by")
    finally:
        server.shutdown()
        server.server_close()
