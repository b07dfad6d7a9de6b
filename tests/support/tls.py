"""A certificate of our own, for one test run."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

__all__ = ["self_signed"]


def self_signed(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A new certificate for 127.0.0.1, to be trusted by clients, and the context a server shows it with."""
    openssl = shutil.which("openssl")
    if openssl is None:
        assert not os.environ.get("CI"), "no openssl on PATH"
        pytest.skip("no openssl on PATH, which makes the certificate")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [openssl, *options.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
