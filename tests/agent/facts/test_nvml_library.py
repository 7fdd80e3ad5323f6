"""NVIDIA's own binding over a library of ours in C: the one thing that the stand-in can't show."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# One card, with the functions and structures of nvml.h that are asked for and no others.
LIBRARY = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct {
    unsigned version; unsigned char cluster[16]; unsigned status, clique;
    unsigned char state; unsigned mask; unsigned char summary;
} fabric_t;
#define OK 0
#define TOO_SMALL 7
#define NO_LINK 2
int nvmlInitWithFlags(unsigned f) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "an error of the test's"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "590.48.01", n); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return OK; }
int nvmlDeviceGetName(void *h, char *text, unsigned n) { strncpy(text, "NVIDIA GB200", n); return OK; }
int nvmlDeviceGetUUID(void *h, char *text, unsigned n) { strncpy(text, "GPU-c", n); return OK; }
int nvmlDeviceGetPciInfo_v3(void *h, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->id = 0x294110DE;
    strcpy(pci->busId, "00000008:01:00.0");
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->total = 198642237440ULL; return OK; }
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *t) { *t = 40; return OK; }
int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *n) {
    *n = type == 1 && counter == 0 ? 2 : 77;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
    *c = *u = 5; *p = 1; *f = 0;
    return OK;
}
int nvmlDeviceGetGpuFabricInfoV(void *h, fabric_t *f) {
    if (f->version != 0x3000028) return 25;
    memset(f->cluster, 0xab, 16);
    f->status = 0; f->clique = 7; f->state = 3; f->summary = 1; f->mask = 0;
    return OK;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *on) {
    if (link >= 18) return NO_LINK;
    *on = 1;
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned link, int *kind) { *kind = 2; return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *p) {
    if (*n < 1) { *n = 1; return TOO_SMALL; }
    *n = 1;
    p->pid = 4194999; p->used = 1; p->gi = p->ci = 0xFFFFFFFF;
    return OK;
}
"""
LOOK = """
import json, sys, dataclasses
from pathlib import Path
from roost.agent.facts import nvml
from roost.agent.facts.gpus import Reader
from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.processes import Ours
found = Reader(Sources(root=Path(sys.argv[1])), library=nvml.load, within_s=60).read(Ours())
print(json.dumps(dataclasses.asdict(found)))
"""


def test_the_vendors_binding_reads_a_library_and_what_it_lacks_is_unknown(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source)],
        check=True,
        timeout=60,
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    (gpu,) = found["gpus"]
    assert gpu == {
        "index": 0,
        "gpu_class": "gb200",
        "uuid": "GPU-c",
        "memory_bytes": 198642237440,
        "nvlink_domain": 0,
        "healthy": False,
        "unhealthy_reason": "2 uncorrectable ECC errors; row remapping pending",
        "foreign_processes": 1,
    }
    (detail,) = found["details"]
    assert (detail["pci_address"], detail["driver"]) == ("0008:01:00.0", "590.48.01")


def test_without_a_library_there_is_none_and_nothing_raises(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("this machine has NVIDIA's driver")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == {"gpus": [], "details": [], "problems": []}
