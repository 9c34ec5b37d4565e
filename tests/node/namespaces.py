"""Several hosts on one machine: network namespaces on a bridge, and faults of their links."""

from __future__ import annotations

import os
import shutil
import subprocess

__all__ = ["Namespaces", "sh", "why_not"]


def why_not() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "nft", "tc", "cc") if shutil.which(program) is None]
    if missing:
        return f"{missing[0]} is not installed"
    # Another worker may be trying at this moment.
    name = f"pitstop-try{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Namespaces:
    """`tag`: what their names begin with; `subnet`: the first three numbers of their addresses."""

    def __init__(self, tag: str, subnet: str, nodes: tuple[str, ...]) -> None:
        self.tag, self.subnet, self.nodes = tag, subnet, nodes

    def namespace(self, node: str) -> str:
        return f"{self.tag}{node}"

    def address(self, node: str) -> str:
        return f"{self.subnet}.{self.nodes.index(node) + 1}"

    def inside(self, node: str, *words: str) -> None:
        sh("ip", "netns", "exec", self.namespace(node), *words)

    def lay(self) -> None:
        sh("ip", "netns", "add", f"{self.tag}sw")
        sh("ip", "-n", f"{self.tag}sw", "link", "add", "sw", "type", "bridge")
        sh("ip", "-n", f"{self.tag}sw", "link", "set", "sw", "up")
        for node in self.nodes:
            name = self.namespace(node)
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", node, "netns", f"{self.tag}sw")
            sh("ip", "-n", f"{self.tag}sw", "link", "set", node, "master", "sw", "up")
            sh("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")

    def uplink(self) -> str:
        """Join us, outside of all namespaces, to the bridge: our address there. It goes with the namespaces."""
        address = f"{self.subnet}.250"
        sh("ip", "link", "add", self.tag, "type", "veth", "peer", "name", "uplink", "netns", f"{self.tag}sw")
        sh("ip", "-n", f"{self.tag}sw", "link", "set", "uplink", "master", "sw", "up")
        sh("ip", "addr", "add", f"{address}/24", "dev", self.tag)
        sh("ip", "link", "set", self.tag, "up")
        return address

    def clear(self) -> None:
        for node in (*self.nodes, "sw"):
            subprocess.run(["ip", "netns", "del", self.namespace(node)], capture_output=True)

    def heal(self, node: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.namespace(node), "nft", "flush", "ruleset"], capture_output=True)
        subprocess.run(["tc", "-n", self.namespace(node), "qdisc", "del", "dev", "eth0", "root"], capture_output=True)
        sh("ip", "-n", self.namespace(node), "link", "set", "eth0", "up")

    def drop(self, node: str, rule: str, way: str = "input") -> None:
        """Drop packets that come in at `node`, or go out there (`way` "output")."""
        self.inside(node, "nft", "add", "table", "ip", "t")
        self.inside(node, "nft", f"add chain ip t {way} {{ type filter hook {way} priority 0 ; }}")
        self.inside(node, "nft", f"add rule ip t {way} {rule} drop")

    def part(self, node: str, *addresses: str) -> None:
        """Let nothing pass between `node` and these addresses."""
        self.drop(node, f"ip saddr {{ {', '.join(addresses)} }}")
        self.drop(node, f"ip daddr {{ {', '.join(addresses)} }}", "output")
