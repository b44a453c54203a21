//! Connections and streams, admin requests, activation, drain.
