"""What every section of the configuration file shares."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """One section of the file. Values are fixed once read; a key it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
