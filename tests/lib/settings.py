# SPDX-License-Identifier: Apache-2.0
"""The table of settings: protocols by what they do when something is lost, and options that many tests give.

A test takes a row as it is, and its mark `gate` names what short runs keep of it."""

# Protocols under which ranks have waves and return to one together: all of them, or those of a group.
TOGETHER = ["blocking", "chandy-lamport", "group"]
# Protocols whose jobs go on from waves: images of several nodes, of files and of places.
WAVES = ["auto", *TOGETHER]
# Protocols that can have --tolerate node: their logs outlive a node.
TOLERANT = ["pessimistic", "causal", "hierarchical"]
# Protocols with logs and without waves of all ranks: a rank that has failed, or its group, repeats alone what it did.
LOGGING = [*TOLERANT, "channel-memory"]
PROTOCOLS = [*WAVES, *LOGGING]
# Of the protocol causal: how little messages carry.
REDUCTIONS = ["vcausal", "manetho", "logon"]

TOLERATE_NODE = ["--tolerate", "node"]
MANY = ["--max-restarts", "10000", "--max-restarts-per-rank", "10000"]
# What a small program fills.
SMALL_LOG = ["--log-memory", "4M"]


def every(period):
    return ["--checkpoint-every", period]


EVERY = every("100ms")
