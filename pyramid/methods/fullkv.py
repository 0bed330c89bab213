"""FullKV: nothing is compressed. The baseline of every table, through the same engine and loop as the others."""

from __future__ import annotations

from dataclasses import dataclass

from pyramid.method import Decision, Keep, Method, Observation, Phase


@dataclass(frozen=True, kw_only=True)
class FullKV(Method):
    @property
    def phases(self) -> Phase:
        return Phase(0)

    def observe(self, seen: Observation) -> Decision:
        return Keep()


METHOD = FullKV
