"""Program -> Program: which chains of ops a runtime runs as one kernel."""

from ..graph.graph import Graph


def fuse(graph: Graph) -> Graph:
    return graph
