"""Certificates for localhost, with their keys."""

import shutil
from pathlib import Path

from roost.gateway.certificate import Certificate

TLS = Path(__file__).parents[1] / "data" / "gateway" / "tls"


def certificate(directory: Path, name: str = "one") -> Certificate:
    put(directory, name)
    return Certificate(directory / "cert.pem", directory / "key.pem")


def put(directory: Path, name: str) -> None:
    shutil.copy(TLS / f"{name}.pem", directory / "cert.pem")
    shutil.copy(TLS / f"{name}.key", directory / "key.pem")
