//! Who exists: tenants and topics. Pure data; `shard` owns it.
