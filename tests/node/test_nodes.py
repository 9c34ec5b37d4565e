"""One job on several nodes: an agent each, on one machine, with real processes and a real socket to the service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.node.peer import Peer, Runs, wait_for
from tests.node.several_nodes import Nodes

# Steps alone: what the nodes have in common here are their agents, not their data.
TRAIN = """
import os, sys, time
import pitstop
rank, generation = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
monitor = pitstop.init()
place = "/".join(os.environ[name] for name in ("LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE"))
print("rank", rank, "generation", generation, "place", place, os.environ["MASTER_PORT"], flush=True)
step = 0
while not os.path.exists(sys.argv[1]):
    with monitor.step(step):
        time.sleep(0.02)
        with monitor.checkpoint():
            pass
    if step == 5 and generation == 0 and sys.argv[2:] == ["raise", str(rank)]:
        raise ValueError("bad batch")
    step += 1
"""


@pytest.fixture
def nodes(runs: Runs, peer: Peer, tmp_path: Path) -> Nodes:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    return Nodes(runs, peer, script, tmp_path / "finish")


def both_run(nodes: Nodes, generation: int = 0) -> None:
    wait_for(lambda: nodes.running("n1", generation) and nodes.running("n2", generation), what=f"generation {generation}")


@pytest.mark.acceptance
def test_two_nodes_form_one_world_and_end_together(nodes: Nodes, peer: Peer) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    places = {item["rank"]: item["node"] for item in peer.attempt(0, 4)["ranks"]}
    assert places == {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
    wait_for(lambda: all(peer.lines(rank) for rank in range(4)))
    assert peer.lines(3)[0].startswith("rank 3 generation 0 place 1/1/2/4 ")
    assert {peer.lines(rank)[0].rpartition(" ")[2] for rank in range(4)} == {peer.lines(0)[0].rpartition(" ")[2]}, "one store"
    beats = wait_for(lambda: [beat for beat in peer.posted("/heartbeat") if beat["node"] == "n2" and beat["ranks"]])
    assert [entry["rank"] for entry in beats[-1]["ranks"]] == [2, 3]
    assert peer.posted("jobs")[0]["ranks"] == 4 and peer.posted("jobs")[0]["min_ranks"] == 2
    nodes.finish("n1", "n2")


@pytest.mark.acceptance
def test_a_rank_that_fails_on_another_node_is_reported_by_the_leader_and_all_are_restarted(nodes: Nodes, peer: Peer) -> None:
    nodes.start("n1", "raise", "3")
    nodes.start("n2", "raise", "3")
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    (failed,) = failure["failed"]
    assert (failed["rank"], failed["node"], failed["error"], failed["step"]) == (3, "n2", "ValueError: bad batch", 5)
    before = nodes.pids("n1") | nodes.pids("n2")
    nodes.command(1, "n1", 1, ["n1", "n2"])
    nodes.command(2, "n2", 1, ["n1", "n2"])
    both_run(nodes, 1)
    wait_for(lambda: peer.posted("commands/1/result") and peer.posted("commands/2/result"))
    assert {answer["status"] for path, answer in peer.requests if path.endswith("/result")} == {"done"}
    assert set(before.values()).isdisjoint((nodes.pids("n1") | nodes.pids("n2")).values())
    nodes.finish("n1", "n2")


@pytest.mark.acceptance
def test_a_lost_node_is_told_as_unreachable_the_job_shrinks_and_grows_when_it_returns(nodes: Nodes, peer: Peer) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.kill("n2")
    beat = wait_for(lambda: [beat for beat in peer.posted("/heartbeat") if beat.get("unreachable")])[-1]
    assert beat["node"] == "n1" and beat["unreachable"][0]["node"] == "n2"
    assert nodes.running("n1", 0), "the death of an agent alone touches no rank"
    os.kill(nodes.pids("n1")[1], signal.SIGKILL)
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    assert [entry["node"] for entry in failure["unreachable"]] == ["n2"]
    nodes.command(1, "n1", 1, ["n1"], exclude=["n2"])
    wait_for(lambda: nodes.running("n1", 1), what="the smaller formation")
    assert wait_for(lambda: peer.posted("commands/1/result"))[0]["status"] == "done"
    assert peer.attempt(1, 2)["cause"] == "restart"
    nodes.start("n2")
    both_run(nodes, 2)
    assert peer.attempt(2, 4)["cause"] == "self"
    nodes.finish("n1", "n2")


@pytest.mark.acceptance
def test_a_plan_moves_a_job_to_a_node_where_pitstop_run_waits_for_it(nodes: Nodes, peer: Peer) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.start("n3")
    nodes.command(1, "n1", 1, ["n1", "n3"])
    nodes.command(2, "n3", 1, ["n1", "n3"])
    nodes.command(3, "n2", 1, [], "stop_ranks", why="another job needs it", going_on=["n1", "n3"])
    wait_for(lambda: nodes.running("n1", 1) and nodes.running("n3", 1), what="the formation on the planned nodes")
    assert [item["node"] for item in peer.attempt(1, 4)["ranks"]] == ["n1", "n1", "n3", "n3"]
    assert wait_for(lambda: peer.posted("commands/3/result"))[0]["status"] == "done"
    assert nodes.agents["n2"].poll() is None, "it waits there for the job to come back"
    nodes.finish("n1", "n3", "n2")


@pytest.mark.acceptance
def test_when_the_leaders_node_is_lost_the_next_one_leads_by_command_and_the_old_one_returns_as_a_follower(
    nodes: Nodes, peer: Peer
) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.kill("n1")
    os.kill(nodes.pids("n2")[2], signal.SIGKILL)
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    assert [entry["node"] for entry in failure["unreachable"]] == ["n1"]
    assert [entry["node"] for entry in failure["failed"]] == ["n2"]
    nodes.command(1, "n2", 1, ["n2"], exclude=["n1"])
    wait_for(lambda: nodes.running("n2", 1), what="the smaller formation")
    assert wait_for(lambda: peer.posted("commands/1/result"))[0]["status"] == "done"
    assert {item["rank"] for item in peer.attempt(1, 2)["ranks"]} == {0, 1}
    nodes.start("n1")
    both_run(nodes, 2)
    assert [item["node"] for item in peer.attempt(2, 4)["ranks"]] == ["n2", "n2", "n1", "n1"]
    said = nodes.finish("n1", "n2")
    assert "leads from now on" in said["n2"]


@pytest.mark.acceptance
def test_ranks_that_wait_for_those_of_a_lost_leader_are_told_of_by_the_next_one_which_then_leads(
    runs: Runs, peer: Peer, tmp_path: Path
) -> None:
    nodes = Nodes(runs, peer, Path(__file__).with_name("lockstep.py"), tmp_path / "finish")
    nodes.start("n1", "0.02")
    nodes.start("n2", "0.02")
    # Past the steps from which the limit is learnt.
    wait_for(lambda: any((entry["step"] or 0) >= 10 for beat in peer.posted("/heartbeat") for entry in beat["ranks"]))
    nodes.kill("n1")
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    assert [entry["node"] for entry in failure["unreachable"]] == ["n1"]
    (waiting,) = failure["failed"]
    assert (waiting["rank"], waiting["node"], waiting["exit_code"], waiting["signal"]) == (None, "n2", None, None)
    assert "node n1 cannot be reached from n2" in waiting["error"]
    assert nodes.running("n2", 0), "nothing is done without a command"
    nodes.command(1, "n2", 1, ["n2"], exclude=["n1"])
    wait_for(lambda: nodes.running("n2", 1), what="the smaller formation")
    assert {item["rank"] for item in peer.attempt(1, 2)["ranks"]} == {0, 1}
    nodes.finish("n2")


@pytest.mark.soak
@pytest.mark.whole
def test_an_agent_that_begins_while_its_leader_is_dead_tells_what_became_of_its_ranks_and_leads_when_told_to(
    nodes: Nodes, peer: Peer
) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    lost = nodes.pids("n2")[2]
    nodes.agents["n2"].kill()
    nodes.agents["n2"].communicate()
    nodes.kill("n1")
    os.kill(lost, signal.SIGKILL)
    nodes.start("n2")
    failure = wait_for(lambda: peer.posted("/failures"))[0]
    assert [entry["node"] for entry in failure["unreachable"]] == ["n1"]
    assert [(entry["rank"], entry["node"], entry["signal"]) for entry in failure["failed"]] == [(2, "n2", 9)]
    nodes.command(1, "n2", 1, ["n2"], exclude=["n1"])
    wait_for(lambda: nodes.running("n2", 1), what="the smaller formation")
    nodes.finish("n2")


@pytest.mark.soak
@pytest.mark.whole
def test_a_leader_that_is_taken_out_hands_the_job_to_the_node_that_the_command_names_first(
    nodes: Nodes, peer: Peer, runs: Runs
) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.command(1, "n2", 1, ["n2"], isolated=["n1"])
    nodes.command(2, "n1", 1, [], "stop_ranks", why="its GPU fell off the bus", going_on=["n2"])
    wait_for(lambda: nodes.running("n2", 1), what="the smaller formation")
    wait_for(lambda: peer.posted("commands/1/result") and peer.posted("commands/2/result"))
    assert {answer["status"] for path, answer in peer.requests if path.endswith("/result")} == {"done"}
    wait_for(lambda: not runs.state(node="n1")["leads"], what="the end of its lead")
    assert nodes.agents["n1"].poll() is None, "it waits there to be taken back"
    nodes.kill("n1")
    nodes.finish("n2")


@pytest.mark.soak
@pytest.mark.whole
def test_a_leader_that_was_out_of_reach_while_another_was_told_to_lead_ends_its_ranks_and_is_taken_in(
    nodes: Nodes, peer: Peer
) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    stale = nodes.pids("n1")
    nodes.agents["n1"].send_signal(signal.SIGSTOP)
    os.kill(nodes.pids("n2")[2], signal.SIGKILL)
    wait_for(lambda: peer.posted("/failures"))
    nodes.command(1, "n2", 1, ["n2"], exclude=["n1"])
    wait_for(lambda: nodes.running("n2", 1), what="the smaller formation")
    assert all(Path(f"/proc/{pid}").exists() for pid in stale.values()), "nobody could end them"
    nodes.agents["n1"].send_signal(signal.SIGCONT)
    both_run(nodes, 2)
    assert [item["node"] for item in peer.attempt(2, 4)["ranks"]] == ["n2", "n2", "n1", "n1"]
    assert set(stale.values()).isdisjoint(nodes.pids("n1").values())
    said = nodes.finish("n1", "n2")
    assert "another node leads the job, generation 1" in said["n1"]


@pytest.mark.soak
@pytest.mark.whole
def test_nodes_that_wait_for_one_another_say_so_once_and_the_service_is_told(nodes: Nodes, peer: Peer) -> None:
    def waits(node: str) -> list[str]:
        return [beat["waits_for"] for beat in peer.posted("/heartbeat") if beat["node"] == node and beat["waits_for"]]

    nodes.start("n2", nnodes="3")
    wait_for(lambda: waits("n2"))
    assert waits("n2")[0] == f"the agent that leads the job, which does not answer at {nodes.rendezvous}"
    nodes.start("n1", nnodes="3")
    wait_for(lambda: waits("n1") and "to give ranks to this node" in waits("n2")[-1])
    assert waits("n1")[0] == "the agents of more nodes: 2 of 3 are here, to form generation 0"
    nodes.start("n3", nnodes="3")
    both_run(nodes)
    said = nodes.finish("n1", "n2", "n3")
    assert [said[node].count("waiting for") for node in ("n1", "n2", "n3")] == [1, 2, 0]


@pytest.mark.soak
@pytest.mark.whole
def test_after_two_different_cuts_nobody_leads_by_a_command_of_before_the_newest_generation(nodes: Nodes, peer: Peer) -> None:
    peer.down()
    for node in ("n1", "n2", "n3"):
        nodes.start(node, nnodes="1:3", ranks=1)
    wait_for(lambda: all(nodes.running(node, 0) for node in ("n1", "n2", "n3")), what="generation 0")
    nodes.agents["n2"].send_signal(signal.SIGSTOP)
    os.kill(nodes.pids("n3")[2], signal.SIGKILL)
    wait_for(lambda: nodes.running("n1", 1) and nodes.running("n3", 1), what="generation 1 without n2")
    nodes.kill("n1")
    peer.up()
    # As of a service that heard of generation 0 only.
    nodes.command(1, "n2", 1, ["n2", "n3"], exclude=["n1"])
    nodes.command(2, "n3", 1, ["n2", "n3"], exclude=["n1"])
    nodes.agents["n2"].send_signal(signal.SIGCONT)
    answered = wait_for(lambda: peer.posted("commands/1/result") and peer.posted("commands/2/result"), what="both answers")
    assert answered[0]["status"] == peer.posted("commands/1/result")[0]["status"] == "refused"
    assert nodes.running("n3", 1), "its ranks are left alone"
    nodes.command(3, "n2", 2, ["n2", "n3"], exclude=["n1"])
    nodes.command(4, "n3", 2, ["n2", "n3"], exclude=["n1"])
    both = ("n2", "n3")
    wait_for(lambda: all(nodes.running(node, 2) for node in both), what="generation 2")
    said = nodes.finish(*both)
    assert "another node leads the job, generation 1" in said["n2"]


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.parametrize("killed", ["n1", "n2"])
def test_a_killed_agent_of_any_node_leaves_all_ranks_alone_and_its_successor_takes_them_over(nodes: Nodes, killed: str) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    before = nodes.pids("n1") | nodes.pids("n2")
    nodes.agents[killed].kill()
    nodes.agents[killed].communicate()
    nodes.start(killed)
    if killed == "n1":
        wait_for(lambda: "takeover" in {item["cause"] for item in nodes.peer.posted("/attempts")})
    os.kill(before[3], signal.SIGKILL)
    failure = wait_for(lambda: nodes.peer.posted("/failures"), what="the failure, through both agents")[0]
    assert [(entry["rank"], entry["node"], entry["signal"]) for entry in failure["failed"]] == [(3, "n2", 9)]
    assert {rank: pid for rank, pid in (nodes.pids("n1") | nodes.pids("n2")).items() if rank != 3} == {
        rank: pid for rank, pid in before.items() if rank != 3
    }
    nodes.command(1, "n1", 1, ["n1", "n2"])
    nodes.command(2, "n2", 1, ["n1", "n2"])
    both_run(nodes, 1)
    nodes.finish("n1", "n2")


@pytest.mark.soak
@pytest.mark.whole
def test_a_stop_command_ends_the_job_on_every_node(nodes: Nodes, peer: Peer) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.command(1, "n1", 0, [], "stop_ranks", why="enough")
    nodes.command(2, "n2", 0, [], "stop_ranks", why="enough")
    for node in ("n1", "n2"):
        _, said = nodes.agents[node].communicate(timeout=120)
        assert nodes.agents[node].returncode == 1 and "given up: enough" in said
    assert {answer["status"] for path, answer in peer.requests if path.endswith("/result")} == {"done"}
    assert nodes.runs.processes() == []


@pytest.mark.soak
@pytest.mark.whole
def test_without_a_service_the_leader_restarts_all_nodes_by_itself(nodes: Nodes, peer: Peer) -> None:
    peer.down()
    nodes.start("n1", "raise", "2")
    nodes.start("n2", "raise", "2")
    both_run(nodes, 1)
    said = nodes.finish("n1", "n2")
    assert "starting generation 1 (self)" in said["n1"] and "starting ranks 2 to 3 of generation 1" in said["n2"]


@pytest.mark.soak
@pytest.mark.whole
def test_a_signal_to_one_node_ends_the_job_on_all_of_them(nodes: Nodes) -> None:
    nodes.start("n1")
    nodes.start("n2")
    both_run(nodes)
    nodes.agents["n2"].send_signal(signal.SIGTERM)
    for node in ("n1", "n2"):
        _, said = nodes.agents[node].communicate(timeout=120)
        assert "SIGTERM was passed on to the ranks" in said
    assert nodes.runs.processes() == []
