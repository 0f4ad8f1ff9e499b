"""Public names say what they are, what their parameters mean, and which errors they raise."""

from __future__ import annotations

import pytest

import orchestrion

pytest.importorskip("torch")
pdoc = pytest.importorskip("pdoc.doc")

import orchestrion.torch  # noqa: E402

#: Functions that raise nothing of their own.
NO_ERRORS = {"eager_lines", "get_inputs", "get_outputs", "get_providers", "manifest", "report", "reports"}


def members() -> list[pdoc.Doc]:
    """What the pages of scripts/api-docs.sh show: public names, and the members of public classes."""
    found = []
    for module in [pdoc.Module(orchestrion), pdoc.Module(orchestrion.torch)]:
        public = [member for member in module.own_members if member.name in module.obj.__all__ and member.name != "__version__"]
        classes = [member for member in public if member.kind == "class"]
        found += public + [member for each in classes for member in each.own_members if is_shown(member)]
    return found


def is_shown(member: pdoc.Doc) -> bool:
    # Other classes are made by functions, or have no more parameters than described fields.
    is_constructor = member.fullname == "orchestrion.InferenceSession.__init__"
    return is_constructor or member.name == "__call__" or not member.name.startswith("_")


@pytest.mark.parametrize("member", members(), ids=lambda member: member.fullname)
def test_public_names_are_described(member: pdoc.Doc) -> None:
    assert member.docstring
    if member.kind != "function":
        return
    names = member.signature_without_self.parameters
    missing = [name for name in names if f"`{name}`" not in member.docstring and f":param {name}:" not in member.docstring]
    assert missing == []
    assert member.name in NO_ERRORS or ":raises " in member.docstring or "errors" in member.docstring
