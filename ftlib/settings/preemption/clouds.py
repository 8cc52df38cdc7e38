"""How cloud providers notify a virtual machine that it will be taken away: by its metadata service, over HTTP on the link.

* AWS: spot instance interruption notices, with a session token (IMDSv2):
  https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
* Google Cloud: ``instance/preempted``, with requests that wait for a change:
  https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
* Azure: scheduled events: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import aiohttp

ANSWER = 5.0
"""Seconds that a metadata service gets for an answer; it is on the same host."""


class Cloud:
    """The common part of all providers."""

    service: str
    """The URL of the metadata service, unless another one is given."""
    interval: float
    """Seconds between two looks."""

    def __init__(self, base: str = "") -> None:
        """``base``: the URL of another service with the same protocol, such as a proxy or a test's."""
        self._base = (base or self.service).rstrip("/")

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} ({self._base})"


class Aws(Cloud):
    """``spot/instance-action``: 404 until there is a notice, usually two minutes ahead."""

    service = "http://169.254.169.254"
    interval = 5.0  # as their documentation recommends
    _path = "spot/instance-action"
    _LIFE = 21600
    """Seconds for which a token is valid; the most that may be requested."""

    def __init__(self, base: str = "") -> None:
        super().__init__(base)
        self._token = ""

    async def look(self, http: aiohttp.ClientSession) -> str:
        """See ``Source``."""
        status, told = await self._ask(http)
        if status == HTTPStatus.UNAUTHORIZED:  # the token has expired
            self._token = ""
            status, told = await self._ask(http)
        if status == HTTPStatus.NOT_FOUND:
            return ""
        if status != HTTPStatus.OK:
            raise ValueError(f"HTTP {status}")
        return self._read(told)

    def _read(self, told: Any) -> str:
        return f"{told['action']} at {told['time']}"

    async def _ask(self, http: aiohttp.ClientSession) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(ANSWER)
        if not self._token:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(self._LIFE)}
            async with http.put(f"{self._base}/latest/api/token", headers=life, timeout=timeout) as answer:
                answer.raise_for_status()
                self._token = await answer.text()
        headers, url = {"X-aws-ec2-metadata-token": self._token}, f"{self._base}/latest/meta-data/{self._path}"
        async with http.get(url, headers=headers, timeout=timeout) as answer:
            found = await answer.json(content_type=None) if answer.status == HTTPStatus.OK else None
            return answer.status, found


class AwsRebalance(Aws):
    """``events/recommendations/rebalance``: an interruption has become likely. Earlier than ``Aws``, and no certainty."""

    _path = "events/recommendations/rebalance"

    def __str__(self) -> str:
        return f"aws-rebalance ({self._base})"

    def _read(self, told: Any) -> str:
        return f"rebalance recommended at {told['noticeTime']}"


class Gcp(Cloud):
    """``instance/preempted``: FALSE, then TRUE, half a minute ahead. The first request is answered at once, later ones when the
    value changes.
    """

    service = "http://metadata.google.internal"
    interval = 1.0
    _WAIT = 60
    """Seconds that the service may wait for a change before it answers with the same value again."""
    _HEADERS = {"Metadata-Flavor": "Google"}

    def __init__(self, base: str = "") -> None:
        super().__init__(base)
        self._etag = ""

    async def look(self, http: aiohttp.ClientSession) -> str:
        """See ``Source``."""
        wait = {"wait_for_change": "true", "last_etag": self._etag, "timeout_sec": str(self._WAIT)} if self._etag else {}
        url, timeout = f"{self._base}/computeMetadata/v1/instance/preempted", aiohttp.ClientTimeout(self._WAIT + ANSWER)
        async with http.get(url, params=wait, headers=self._HEADERS, timeout=timeout) as answer:
            answer.raise_for_status()
            if answer.headers.get("Metadata-Flavor") != "Google":
                raise ValueError("that is no metadata service: Metadata-Flavor: Google is missing in its answer")
            self._etag = answer.headers.get("ETag", "")
            told = (await answer.text()).strip().upper()
        if told not in ("TRUE", "FALSE"):
            raise ValueError(f"expected TRUE or FALSE, not {told[:40]!r}")
        return "preempted" if told == "TRUE" else ""


class Azure(Cloud):
    """Scheduled events that end this machine. The service lists those of a whole scale set, so ``look`` requests the name of
    this machine first.
    """

    service = "http://169.254.169.254"
    interval = 1.0  # as their documentation recommends
    _FIRST = 130.0
    """Seconds for an answer: the first request ever enables the service, which takes up to two minutes."""
    _ENDING = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
    _HEADERS = {"Metadata": "true"}

    def __init__(self, base: str = "") -> None:
        super().__init__(base)
        self._name = ""

    async def look(self, http: aiohttp.ClientSession) -> str:
        """See ``Source``."""
        if not self._name:
            url, timeout = f"{self._base}/metadata/instance/compute/name", aiohttp.ClientTimeout(ANSWER)
            asked = {"api-version": "2021-02-01", "format": "text"}
            async with http.get(url, params=asked, headers=self._HEADERS, timeout=timeout) as answer:
                answer.raise_for_status()
                self._name = (await answer.text()).strip()
        url, timeout = f"{self._base}/metadata/scheduledevents", aiohttp.ClientTimeout(self._FIRST)
        async with http.get(url, params={"api-version": "2020-07-01"}, headers=self._HEADERS, timeout=timeout) as answer:
            answer.raise_for_status()
            told = await answer.json(content_type=None)
        for event in told["Events"]:
            if event["EventType"] in self._ENDING and self._name in event["Resources"]:
                return f"{event['EventType']} at {event.get('NotBefore') or 'once'}"
        return ""


CLOUDS: dict[str, type[Aws | Gcp | Azure]] = {"aws": Aws, "aws-rebalance": AwsRebalance, "gcp": Gcp, "azure": Azure}
"""The providers, by the names that the setting ``preemption`` takes."""
