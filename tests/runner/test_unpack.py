"""Trees as an enemy with access to the store would write them, and what the runner makes of them."""

import pytest

from kinetic_core._runner.trees import DEFLATED, PIECE, canonical
from kinetic_core._runner.unpack import BadTree, IncompleteTree
from tests.runner.forge import BODY, Forge, digest, file


@pytest.fixture
def forge(tmp_path):
    return Forge(tmp_path)


def test_an_honest_tree(forge):
    forge.content(BODY, deflate=True)
    entries = [["d", "a/empty", 0o700], file("a/x.py", mode=0o4755), ["l", "a/y.py", "x.py"], file("b.py")]
    out = forge.unpack(forge.tree(entries))
    assert (out / "a/y.py").read_bytes() == (out / "b.py").read_bytes() == BODY
    assert (out / "a/x.py").stat().st_mode & 0o7777 == 0o755
    assert (out / "a/empty").stat().st_mode & 0o7777 == 0o700


def test_what_a_killed_attempt_left_is_replaced(forge):
    forge.content(BODY)
    tree = forge.tree([file("a.py")])
    (forge.target / "old").mkdir(parents=True)
    assert [path.name for path in forge.unpack(tree).iterdir()] == ["a.py"]


@pytest.mark.parametrize(
    "path", ["/etc/evil", "../evil", "a/../../evil", "a//b", "", ".", "./a", "a/", "a\0b", "\ud800"]
)
@pytest.mark.parametrize("kind", ["f", "d", "l"])
def test_paths_that_lead_elsewhere(forge, path, kind):
    forge.content(BODY)
    entry = {"f": file(path), "d": ["d", path, 0o755], "l": ["l", path, "x"]}[kind]
    forge.refused(forge.tree([entry]), "not a path inside")


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "../x", "b/../../../x", "", "a\0"])
def test_links_that_lead_elsewhere(forge, target):
    forge.refused(forge.tree([["l", "link", target]]), "leads outside")


def test_links_that_lead_elsewhere_through_another_link(forge):
    forge.content(BODY)
    entries = [["l", "a/b/root", "../.."], ["l", "a/b/up", "root/../secret"], file("x")]
    forge.refused(forge.tree(entries), "leads outside")


def test_links_that_go_round_are_harmless(forge):
    out = forge.unpack(forge.tree([["l", "a", "b"], ["l", "b", "a"], ["l", "c", "nowhere"], ["l", "d", "."]]))
    assert sorted(path.name for path in out.iterdir()) == ["a", "b", "c", "d"]


def test_entries_below_a_link_or_a_file(forge):
    forge.content(BODY)
    forge.refused(forge.tree([["l", "a", "b"], file("a/x")]), "lies below 'a'")
    forge.refused(forge.tree([file("a"), file("a/b/x")]), "lies below 'a'")


@pytest.mark.parametrize("other", [file("a"), ["l", "a", "b"], ["d", "a", 0o755]])
def test_an_entry_that_is_there_twice(forge, other):
    forge.content(BODY)
    forge.refused(forge.tree([file("a"), other]), "there twice")


@pytest.mark.parametrize(
    "entry",
    [["c", "null", 1, 3], ["b", "disk"], ["p", "pipe"], ["f", "a"], ["f", "a", "b", "c", 1],
     ["f", 1, "b", 2, 3], ["f", "a", "b", 0o644, -1], ["d", "a"], ["l", "a", 1], [], "f", None, {"f": 1}],
)  # fmt: skip
def test_entries_of_other_kinds(forge, entry):
    forge.refused(forge.tree([entry]), "an entry that is not one")


@pytest.mark.parametrize("deflate", [True, False])
def test_a_content_larger_than_declared(forge, deflate):
    bomb = bytes(20 << 20) if deflate else BODY
    forge.content(bomb, size=10, deflate=deflate)
    forge.refused(forge.tree([["f", "bomb", digest(bomb), 0o644, 10]]), "larger than the 10 bytes declared")


@pytest.mark.promise("data: Free-space check first")
@pytest.mark.promise("data: Disk too small on the pod")
def test_a_tree_larger_than_the_disk_is_refused_first(forge):
    tree = forge.document([], ["f" * 64], size=1 << 60)
    with pytest.raises(OSError, match=r"bytes to unpack.*more disk"):
        forge.unpack(tree)
    assert not forge.target.exists()


def test_files_of_several_pieces_and_holes(forge):
    zeros, rest = bytes(PIECE), BODY * 100
    forge.content(zeros, deflate=True)
    forge.content(rest)
    digests = digest(zeros) * 3 + digest(rest)
    size = 3 * PIECE + len(rest)
    out = forge.unpack(forge.tree([["f", "big", digests, 0o600, size], ["f", "too", digests, 0o400, size]]))
    assert (out / "big").read_bytes() == zeros * 3 + rest
    facts = (out / "too").stat()
    assert (facts.st_mode & 0o777, facts.st_size) == (0o400, size)
    assert facts.st_blocks * 512 < PIECE


def test_a_shard_is_every_nth_file(forge):
    forge.content(BODY)
    tree = forge.tree([file(f"{number}") for number in range(5)])
    seen = []
    for index in range(2):
        forge.materialise(tree, shard=(index, 2))
        seen.append(sorted(path.name for path in forge.target.iterdir()))
    assert seen == [["0", "2", "4"], ["1", "3"]]


def test_packs_are_given_back_as_soon_as_they_are_written(forge):
    forge.content(BODY)
    segment = forge.content(canonical([file("a")]))
    pack = forge.pack()
    given: list[str] = []
    forge.materialise(forge.document([segment], [pack]), discard=given.append)
    assert given == [str(forge.folder / pack)]


def test_segments_and_contents_in_many_packs(forge):
    bodies = [b"%d" % number for number in range(40)]
    packs = []
    for body in bodies:
        forge.members.clear()
        forge.content(body)
        packs.append(forge.pack())
    forge.members.clear()
    segment = forge.content(canonical([file(body.decode(), body) for body in bodies]))
    packs.insert(20, forge.pack())
    out = forge.unpack(forge.document([segment], packs))
    assert sorted(path.read_bytes() for path in out.iterdir()) == sorted(bodies)


def test_a_size_that_is_not_that_of_the_content(forge):
    forge.content(BODY)
    forge.refused(forge.tree([["f", "a", digest(BODY), 0o644, 3]]), "another size")


def test_a_content_shorter_than_declared(forge):
    forge.content(BODY, size=100)
    forge.refused(forge.tree([["f", "a", digest(BODY), 0o644, 100]]), "another content")


@pytest.mark.attack
def test_a_content_that_is_not_what_its_name_says(forge):
    forge.content(b"evil('hello')!\n", name=digest(BODY))
    forge.refused(forge.tree([file("a")]), "another content than its name")


def test_a_content_that_cannot_be_inflated(forge):
    forge.content(BODY)
    member, raw = forge.members[0]
    forge.members[0] = (member._replace(method=DEFLATED), raw)
    forge.refused(forge.tree([file("a")]), "cannot be inflated")


def test_a_segment_that_is_not_what_its_name_says(forge):
    segment = forge.content(canonical([["l", "a", "b"]]), name=digest(b"[]"))
    forge.refused(forge.document([segment], [forge.pack()]), "another content")


@pytest.mark.parametrize("raw", [b"", b"{", b"[[" * 100_000, b"\xff", b"3"])
def test_a_segment_that_is_no_list(forge, raw):
    forge.refused(forge.document([forge.content(raw)], [forge.pack()]), "segment")


def test_a_document_under_another_name(forge):
    tree = forge.tree([["l", "a", "b"]])
    forge.small[f"trees/{'0' * 64}.json"] = forge.small[f"trees/{tree}.json"]
    forge.refused("0" * 64, "another tree than its name")


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"[" * 100_000, b'{"version":1,"segments":[3],"packs":[]}']
)
def test_a_document_that_is_none(forge, raw):
    forge.small[f"trees/{'0' * 64}.json"] = raw
    forge.refused("0" * 64, "not a tree document")


def test_a_document_of_another_version(forge):
    forge.refused(forge.document([], [], version=2), "version 1")


@pytest.mark.parametrize("pack", ["../../../../etc/passwd", "a/" * 32])
def test_a_pack_whose_name_is_a_path(forge, pack):
    forge.refused(forge.document([], [pack]), "tree document")


def test_a_pack_that_is_no_pack(forge):
    good = (forge.folder / forge.pack()).read_bytes()
    for raw in (b"", b"x" * 500, good[:-1], good + b"x", b"x" + good):
        forge.refused(forge.document([], [forge.add_pack(raw)]), "is not a pack")


@pytest.mark.attack
def test_a_pack_that_is_not_what_its_name_says(forge):
    """Not even a pack of the same contents: nothing of it is parsed before its digest is compared."""
    forge.content(BODY)
    tree = forge.tree([file("a")])
    pack = forge.folder / forge.pack()
    forge.members.reverse()
    pack.write_bytes((forge.folder / forge.pack()).read_bytes())
    discarded = []
    with pytest.raises(BadTree, match=rf"packs/{pack.name}\.zip has another content than its name says"):
        forge.materialise(tree, discard=discarded.append)
    assert discarded == [str(pack)]


def test_a_pack_whose_members_lie_outside_it(forge):
    forge.content(BODY)
    member, raw = forge.members[0]
    forge.members[0] = (member._replace(stored=1 << 40), raw)
    forge.refused(forge.tree([file("a")]), "is not a pack")


def test_a_pack_with_a_member_twice(forge):
    forge.content(BODY)
    forge.content(BODY)
    forge.refused(forge.tree([file("a")]), "a member twice")


def test_parts_that_are_gone_say_what_to_do(forge):
    forge.content(BODY)
    tree = forge.tree([file("a")])
    lost = forge.tree([file("a", b"never stored")])
    document = dict(forge.small)
    for missing in (lost, "1" * 64):
        with pytest.raises(IncompleteTree, match="Submit again"):
            forge.unpack(missing)
    for pack in forge.folder.glob("?" * 64):
        pack.unlink()
    with pytest.raises(IncompleteTree, match=r"packs/[0-9a-f]{64}\.zip.*Submit again"):
        forge.unpack(tree)
    assert forge.small == document
    assert not forge.target.exists()
