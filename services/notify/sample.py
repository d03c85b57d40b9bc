"""A notification as Alertmanager sends it to a webhook, marked as a test."""

from datetime import UTC, datetime

import httpx

from services.kit.errors import ServerError, UsageError, UserError

_TIMEOUT_S = 10.0


def sample(now: datetime) -> dict[str, object]:
    """Return the body of a version 4 webhook: a power brake on one node, and words that say it is a test."""
    labels = {
        "alertname": "PowerThrottle",
        "cluster": "test",
        "detector": "power_throttle",
        "fault": "power_throttle",
        "node": "test-node",
        "replay": "webhook-test",
        "severity": "info",
        "source": "detector",
        "test": "true",
    }
    annotations = {
        "summary": "TEST of a webhook by hindcast: nothing is wrong with any node",
        "description": "This is what an alert on a power brake looks like; it was sent by `hindcast webhook test`.",
        "recommended_action": "none: this is a test",
    }
    return {
        "version": "4",
        "groupKey": '{}:{alertname="PowerThrottle"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "webhook-test",
        "groupLabels": {"alertname": "PowerThrottle"},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "http://127.0.0.1:9093",
        "alerts": [
            {
                "status": "firing",
                "labels": labels,
                "annotations": annotations,
                "startsAt": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": "0000000000000000",
            }
        ],
    }


def post_sample(url: str) -> str:
    """Post a sample to `url` and return what was answered.

    Raises UserError: exit code 2 for what is no URL, 3 where nothing answers, 1 where the answer is not a success.
    """
    try:
        response = httpx.post(
            url,
            json=sample(datetime.now(UTC)),
            headers={"User-Agent": "hindcast-webhook-test"},
            timeout=_TIMEOUT_S,
        )
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(f"{url} is not a URL to post to: {error}", remedy="write http://HOST:PORT/PATH") from None
    except httpx.TransportError as error:
        raise ServerError(
            f"no answer from {url}: {str(error) or type(error).__name__}",
            remedy="is the receiver running, and is host and port right?",
        ) from None
    answer = f"{response.status_code} {response.reason_phrase}"
    body = response.text.strip()[:500]
    if not response.is_success:
        later = response.status_code >= 500 or response.status_code == 429
        raise UserError(
            f"{url} answered {answer}" + (f": {body}" if body else ""),
            remedy="Alertmanager would try again"
            if later
            else "Alertmanager would ask again only when the group's next turn comes: mend the receiver",
        )
    return f"delivered: {url} answered {answer}" + (f"\n{body}" if body else "")
