"""A tree's content as plain Python, and keys as engines make them."""

from dynamo_router.indexer._inspect import read_aliases, read_edges

TOP = 2**64 - 1


def honest_keys(path, salt):
    """Keys as engines make them: a chained hash, the same for all who share the salt."""
    keys, key = [], salt
    for local in path:
        key = hash((key, local)) & TOP
        keys.append(key)
    return keys


def holdings(tree):
    """Each worker's truth, read off the structure."""
    paths, aliases, found = {0: ()}, read_aliases(tree), {w: {} for w in tree.workers()}
    for edge, parent, start, locals_, exts, coverage in read_edges(tree):
        paths[edge] = paths[parent] + tuple(locals_)
        depth = len(paths[parent])
        for worker, blocks in coverage:
            for i in range(blocks):
                key = aliases.get((worker, start + i), exts[i])
                found[worker][key] = paths[edge][: depth + i + 1]
    return found
