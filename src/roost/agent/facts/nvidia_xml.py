"""The cards in what `nvidia-smi -q -x` printed, in all versions of that format."""

import re
from typing import Final

from roost.agent.facts.card import (
    MOST_CARDS,
    Card,
    Cards,
    Evidence,
    Instance,
    Process,
    mebibytes,
    pci_address,
    whole,
)
from roost.agent.facts.gpu_class import mig_profile
from roost.agent.facts.xml_tree import MOST_BYTES, Element, NotXml, parse

MOST_PROCESSES: Final = 10_000
_SILENT: Final = frozenset({
    "", "n/a", "[n/a]", "not supported", "[not supported]", "unknown error", "[unknown error]",
    "insufficient permissions", "[insufficient permissions]",
    "requested functionality has been deprecated",
})  # fmt: skip
_LIVE: Final = (
    "fb_memory_usage/used",
    "temperature/gpu_temp",
    "utilization/gpu_util",
    "performance_state",
    "clocks/sm_clock",
)
"""Readings that only a card that answers gives. A fan's failure is not the card's."""
_VOLATILE: Final = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
    "double_bit/total",
)
"""Every version has some of them."""
_ZERO_UUID: Final = re.compile(r"[0-]+")


def read(data: bytes) -> Cards:
    """The cards that are described; `cards` None and the problem for what is no such document."""
    if len(data) > MOST_BYTES:
        return _unreadable(f"it has {len(data)} bytes, {MOST_BYTES} are read at most")
    text = data.decode("utf-8", "replace")
    problems: list[str] = []
    try:
        root = parse(text)
    except NotXml as cause:
        # Command lines of processes are printed as they are, by some versions unescaped.
        without = _without_processes(text)
        if without is None:
            return _unreadable(str(cause))
        try:
            root = parse(without)
        except NotXml:
            return _unreadable(str(cause))
        problems.append("nvidia-smi's list of processes cannot be read: they are not known")
    if root.tag != "nvidia_smi_log":
        return _unreadable(f"it is a document of {root.tag[:80]!r}")
    listed = list(root.all("gpu"))
    if len(listed) > MOST_CARDS:
        return _unreadable(f"it describes {len(listed)} GPUs, {MOST_CARDS} are read at most")
    attached = whole(_said(root, "attached_gpus"))
    if attached is not None and attached > len(listed):
        missing = f"{attached - len(listed)} of {attached}"
        problems.append(f"nvidia-smi counts {attached} GPUs and does not describe {missing}")
    return Cards(
        cards=tuple(_card(index, gpu) for index, gpu in enumerate(listed)),
        driver=_said(root, "kmd_version") or _said(root, "driver_version"),
        problems=tuple(problems),
    )


def _without_processes(text: str) -> str | None:
    """The same without its lists of processes; None: it has none."""
    kept, at = [], 0
    while (start := text.find("<processes>", at)) >= 0:
        end = text.find("</processes>", start)
        if end < 0:
            break
        kept.append(text[at:start])
        at = end + len("</processes>")
    return "".join([*kept, text[at:]]) if kept else None


def _unreadable(why: str) -> Cards:
    return Cards(cards=None, problems=(f"nvidia-smi's XML is not read: {why}",))


def _card(index: int, gpu: Element) -> Card:
    memory = mebibytes(_said(gpu, "fb_memory_usage/total"))
    lost = _lost(gpu)
    return Card(
        index=index,
        product=_said(gpu, "product_name"),
        uuid=_said(gpu, "uuid"),
        pci_address=pci_address(_said(gpu, "pci/pci_bus_id") or gpu.attributes.get("id")),
        pci_id=_pci_id(_said(gpu, "pci/pci_device_id")),
        memory_bytes=memory,
        mig=_flag(_said(gpu, "mig_mode/current_mig"), yes="Enabled", no="Disabled"),
        instances=_instances(gpu, memory),
        evidence=_evidence(gpu, lost),
        # Of a lost card the list is empty, whatever runs on it.
        processes=_processes(gpu.first("processes")) if lost is None else None,
        clique=_clique(gpu),
    )


def _evidence(gpu: Element, lost: str | None) -> Evidence:
    return Evidence(
        answers=any(_said(gpu, path) is not None for path in _LIVE) and lost is None,
        lost=lost,
        uncorrectable_ecc=_ecc(gpu.first("ecc_errors/volatile")),
        row_remap_pending=_yes(gpu, "remapped_rows/remapped_row_pending"),
        row_remap_failed=_yes(gpu, "remapped_rows/remapped_row_failure"),
        page_retirement_pending=_yes(gpu, "retired_pages/pending_retirement")
        or _yes(gpu, "retired_pages/pending_blacklist"),
        repair_pending=_yes(gpu, "ecc_errors/channel_repair_pending")
        or _yes(gpu, "ecc_errors/tpc_repair_pending"),
        recovery_action=_said(gpu, "gpu_recovery_action"),
        fabric_state=_said(gpu, "fabric/state"),
        fabric_status=_said(gpu, "fabric/status"),
        fabric_ill=_fabric_ill(gpu.first("fabric/health")),
    )


def _lost(gpu: Element) -> str | None:
    for path in (*_LIVE, "fb_memory_usage/total", "uuid"):
        element = gpu.first(path)
        said = element.text.lower() if element is not None else ""
        if "is lost" in said:
            return "lost: it has fallen off the bus"
        if "requires reset" in said:
            return "it requires a reset"
        if "err!" in said or ("unknown error" in said and path.startswith("fb_memory_usage")):
            return "it answers with errors"
    return None


def _ecc(volatile: Element | None) -> int | None:
    if volatile is None:
        return None
    counts = [whole(_said(volatile, path)) for path in _VOLATILE]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _fabric_ill(health: Element | None) -> str | None:
    if health is None or (_said(health, "summary") or "").lower() != "unhealthy":
        return None
    wrong = [
        child.tag.replace("_", " ")
        for child in health.children
        if child.tag != "summary" and child.text.lower() == "true"
    ]
    config = _said(health, "incorrect_configuration")
    if config is not None and config.lower() != "none":
        wrong.append(f"incorrect configuration: {config.lower()}")
    return ", ".join(wrong) or "no cause is given"


def _clique(gpu: Element) -> str | None:
    """Zeros for a uuid: the fabric manager gave it none, and that says nothing of links."""
    cluster = _said(gpu, "fabric/clusterUuid") or _said(gpu, "fabric/cluster_uuid")
    clique = whole(_said(gpu, "fabric/cliqueId") or _said(gpu, "fabric/clique_id"))
    state = _said(gpu, "fabric/state") or ""
    if cluster is None or clique is None or _ZERO_UUID.fullmatch(cluster):
        return None
    return f"{cluster.lower()}/{clique}" if state.lower() == "completed" else None


def _instances(gpu: Element, parent_memory: int | None) -> tuple[Instance, ...]:
    listed = gpu.first("mig_devices")
    found = list(listed.all("mig_device")) if listed is not None else []
    sharing = [_said(device, "gpu_instance_id") for device in found]
    instances = []
    for position, device in enumerate(found[:MOST_CARDS]):
        memory = mebibytes(_said(device, "fb_memory_usage/total"))
        own = sharing.count(sharing[position]) == 1
        shared = "device_attributes/shared/"
        instances.append(
            Instance(
                index=position,
                gpu_instance=whole(sharing[position]),
                compute_instance=whole(_said(device, "compute_instance_id")),
                uuid=_said(device, "uuid"),
                # Compute instances that share one memory are no whole instance of any profile.
                profile=mig_profile(
                    multiprocessors=whole(_said(device, shared + "multiprocessor_count")),
                    copy_engines=whole(_said(device, shared + "copy_engine_count")),
                    memory=memory,
                    parent_memory=parent_memory,
                )
                if own
                else None,
                memory_bytes=memory if own else None,
                uncorrectable_ecc=whole(
                    _said(device, "ecc_error_count/volatile_count/sram_uncorrectable")
                ),
            )
        )
    return tuple(instances)


def _processes(listed: Element | None) -> tuple[Process, ...] | None:
    if listed is None or (listed.text and not listed.children and listed.text.lower() != "none"):
        return None
    found = []
    for process in list(listed.all("process_info"))[:MOST_PROCESSES]:
        kind = _said(process, "type")
        found.append(
            Process(
                pid=whole(_said(process, "pid")),
                compute=kind is None or "C" in kind,
                name=_said(process, "process_name"),
                gpu_instance=whole(_said(process, "gpu_instance_id")),
            )
        )
    return tuple(found)


def _pci_id(text: str | None) -> str | None:
    """`233010DE`: device, then vendor."""
    found = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text or "")
    return f"{found[2]}:{found[1]}".lower() if found else None


def _said(element: Element, path: str) -> str | None:
    found = element.first(path)
    if found is None or found.text.lower() in _SILENT:
        return None
    low = found.text.lower()
    if "is lost" in low or "err!" in low or "requires reset" in low:
        return None
    return found.text


def _yes(element: Element, path: str) -> bool | None:
    return _flag(_said(element, path), yes="Yes", no="No")


def _flag(said: str | None, *, yes: str, no: str) -> bool | None:
    return {yes.lower(): True, no.lower(): False}.get((said or "").lower())
