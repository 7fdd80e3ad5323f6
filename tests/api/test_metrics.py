from api.live import Live, WireNode


def test_metrics_are_told_to_anybody_and_hold_no_secret(server: Live) -> None:
    node = WireNode(server, name="measured").join()
    node.facts["storage"] = [
        {"filesystem": "/dev/a", "mounts": ["/"], "free_bytes": 3, "total_bytes": 4}
    ]
    assert node.report().status_code == 200
    with server.client() as nobody:
        answer = nobody.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'roost_node_ready{node="measured"} 1.0' in lines
    assert 'roost_node_memory_bytes{node="measured"} 3.2e+10' in lines
    assert 'roost_node_storage_free_bytes{kind="local",node="measured"} 3.0' in lines
    assert 'roost_node_storage_total_bytes{kind="local",node="measured"} 4.0' in lines
    assert not any('kind="shared",node="measured"' in line for line in lines)
    for secret in ("admin_credential", "gateway_credential"):
        assert server.secret(secret) not in answer.text


def test_a_copy_of_a_running_machine_is_refused_wherever_it_asks(server: Live) -> None:
    node = WireNode(server, name="copied", boot_id="boot-1").join()
    assert node.report().status_code == 200
    copy = WireNode(server, name="copied", identity="identity-of-copied", boot_id="boot-2")
    copy.credential = node.credential
    refused = copy.report(started_at=2)
    assert refused.status_code == 409
    told = refused.json()
    assert "a copy of its directory" in told["detail"]
    assert "roost ctl token create" in told["hint"]
    with copy.client() as client:
        for path in ("/agent/v1/desired?wait=0", "/agent/v1/orders?wait=0"):
            assert client.get(f"{path}&boot=boot-2").status_code == 409
            assert client.get(f"{path}&boot=boot-1").status_code in {200, 204}
    assert node.report().status_code == 200
