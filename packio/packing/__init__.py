"""Packing: `pack`, `append`, `merge` and `convert`."""

from packio.packing.appending import AppendReport as AppendReport
from packio.packing.appending import append as append
from packio.packing.making import convert as convert
from packio.packing.making import dry_run as dry_run
from packio.packing.making import merge as merge
from packio.packing.making import pack as pack
from packio.packing.planning import PackReport as PackReport
