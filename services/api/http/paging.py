"""Parts of long lists: the parameters by which they are asked for."""

from typing import Annotated

from fastapi import Query

After = Annotated[int, Query(ge=0, le=10**9, description="`next` of the part before.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
