"""A soak with one network namespace per member, on a bridge whose ports drop packets.

It runs as root of a network of its own, and prints what came of it as JSON.
"""

import json
import re
import subprocess
import sys

from gapless_lab.process import LabProcess
from gapless_lab.soak import SoakNetwork, SoakPlan, soak
from gapless_lab.soak.plan import SoakTask

PORT = 7800
QUEUE = "tbf rate 1500kbit burst 4kb limit 6kb"
"""The rate and the queue of a port of the bridge; the kernel drops what exceeds them."""


def run(command: str) -> str:
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


class Hosts(SoakNetwork):
    """One namespace for each process, each with one interface."""

    def __init__(self) -> None:
        self.cables = 0
        run("ip link add bridge0 type bridge && ip link set bridge0 up")

    def addresses(self, count: int) -> list[str]:
        return [f"10.77.0.{at + 1}:{PORT}" for at in range(count)]

    def command_prefix(self, task: SoakTask) -> list[str]:
        host = task.node
        script = (
            "set -e; echo here; read cable; ip link set lo up; "
            f"ip link set $cable address 02:00:00:00:00:{host:02x};"
            f' ip addr add 10.77.0.{host}/24 dev $cable; ip link set $cable up; exec "$0" "$@"'
        )
        return ["unshare", "--net", "sh", "-c", script]

    def connect(self, task: SoakTask, process: LabProcess) -> None:
        self.cables += 1
        port, cable = f"port{self.cables}", f"cable{self.cables}"
        process.wait_until(lambda: "here" in process.lines, "no network of its own", 60)
        run(f"ip link add {port} type veth peer name {cable}")
        run(f"ip link set {port} master bridge0 up && tc qdisc add dev {port} root {QUEUE}")
        run(f"ip link set {cable} netns {process.pid}")
        process.write_line(cable)

    def dropped(self) -> int:
        return sum(map(int, re.findall(r"dropped (\d+)", run("tc -s qdisc"))))


def main(transport: str, seconds: str) -> None:
    hosts = Hosts()
    dropped: list[int] = []
    plan = SoakPlan(
        seconds=float(seconds), loss=0, duplicate=0, reorder=0, transport=transport, rate=60
    )
    report = soak(plan, network=hosts, progress=lambda _: dropped.append(hosts.dropped()))
    print(json.dumps({**report.as_dict(), "dropped": dropped[-1]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
