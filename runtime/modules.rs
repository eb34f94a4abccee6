//! The runtime's own modules of device code.

crate::include_module!(pub(crate) AGGREGATE, "aggregate");
crate::include_module!(pub(crate) HOST_OPS, "host_ops");
crate::include_module!(pub(crate) COLLECTIVES, "collectives");
crate::include_module!(pub(crate) LEVELS, "levels");
