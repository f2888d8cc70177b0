"""Vectors of whole sets, written by any number of processes into a folder of `data.vector_parts`.

ray_engine    The work by Ray Data, over the nodes of a cluster.
work          The work of one process: units that it claims and encodes.
write         `grainline encode`: one or the other.
"""
