"""Run workers in network namespaces of one Linux machine, joined by links of a chosen bandwidth and latency.

    machine -> hub (user and network namespace, a bridge) -> node i (network namespace, veth to the bridge, tc on
    both ends), which becomes worker i, as if it were on machine i of many

This needs no root if the kernel lets users make namespaces. Nothing has a name outside: the namespaces, links and
queues end with the processes, and each process ends with the one that started it, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelag.cores import own as own_cores
from pipelag.distributed.launch.processes import end, watch
from pipelag.errors import PipelagError
from pipelag.job import QUIET, be_parent, leave_with_parent, python

SELF = "pipelag.distributed.launch.namespaces"
ENTER = ("unshare", "--user", "--map-root-user", "--net")
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
PORT = "29400"
MOST = 254  # workers: the addresses 10.0.0.1 to 10.0.0.254
PLACE = "PIPELAG_LINK"  # a worker's environment variable with its link's number and the hub's process id


class NotMade(PipelagError):
    """The links between workers could not be made, although no obstacle was found before."""


@dataclass(frozen=True)
class Links:
    """The link of every worker to the others: gigabits per second in each direction, and milliseconds one way."""

    gbit: float
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        if not (self.gbit > 0 and self.latency_ms >= 0):
            raise PipelagError(
                f"links need gbit above 0 and latency_ms from 0 on, not {self.gbit} and {self.latency_ms}"
            )

    @property
    def bandwidth(self) -> float:
        """The bandwidth in bytes per second."""
        return self.gbit * 1e9 / 8

    def queue(self, delayed: bool) -> list[str]:
        """A queue's arguments for tc: rate and latency (netem) at a sender, only the rate (tbf) after the bridge."""
        rate = f"{self.gbit * 1e9:.0f}bit"
        if delayed and self.latency_ms:
            return ["netem", "delay", f"{self.latency_ms}ms", "rate", rate, "limit", "100000"]
        burst = max(16_384, round(self.bandwidth / 1e3))  # a millisecond's worth: the timer is no finer
        return ["tbf", "rate", rate, "burst", str(burst), "latency", "400ms"]


def obstacle(links: Links) -> str | None:
    """Why workers cannot be joined by these links on this machine, in one sentence; None: they can."""
    if sys.platform != "linux":
        return f"network namespaces exist on Linux only, and this is {sys.platform}"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the command {tool} is missing: install {package}"
    words = " ".join(links.queue(delayed=True))
    tries = {  # each step is tried after those before it
        "a network namespace": "true",
        "a bridge": "ip link add hub type bridge",
        "a pair of veth links": "ip link add port0 type veth peer name link0",
        f"a queue of tc's kind {words.split()[0]}": f"tc qdisc add dev link0 root {words}",
    }
    script: list[str] = []
    for what, step in tries.items():
        script.append(step)
        done = subprocess.run([*ENTER, "sh", "-ec", "; ".join(script)], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            return f"this machine does not allow {what}: {reason}"
    return None


def reshape(links: Links) -> None:
    """Change this worker's link to these values from now on; every worker calls it, and waits for the others."""
    rank, hub_pid = os.environ[PLACE].split(":")
    command(f"tc qdisc replace dev link{rank} root {' '.join(links.queue(delayed=True))}")
    outside = f"nsenter --net=/proc/{hub_pid}/ns/net"
    command(f"{outside} tc qdisc replace dev port{rank} root {' '.join(links.queue(delayed=False))}")


def run(folder: Path, workers: int, threads: int, links: Links) -> dict[int, int]:
    """Run the task in `folder` on workers that are joined by these links; returns exit codes like `processes.run`.

    Raises:
        NotMade: the links cannot be made on this machine (`obstacle` tells beforehand).
    """
    plan = {"workers": workers, "threads": threads, "links": asdict(links), "cores": own_cores()}
    (folder / "links.json").write_text(json.dumps(plan))
    be_parent()
    done = subprocess.run([*ENTER, *python(), "-m", SELF, "hub", str(folder)], check=False)
    ended = folder / "ended.json"
    if not ended.exists():
        why = obstacle(links) or f"their hub ended with status {done.returncode}"
        raise NotMade(f"the namespaces could not be made: {why}")
    return {int(rank): code for rank, code in json.loads(ended.read_text()).items()}


def hub(folder: Path) -> int:
    """Run the hub, in the outer namespace: make the bridge and the nodes, and end all nodes when one fails."""
    leave_with_parent()
    be_parent()
    plan = json.loads((folder / "links.json").read_text())
    queue = Links(**plan["links"]).queue(delayed=False)
    command("ip link set lo up")
    command("ip link add hub type bridge")
    command("ip link set hub up")
    nodes = []
    for rank in range(plan["workers"]):
        words = ["unshare", "--net", *python(), "-m", SELF, "node", str(folder), str(rank)]
        node = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        nodes.append(node)
        assert node.stdin is not None and node.stdout is not None
        node.stdout.readline()  # the node is in its namespace now
        command(f"ip link add port{rank} type veth peer name link{rank}")
        command(f"ip link set link{rank} netns {node.pid}")
        command(f"ip link set port{rank} master hub up")
        command(f"tc qdisc add dev port{rank} root {' '.join(queue)}")
        node.stdin.close()
    codes = watch(nodes, folder)
    end(nodes)
    (folder / "ended.json").write_text(json.dumps(codes))
    return len(codes)


def node(folder: Path, rank: int) -> None:
    """Run a node, in a namespace of its own: take the link, then become the worker."""
    leave_with_parent()
    plan = json.loads((folder / "links.json").read_text())
    print("ready", flush=True)
    sys.stdin.read()  # closed when the link has been handed over
    os.dup2(2, 1)
    name, address = f"link{rank}", f"10.0.0.{rank + 1}"
    command("ip link set lo up")
    command(f"ip addr add {address}/24 dev {name}")
    command(f"ip link set {name} up")
    command(f"tc qdisc add dev {name} root {' '.join(Links(**plan['links']).queue(delayed=True))}")
    cores, threads, workers = plan["cores"], plan["threads"], plan["workers"]
    if len(cores) >= workers * threads:
        os.sched_setaffinity(0, cores[rank * threads : (rank + 1) * threads])
    os.environ |= {"GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name, PLACE: f"{rank}:{os.getppid()}"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": PORT, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    os.environ |= QUIET | os.environ
    os.execv(sys.executable, [*python(), "-m", "pipelag.distributed.launch.launch", str(folder)])


def command(text: str) -> None:
    """Run ip or tc; raises `CalledProcessError` if it fails."""
    subprocess.run(text.split(), check=True)


if __name__ == "__main__":
    role, where, *ranks = sys.argv[1:]
    if role == "node":
        node(Path(where), int(ranks[0]))
    sys.exit(hub(Path(where)))
