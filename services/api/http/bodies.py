"""Bodies of requests, written to files as they come."""

from pathlib import Path

from fastapi import Request
from starlette.requests import ClientDisconnect

from services.kit.problems import RefusedError


async def receive(request: Request, target: Path, most: int) -> None:
    """Write a request's body to a file; RefusedError (413) beyond `most` bytes, whatever its length claims to be."""
    too_much = RefusedError(413, f"the upload is more than {most:,} bytes", remedy="raise HINDCAST_API_UPLOAD_BYTES")
    claimed = request.headers.get("content-length", "0")
    if claimed.isdecimal() and len(claimed) < 20 and int(claimed) > most:
        raise too_much
    written = 0
    try:
        with target.open("wb") as file:
            async for chunk in request.stream():
                written += len(chunk)
                if written > most:
                    raise too_much
                file.write(chunk)
    except ClientDisconnect:
        raise RefusedError(400, "the upload ends early", remedy="send it again") from None
