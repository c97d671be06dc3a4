# SPDX-License-Identifier: Apache-2.0
"""Resurgo, for programs that it runs. `resurgo run --ft` puts this package into the path of Python."""
