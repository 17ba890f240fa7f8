"""The gateway's HTTP interface: one model per body and per answer, for its routes, its clients and its description."""
