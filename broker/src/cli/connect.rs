//! Flags that say which broker a command speaks to, and as whom.

use std::path::{Path, PathBuf};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_client::{ClientCert, ConnectOptions, Connection, Trust};

use super::Error;
use crate::config::DevFiles;

/// Which broker, and as whom. Every command takes these.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ConnectArgs {
    /// Address of the broker: HOST:PORT, UDP. `serve` listens there, every other command connects to it.
    #[arg(long, global = true, value_name = "HOST:PORT", default_value = "127.0.0.1:4433", env = "TIDEGATE_ADDR")]
    pub(super) addr: String,

    /// Data directory of the broker. Client commands read its certificate (to pin it) and its admin token from there,
    /// if it is there.
    #[arg(long, global = true, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    pub(super) data_dir: PathBuf,

    /// Tenant to speak for.
    #[arg(long, global = true, value_name = "NAME", default_value = "default", env = "TIDEGATE_TENANT")]
    pub(super) tenant: String,

    /// Token from the broker's auth file.
    #[arg(long, global = true, value_name = "TOKEN", env = "TIDEGATE_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,

    /// Admin token, when the broker's data directory is not at hand.
    #[arg(long, global = true, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    pub(super) admin_token: Option<String>,

    /// Client certificate (PEM), in place of a token.
    #[arg(long, global = true, value_name = "FILE", requires = "cert_key")]
    pub(super) cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM).
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(super) cert_key: Option<PathBuf>,

    /// Certificate of the broker to pin (PEM), when its data directory is not at hand.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) server_cert: Option<PathBuf>,
}

impl ConnectArgs {
    /// A connection without admin rights.
    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        self.dial(String::new()).await
    }

    /// A connection that shows the admin token, if one is given or at hand.
    pub(super) async fn connect_as_admin(&self) -> Result<Connection, Error> {
        let token = match &self.admin_token {
            Some(token) => token.clone(),
            // Without one the broker answers what it lets anybody see, and names what is missing for the rest.
            None => DevFiles::below(&self.data_dir).read_admin_token().unwrap_or_default(),
        };
        self.dial(token).await
    }

    /// What the client library could not do with this broker.
    pub(super) fn failed(&self, error: &tidegate_client::Error) -> Error {
        Error::client(&self.addr, error)
    }

    async fn dial(&self, admin_token: String) -> Result<Connection, Error> {
        let mut options = ConnectOptions::new(self.addr.as_str(), self.trust()?)
            .tenant(self.tenant.as_str())
            .token(self.token.clone().unwrap_or_default())
            .admin_token(admin_token);
        options.client_name = concat!("tidegate/", env!("CARGO_PKG_VERSION")).to_owned();
        options.client_cert = self.client_cert()?;
        Connection::connect(options).await.map_err(|error| self.failed(&error))
    }

    /// The certificate that is pinned: the one named, or the one the broker of the data directory made for itself.
    fn trust(&self) -> Result<Trust, Error> {
        let path = match &self.server_cert {
            Some(path) => path.clone(),
            None => DevFiles::below(&self.data_dir).cert,
        };
        if self.server_cert.is_none() && !path.exists() {
            return Err(Error::Unavailable {
                addr: self.addr.clone(),
                reason: format!(
                    "there is no certificate to know it by: {} is missing, and no --server-cert was given",
                    path.display()
                ),
            });
        }
        let certificate = certificates(&path)?.into_iter().next().ok_or_else(|| not_pem(&path, "certificate"))?;
        Ok(Trust::Pinned(certificate))
    }

    fn client_cert(&self) -> Result<Option<ClientCert>, Error> {
        let Some((cert, key)) = self.cert.as_ref().zip(self.cert_key.as_ref()) else { return Ok(None) };
        let chain = certificates(cert)?;
        if chain.is_empty() {
            return Err(not_pem(cert, "certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| not_pem(key, "private key"))?;
        Ok(Some(ClientCert { chain, key }))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::file("read", path, source))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(|_| not_pem(path, "certificate"))
}

fn not_pem(path: &Path, what: &str) -> Error {
    Error::Config(format!("{} holds no {what} in PEM form", path.display()))
}
