from typing import Any

from fake_api import FakeApi, Run


def node(name: str, fabrics: list[dict[str, Any]] | None, **more: object) -> dict[str, Any]:
    cards = [{"index": n, "class": "h100", "healthy": n != 3} for n in range(4)]
    return {"name": name, "status": "ready", "fabrics": fabrics, "gpus": cards, **more}


def on(name: str, *hcas: str) -> list[dict[str, Any]]:
    return [{"name": name, "hcas": list(hcas)}]


NODES = {
    "nodes": [
        node("a", on("ib0", "mlx5_0", "mlx5_1")),
        node("b", on("ib0", "mlx5_0"), status="lost"),
        node("c", [*on("ib0", "mlx5_0"), *on("roce", "bnxt_0")], gpus=None),
        node("d", []),
        node("e", None),
    ],
    "allocations": [{"replica": "m-0", "node": "a", "gpus": [0]}],
}


def test_each_fabric_is_told_with_its_ready_nodes_and_what_is_free_on_them(
    api: FakeApi, run: Run
) -> None:
    api.answers["GET /api/v1/nodes"] = NODES
    ran = run("fabrics")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["FABRIC", "NODES", "HCAS", "GPUS"],
        ["ib0", "2/3", "4", "h100:2/4"],
        ["roce", "1/1", "1", "-"],
    ]
    assert "not reported by: e" in ran.err
    assert run("fabrics", "-o", "json").json["fabrics"][0] == {
        "name": "ib0",
        "nodes": ["a", "b", "c"],
        "ready": 2,
        "hcas": 4,
        "gpus": {"h100": {"free": 2, "total": 4}},
    }


def test_a_fleet_without_fabrics_is_told_how_to_name_one(api: FakeApi, run: Run) -> None:
    api.answers["GET /api/v1/nodes"] = {"nodes": [node("a", [])], "allocations": []}
    ran = run("fabrics")
    assert ran.out.startswith("no fabrics")
    assert "--fabric" in ran.out
