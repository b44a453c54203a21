//! Files and flags into plain data, checked before a port opens.
