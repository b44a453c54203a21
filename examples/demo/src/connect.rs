//! Connections to the broker under test, as any program on this machine would make them.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tidegate_client::{ConnectOptions, Connection, Trust};

/// Connects with the certificate pinned that the broker made in its data directory.
pub(crate) async fn connect(addr: &str, data_dir: &Path, name: &str) -> Result<Connection> {
    Connection::connect(options(addr, data_dir, name)?).await.with_context(|| format!("cannot connect to {addr}"))
}

/// The same, for a client whose broker will be killed and says no goodbye: silence is noticed within seconds.
pub(crate) async fn connect_watchful(addr: &str, data_dir: &Path, name: &str) -> Result<Connection> {
    let mut options = options(addr, data_dir, name)?;
    options.timeouts.keep_alive = Duration::from_millis(500);
    options.timeouts.idle = Duration::from_secs(3);
    Connection::connect(options).await.with_context(|| format!("cannot connect to {addr}"))
}

/// The same with the admin token from there.
pub(crate) async fn connect_as_admin(addr: &str, data_dir: &Path) -> Result<Connection> {
    let path = data_dir.join("dev/admin-token");
    let token = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let options = options(addr, data_dir, "demo-admin")?.admin_token(token.trim());
    Connection::connect(options).await.with_context(|| format!("cannot connect to {addr}"))
}

fn options(addr: &str, data_dir: &Path, name: &str) -> Result<ConnectOptions> {
    let path = data_dir.join("dev/cert.pem");
    let certificate =
        CertificateDer::from_pem_file(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut options = ConnectOptions::new(addr, Trust::Pinned(certificate));
    options.client_name = name.to_owned();
    Ok(options)
}
