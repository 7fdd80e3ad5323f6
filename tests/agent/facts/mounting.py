"""A program: makes mounts in a namespace of its own, then prints what is found behind directories.

`mounting.py SCRIPT DIRECTORY...`: SCRIPT is for `sh -eu`; what it prints comes first.
"""

import json
import subprocess
import sys
from pathlib import Path

from roost.agent.facts.host import Reader
from roost.agent.facts.probes import Probes
from roost.domain.node import Facts, Node, NodeName
from roost.formats.fleet import node_to_json


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from agent.facts.hanging_mount import own_namespace

    own_namespace()
    script, *directories = sys.argv[1:]
    said = subprocess.run(
        ["sh", "-euc", script], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    ).stdout
    found = Reader(Path("/"), [Path(one) for one in directories], probes=Probes(within_s=30)).read()
    node = Node(name=NodeName("here"), facts=Facts(storage=found.storage))
    shown = {"said": said, "storage": node_to_json(node)["storage"], "problems": found.problems}
    print(json.dumps(shown))  # noqa: T201 - whoever started it reads it


if __name__ == "__main__":
    main()
