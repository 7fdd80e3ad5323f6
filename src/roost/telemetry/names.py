"""The names of all metrics; once shipped, a name and its labels stay."""

from typing import Final

NODE_READY: Final = "roost_node_ready"
NODE_MEMORY: Final = "roost_node_memory_bytes"
GPUS: Final = "roost_gpus"
NODE_STORAGE_FREE: Final = "roost_node_storage_free_bytes"
NODE_STORAGE_TOTAL: Final = "roost_node_storage_total_bytes"
FLEET_STORAGE_FREE: Final = "roost_fleet_storage_free_bytes"
FLEET_STORAGE_TOTAL: Final = "roost_fleet_storage_total_bytes"

GATEWAY_REQUESTS: Final = "roost_gateway_requests_total"
GATEWAY_TTFT: Final = "roost_gateway_ttft_seconds"
GATEWAY_QUEUE_DEPTH: Final = "roost_gateway_queue_depth"
GATEWAY_IN_FLIGHT: Final = "roost_gateway_in_flight"
GATEWAY_CONNECTIONS: Final = "roost_gateway_connections"
GATEWAY_EJECTED: Final = "roost_gateway_ejected_replicas"
GATEWAY_SNAPSHOT_AGE: Final = "roost_gateway_snapshot_age_seconds"
GATEWAY_SNAPSHOT_REVISION: Final = "roost_gateway_snapshot_revision"
GATEWAY_LOG_DROPPED: Final = "roost_gateway_log_lines_dropped_total"
GATEWAY_WORKERS: Final = "roost_gateway_workers"
