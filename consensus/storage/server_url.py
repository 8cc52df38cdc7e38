"""The address of a store that is a server: ``scheme://[user:password@]host[:port][,host:port...][/path][?ca=...]``.

Parsed here and not by the client libraries: nothing unknown or misspelt may be ignored silently, and no error may quote a
password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from ..errors import ConfigError
from ..member import Address, format_address, parse_address

_TLS = ("rediss", "etcds")

_HOPELESS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS there, leave out the s of the URL's scheme or use its TLS port",
    "RECORD_LAYER_FAILURE": "it does not speak TLS there, leave out the s of the URL's scheme or use its TLS port",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate, give ?cert=FILE&key=FILE",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it asks for a certificate, give ?cert=FILE&key=FILE",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust our certificate, give another one as ?cert=FILE&key=FILE",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not trust our certificate, give another one as ?cert=FILE&key=FILE",
}
"""What went wrong and the remedy, by OpenSSL's name of the error."""


@dataclass(frozen=True)
class ServerUrl:
    """A store's address and this member's credentials. ``str`` and ``repr`` are without the password."""

    scheme: str
    servers: tuple[Address, ...] = ()
    path: str = ""
    database: str = ""
    """The path of redis://, or ``?db=`` of unix://."""
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    """File of the authorities that may have signed the server's certificate; empty: the system's."""
    cert: str = ""
    key: str = ""
    """Files of the certificate that the server asks of its clients."""

    def __str__(self) -> str:
        """For logs and errors."""
        user = f"{quote(self.username, safe='')}@" if self.username else ""
        place = ",".join(map(format_address, self.servers)) or self.path
        return f"{self.scheme}://{user}{place}{f'/{self.database}' if self.database else ''}"

    def hide(self, text: str) -> str:
        """``text`` with every occurrence of the password replaced."""
        if not self.password:
            return text
        for form in sorted({self.password, quote(self.password), quote(self.password, safe="")}, key=len, reverse=True):
            text = text.replace(form, "***")
        return text

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted, and the server's name proven."""
        return self.scheme in _TLS

    def context(self) -> ssl.SSLContext:
        """A TLS context that always checks the server's certificate and name. Raises ConfigError if a file is bad."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None, password="")  # an encrypted key is an error, no prompt
        except (OSError, ValueError) as error:
            raise ConfigError(f"the store {self}: its TLS files cannot be used (ca, cert, key): {error}") from None
        return context


def escape_job(job: str) -> str:
    """A job's name as part of a key: unique, and never the beginning of another job's keys."""
    return quote(job, safe="").replace("~", "%7E")


def tls_trouble(error: BaseException) -> str | None:
    """Why TLS will not work with this server, with the remedy; None if ``error`` is not about TLS, or may pass."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not trusted, name its authority by ?ca=FILE, and the server as the certificate names it"
        if isinstance(cause, ssl.SSLError) and cause.reason in _HOPELESS:
            return _HOPELESS[cause.reason]
        cause = cause.__cause__ or cause.__context__
    return None


def parse_server_url(
    url: str,
    schemes: tuple[str, ...],
    default_port: int,
    *,
    username: str = "",
    password: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
) -> ServerUrl:
    """Parse ``url``; the other arguments, if given, replace its parts. Raises ConfigError.

    Username and password are percent-decoded. ``unix://`` has a path instead of servers, and its database as ``?db=``.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in schemes:
        raise ConfigError(f"the store's URL begins with {' or '.join(f'{name}://' for name in schemes)}")
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    user, _, place = place.rpartition("@")
    if "@" in path or "@" in query or "#" in url:
        raise ConfigError(f"the store's URL {scheme}://...: in a user name or password write @ / ? # : as %40 %2F %3F %23 %3A")
    name, _, word = user.partition(":")
    settings = _settings(scheme, query)
    files = {
        "ca": ca or settings.get("ca", ""),
        "cert": cert or settings.get("cert", ""),
        "key": key or settings.get("key", ""),
    }
    _check_files(scheme, files)
    if scheme == "unix":
        if place or not path:
            raise ConfigError("the store's URL unix://...: expected unix:///path/of/the/socket")
        where = ServerUrl(scheme, path=f"/{unquote(path)}", database=settings.get("db", ""))
    else:
        where = ServerUrl(scheme, _servers(scheme, place, default_port), database=path.rstrip("/"))
    return replace(
        where,
        username=username or unquote(name),
        password=password or unquote(word),
        ca=files["ca"],
        cert=files["cert"],
        key=files["key"],
    )


def _servers(scheme: str, place: str, default_port: int) -> tuple[Address, ...]:
    try:
        return tuple(parse_address(part, default_port=default_port) for part in place.split(","))
    except ValueError:  # its text may quote a password whose "@" was forgotten
        raise ConfigError(f"the store's URL {scheme}://...: expected host:port after it, or user:password@host:port") from None


def _settings(scheme: str, query: str) -> dict[str, str]:
    known = ("db",) if scheme == "unix" else ("ca", "cert", "key")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for name in settings:
        if name not in known:
            raise ConfigError(f"the store's URL {scheme}://...: unknown setting {name!r:.40}; known are {', '.join(known)}")
    return settings


def _check_files(scheme: str, files: dict[str, str]) -> None:
    for setting, file in files.items():
        if file and scheme not in _TLS:
            raise ConfigError(f"the store's setting {setting} is for TLS, and {scheme}:// does without")
        if file and not Path(file).is_file():
            raise ConfigError(f"the store's setting {setting}={file}: there is no such file")
    if files["key"] and not files["cert"]:
        raise ConfigError("the store's setting key needs cert, too: the certificate that belongs to it")
