"""Real Redis and etcd servers for a test: on a free port, in a directory of their own, gone when the test process is.

Everything is synchronous. A server knows how to be killed, stopped (SIGSTOP) and started again at the same place.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import ipaddress
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftlib.common.processes import die_with_parent
from tests.harness.basics import TIMEOUT, free_ports, stop_child

_READY = 60.0
"""Seconds; both need a tenth of one where nothing else runs."""
_TRIES = 5
"""Ports tried: between its being found free and its being bound somebody else may take it."""


class Server(ABC):
    """One server process. ``start`` it first."""

    program: str
    package: str
    ready: str
    """What its log says then."""
    taken: tuple[str, ...] = ("address already in use",)
    """What it says, in small letters, of a port that it cannot have."""

    def __init__(self, directory: Path, *, tls: Certificates | None = None) -> None:
        """Skips the test where the program is not installed (see ``tests.__main__`` for where it has to be)."""
        if shutil.which(self.program) is None:
            pytest.skip(f"{self.program} is not installed: apt-get install {self.package}")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.tls = tls
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it wrote since it was last started."""
        return (self.directory / "log").read_text(errors="replace")

    @abstractmethod
    def command(self) -> list[str]:
        """What is run, for ``port``."""

    def start(self) -> None:
        """Start it and wait until it serves; on the same port as before, if it had one."""
        ports = [self.port] if self.port else free_ports(_TRIES)
        for self.port in ports:
            self.launch()
            if self.serves():
                return
        raise RuntimeError(f"{self.program} does not start: {self.log[-2000:]}")

    def launch(self) -> None:
        """Start it and do not wait."""
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt from the keyboard is pytest's
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
            )

    def serves(self) -> bool:
        """Wait until it does; False where its port was taken."""
        deadline = time.monotonic() + _READY
        assert self._process is not None
        while self.ready not in self.log:
            if self._process.poll() is not None and any(text in self.log.lower() for text in self.taken):
                return False
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.program} does not serve: {self.log[-2000:]}")
            time.sleep(0.005)
        return True

    def stop(self) -> None:
        """SIGSTOP: connections stay, nothing is answered once this has returned."""
        assert self._process is not None
        stop_child(self._process.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for its end. Idempotent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it on the same port and data."""
        self.kill()
        self.start()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class RedisServer(Server):
    """``redis-server``, with an append-only file that is synced at every write (so a kill loses nothing)."""

    program = "redis-server"
    package = "redis-server"
    ready = "Ready to accept connections"
    taken = (*Server.taken, "port number too high")  # of a cluster, which takes a second port 10000 above it

    def __init__(self, directory: Path, *, tls: Certificates | None = None, password: str = "", **settings: str) -> None:
        """``settings``: as in redis.conf, with _ for -."""
        super().__init__(directory, tls=tls)
        self.password = password
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **settings}

    @property
    def url(self) -> str:
        """Without the password."""
        return f"{'rediss' if self.tls else 'redis'}://localhost:{self.port}"

    def command(self) -> list[str]:
        settings = {"bind": "127.0.0.1", "dir": str(self.directory), "daemonize": "no", **self.settings}
        settings |= {"requirepass": self.password} if self.password else {}
        settings |= {"port": "0" if self.tls else str(self.port)}
        if self.tls:
            settings |= {"tls-port": str(self.port), "tls-auth-clients": "optional"}
            settings |= {
                "tls-cert-file": str(self.tls.cert),
                "tls-key-file": str(self.tls.key),
                "tls-ca-cert-file": str(self.tls.ca),
            }
        lines = [f'{name.replace("_", "-")} "{value}"' for name, value in settings.items()]
        configuration = self.directory / "redis.conf"
        configuration.write_text("\n".join(lines) + "\n")
        return ["redis-server", str(configuration)]

    def ask(self, *words: str) -> str:
        """What redis-cli gets."""
        command = ["redis-cli", "-h", "localhost", "-p", str(self.port), "--no-auth-warning"]
        command += ["--tls", "--cacert", str(self.tls.ca)] if self.tls else []
        environment = {**os.environ, **({"REDISCLI_AUTH": self.password} if self.password else {})}
        return subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True
        ).stdout


class EtcdServer(Server):
    """``etcd``, alone in its cluster unless it has peers."""

    program = "etcd"
    package = "etcd-server"
    ready = "ready to serve client requests"

    def __init__(
        self,
        directory: Path,
        *,
        tls: Certificates | None = None,
        quota: int = 0,
        name: str = "alone",
        peers: dict[str, int] | None = None,
    ) -> None:
        """``quota``: bytes it may keep. ``peers``: ports of all members by name. With ``tls`` clients need certificates."""
        super().__init__(directory, tls=tls)
        self.quota = quota
        self.name = name
        self.peers = peers or {}

    @property
    def url(self) -> str:
        """Its store's."""
        return f"{'etcds' if self.tls else 'etcd'}://localhost:{self.port}"

    def command(self) -> list[str]:
        client = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        nobody = "http://127.0.0.1:1"  # alone: nobody needs to know where it listens for its peers
        peers = {name: f"http://127.0.0.1:{port}" for name, port in self.peers.items()} or {self.name: nobody}
        options = {
            "name": self.name,
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers[self.name] if self.peers else "http://127.0.0.1:0",
            "initial-advertise-peer-urls": peers[self.name],
            "initial-cluster": ",".join(f"{name}={url}" for name, url in peers.items()),
            "heartbeat-interval": "10",
            "election-timeout": "100",
        }
        if self.quota:
            options["quota-backend-bytes"] = str(self.quota)
        if self.tls:
            options["client-cert-auth"] = "true"
            options |= {"cert-file": str(self.tls.cert), "key-file": str(self.tls.key), "trusted-ca-file": str(self.tls.ca)}
        return ["etcd", *(f"--{name}={value}" for name, value in options.items())]


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Started, and killed in the end."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def etcd_cluster(directory: Path, size: int) -> Iterator[list[EtcdServer]]:
    """So many, of one cluster; killed in the end."""
    for attempt in range(_TRIES):
        ports = free_ports(2 * size)
        peers = {f"member{number}": port for number, port in enumerate(ports[:size])}
        servers = [EtcdServer(directory / f"{attempt}-{name}", name=name, peers=peers) for name in peers]
        try:
            for server, server.port in zip(servers, ports[size:], strict=True):
                server.launch()
            served = [server.serves() for server in servers]
            if all(served):
                yield servers
                return
        finally:
            for server in servers:
                server.kill()
    raise RuntimeError("etcd found its ports taken again and again")


class Certificates:
    """An authority, and a certificate of it for this machine (``localhost``), as files."""

    def __init__(self, directory: Path, names: tuple[str, ...] = ("localhost",)) -> None:
        """``names``: of the server."""
        directory.mkdir(parents=True, exist_ok=True)
        self.ca, self.cert, self.key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
        authority = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server of a test")])
        own = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if "localhost" in names else []
        alternatives = x509.SubjectAlternativeName([*map(x509.DNSName, names), *addresses])
        self.ca.write_bytes(
            _pem(_certificate(issuer, authority.public_key(), issuer, authority, x509.BasicConstraints(True, 0)))
        )
        self.cert.write_bytes(_pem(_certificate(subject, own.public_key(), issuer, authority, alternatives)))
        private = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.key.write_bytes(private)


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    authority = isinstance(extension, x509.BasicConstraints)
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(extension, critical=authority)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
