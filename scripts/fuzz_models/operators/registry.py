"""The list of recipes: which operator, from which operator set on, how often."""

from dataclasses import dataclass
from typing import Callable

RECIPES = []


@dataclass(frozen=True)
class Recipe:
    """Adds one node of `operator` (and what it needs) to a `graph.Builder`, or raises `graph.Reject`."""

    operator: str
    add: Callable
    since: int
    until: int
    weight: float


def operator(*names, since=13, until=99, weight=1.0):
    """Registers a function of a builder and the operator's name as the recipe of all `names`."""

    def register(function):
        for name in names:
            RECIPES.append(Recipe(name, function, since, until, weight))
        return function

    return register
