"""A filesystem whose server stops answering when a test says so: the kernel's FUSE, spoken by hand."""

import ctypes
import os
import struct
import threading
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
MS_REC_PRIVATE: Final = 0x4000 | 0x40000

INIT, GETATTR, STATFS, FORGET, INTERRUPT, BATCH_FORGET, DESTROY = 26, 3, 17, 2, 36, 42, 38
SILENT: Final = {FORGET, INTERRUPT, BATCH_FORGET}
BLOCKS, AVAILABLE, BLOCK = 1_000_000, 250_000, 4096


def own_namespace() -> None:
    """Mounts made by this process from now on are seen by it and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace of one's own")


class HangingMount:
    """Mounted on `point`; answers while `answering` is set, and keeps who asks waiting otherwise."""

    def __init__(
        self, point: Path, *, source: str = "filer:/models", kind: str = "fuse.sshfs"
    ) -> None:
        self.answering = threading.Event()
        self.answering.set()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        asked = (source.encode(), os.fsencode(point), kind.encode(), 0, options.encode())
        if libc.mount(*asked):
            cause = ctypes.get_errno()
            os.close(self._device)
            raise OSError(cause, os.strerror(cause))
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Everybody who waits gets an error."""
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                asked = os.read(self._device, 1 << 20)
            except OSError:
                return
            _, opcode, unique, node = struct.unpack_from("<IIQQ", asked)
            if opcode in SILENT:
                continue
            if opcode != INIT:
                self.answering.wait()
            error, body = _answer(opcode, node)
            try:
                os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
            except OSError:
                # Who asked has been killed meanwhile.
                continue


def _answer(opcode: int, node: int) -> tuple[int, bytes]:
    match opcode:
        case 26:  # INIT
            return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)
        case 3:  # GETATTR
            times = (0, 0, 0, 0, 0, 0)
            attributes = struct.pack(
                "<6Q10I", node, 0, 0, *times[:3], 0, 0, 0, 0o40755, 2, *(0,) * 5
            )
            return 0, struct.pack("<QII", 0, 0, 0) + attributes
        case 17:  # STATFS
            return 0, struct.pack(
                "<5Q4I24x", BLOCKS, AVAILABLE, AVAILABLE, 0, 0, BLOCK, 255, BLOCK, 0
            )
        case 38:  # DESTROY
            return 0, b""
        case _:
            return -38, b""  # ENOSYS
