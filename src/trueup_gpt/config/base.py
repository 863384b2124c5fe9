"""What every section of the configuration file shares."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """One section of the file. Values are fixed once read; a key it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """``num_layers: yes`` is a mistake, and no model of one layer."""
        wanted = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and bool not in (wanted, *get_args(wanted)):
            raise ValueError("expected a number or a name, not a truth value")
        return value
