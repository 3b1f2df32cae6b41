"""The reference's page of errors has every message as the code has it."""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location

from tests.documents.pages import ROOT

_spec = spec_from_file_location("errors_page", ROOT / ".ci/errors_page.py")
assert _spec is not None
assert _spec.loader is not None
errors_page = module_from_spec(_spec)
sys.modules["errors_page"] = errors_page  # dataclasses look there for the types of their fields
_spec.loader.exec_module(errors_page)
MODULE = """
class KineticError(Exception): pass
class Refused(KineticError): pass

def ask(job, known):
    text = f"no job {job.job_id} in {', '.join(known)}"
    if not known:
        raise Refused("not now" + (f" of {known[0]}" if job else ""))
    raise Refused(text) from None
"""


def test_the_page_is_current() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert page == errors_page.page(), "run: .ci/errors_page.py > docs/reference/errors.md"
    assert page.count("\n- ") > 250


def test_messages_are_found_with_their_placeholders() -> None:
    tree = ast.parse(MODULE)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(errors_page.messages(tree, classes)) == {
        ("Refused", "no job {job_id} in {known}"),
        ("Refused", "not now of {…}"),
        ("Refused", "not now"),
    }
