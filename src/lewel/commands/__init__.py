"""What the user types: one function a command, which imports what it needs when it is called."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Whole = Annotated[int, Parameter(validator=Number(gte=0))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
