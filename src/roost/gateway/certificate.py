"""The certificate that the gateway shows its clients."""

import ssl
from pathlib import Path

from roost.errors import Unusable


class Certificate:
    """A certificate with its key, in PEM; read again, it counts for new connections."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises `Unusable`: they can't be read or don't belong together."""
        self._certificate, self._key = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.read()

    @property
    def files(self) -> tuple[str, str]:
        """Of the certificate, and of its key."""
        return str(self._certificate), str(self._key)

    def read(self) -> None:
        """Read both files; raises `Unusable`, and what was read before still counts."""
        for option, file in (("--tls-cert", self._certificate), ("--tls-key", self._key)):
            try:
                file.read_bytes()
            except OSError as error:
                raise Unusable(f"{option} {file}: {error.strerror}") from error
        # Tried on a context of its own: half a change must not be left in the one in use.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                # A key that wants a passphrase is refused: nobody is there to type it.
                context.load_cert_chain(self._certificate, self._key, password=lambda: "")
            except (ssl.SSLError, OSError) as error:
                raise Unusable(
                    f"--tls-cert {self._certificate} and --tls-key {self._key} "
                    f"are no certificate and its key: {error}",
                    hint="both in PEM, the certificate's chain in one file, the key unencrypted",
                ) from error
