"""What kind of card a product is: one canonical spelling of its whole name.

Lower case; the words that only name a vendor or its brand are left out; everything else stays,
memory size and form too, joined by hyphens. So no product is folded into another one:
`a100-sxm4-80gb` is not `a10`, `l40` is not `l40s`, and a product nobody has heard of is a class of
its own.
"""

import hashlib
import re
import unicodedata
from typing import Final

from roost.agent.facts.card import MIB
from roost.domain.gpu import GpuClass

UNKNOWN: Final = GpuClass("unknown")
"""Of a card that does not even tell its name."""
LONGEST: Final = 100

_MARKS: Final = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
_WORDS: Final = re.compile(r"[^\W_]+(?:[.+]+[^\W_]+)*\+*")
# `quadro` and `titan` stay: the Quadro T1000 and the T1000 are different cards. `radeon` goes only
# where a name of its own follows.
_VENDORS: Final = frozenset({
    "nvidia", "amd", "ati", "amd/ati", "corporation", "corp", "inc", "advanced", "micro", "devices",
    "geforce", "tesla", "instinct",
})  # fmt: skip
# The 20 series' desktop cards are "RTX 2080 SUPER", its laptop chips "RTX 2080 Super".
_LAPTOP: Final = re.compile(r"(RTX 20\d0 Super)(?! with Max-Q)")
_NAMELESS: Final = frozenset({"graphics-device", "device", "radeon-graphics", ""})


def gpu_class(product: str | None, pci_id: str | None = None) -> GpuClass:
    """The class of a product; `pci_id` tells those apart that only say "Graphics Device"."""
    if product is None:
        return GpuClass(f"pci-{_joined(pci_id.lower())}") if pci_id else UNKNOWN
    # Marks first: normalised, `™` is the letters TM.
    text = unicodedata.normalize("NFKC", _MARKS.sub(" ", product[:1000]))
    # The PCI database's form: `Arcturus GL-XL [Instinct MI100]`, chip and product.
    if (named := re.fullmatch(r"[^\[\]]*\[([^\[\]]+)\]\s*", text)) is not None:
        text = named[1]
    text = _LAPTOP.sub(r"\1 laptop", text)
    words = [word for word in _WORDS.findall(text.lower()) if word not in _VENDORS]
    if words[:1] == ["radeon"] and words[1:2] and re.match(r"rx|mi\d", words[1]):
        del words[0]
    found = "-".join(words)
    if found in _NAMELESS:
        found = f"{found or 'device'}-{_joined(pci_id.lower())}" if pci_id else found or UNKNOWN
    if len(found) > LONGEST:
        # Cut, and still nobody else's.
        mark = hashlib.sha256(found.encode("utf-8", "replace")).hexdigest()[:8]
        found = f"{found[: LONGEST - 9]}-{mark}"
    return GpuClass(found)


def mig_class(parent: GpuClass, profile: str | None) -> GpuClass:
    """`h100-80gb-hbm3-mig-1g.10gb`."""
    return GpuClass(f"{parent}-mig-{profile or 'unknown'}")


def mig_profile(
    *,
    multiprocessors: int | None,
    copy_engines: int | None,
    memory: int | None,
    parent_memory: int | None,
) -> str | None:
    """The profile of a MIG instance by what it was given, for sources that don't name it.

    One slice has one copy engine and, by the chip, 12 to 20 multiprocessors (one with doubled
    memory up to 26). The size in the name is NVIDIA's own rounding: eighths of the card's GB.
    """
    if not multiprocessors or not memory or not parent_memory or memory > parent_memory:
        return None
    eighths = -(-memory * 8 // parent_memory)
    gigabytes = (eighths * -(-parent_memory // (1024 * MIB)) * 2 + 8) // 16
    if copy_engines:
        slices = min(copy_engines, 7)
        each = multiprocessors / slices
        if 12 <= each <= 20 or (slices == 1 and each <= 26):
            return f"{slices}g.{gigabytes}gb"
    # Not a chip whose slices are known: named by what it has, never taken for another profile.
    return f"{multiprocessors}sm.{gigabytes}gb"


def _joined(text: str) -> str:
    return re.sub(r"[^0-9a-z]+", "-", text[:40]).strip("-")
