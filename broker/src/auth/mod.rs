//! Identity: who a connection is, and what it may do (DESIGN section 8).
