//! Flags that say which broker a command speaks to, and as whom.

use std::{
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_client::{ClientCert, ConnectOptions, Connection, Trust};
use tidegate_protocol::error::Code;

use super::Error;
use crate::config::DevFiles;

/// Which broker, and as whom. Every command takes these.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ConnectArgs {
    /// Address of the broker: HOST:PORT, UDP. `serve` listens there, every other command connects to it.
    #[arg(long, global = true, help_heading = BROKER, value_name = "HOST:PORT", default_value = "127.0.0.1:4433",
          env = "TIDEGATE_ADDR", value_parser = address)]
    pub(super) addr: String,

    /// Data directory of the broker. Client commands read its certificate (to pin it) and its admin token from there,
    /// if it is there; with --server-cert, which may be another broker's, the token only if this is not the default.
    #[arg(long, global = true, help_heading = BROKER, value_name = "DIR", default_value = DATA_DIR,
          env = "TIDEGATE_DATA")]
    pub(super) data_dir: PathBuf,

    /// Tenant to speak for.
    #[arg(long, global = true, help_heading = BROKER, value_name = "NAME", default_value = "default",
          env = "TIDEGATE_TENANT")]
    pub(super) tenant: String,

    /// Token from the broker's auth file.
    #[arg(long, global = true, help_heading = BROKER, value_name = "TOKEN", env = "TIDEGATE_TOKEN",
          hide_env_values = true)]
    pub(super) token: Option<String>,

    /// Admin token, when the broker's data directory is not at hand.
    #[arg(long, global = true, help_heading = BROKER, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN",
          hide_env_values = true)]
    pub(super) admin_token: Option<String>,

    /// Client certificate (PEM), in place of a token.
    #[arg(long, global = true, help_heading = BROKER, value_name = "FILE", requires = "cert_key")]
    pub(super) cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM).
    #[arg(long, global = true, help_heading = BROKER, value_name = "FILE", requires = "cert")]
    pub(super) cert_key: Option<PathBuf>,

    /// Certificate of the broker to pin (PEM), when its data directory is not at hand.
    #[arg(long, global = true, help_heading = BROKER, value_name = "FILE")]
    pub(super) server_cert: Option<PathBuf>,
}

/// Where a broker's data lies unless told otherwise.
const DATA_DIR: &str = "tidegate-data";
/// Stands over these flags in every help.
const BROKER: &str = "Which broker, and as whom";

/// `HOST:PORT`, as far as it can be judged without asking a name server.
pub(super) fn address(text: &str) -> Result<String, String> {
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or("write HOST:PORT, for example 127.0.0.1:4433")?;
    if host.parse::<Ipv6Addr>().is_ok() {
        return Err("write an IPv6 address in brackets, for example [::1]:4433".to_owned());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(format!("{host:?} is no host name or address; write HOST:PORT, for example 127.0.0.1:4433"));
    }
    port.parse::<u16>().map_err(|_| format!("{port:?} is no port: a number from 0 to 65535"))?;
    Ok(text.to_owned())
}

/// The admin token as a command finds it.
#[derive(Debug)]
enum AdminToken {
    /// Not shown by this command.
    Unasked,
    /// From the flag or its variable.
    Given(String),
    /// From the data directory.
    Read { token: String, file: PathBuf },
    /// Nowhere.
    Missing { file: PathBuf, reason: String },
}

impl ConnectArgs {
    /// A connection without admin rights.
    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        self.dial(AdminToken::Unasked).await
    }

    /// A connection that shows the admin token, if one is given or at hand. Without one the broker answers what it lets
    /// anybody see, and says so for the rest.
    pub(super) async fn connect_as_admin(&self) -> Result<Connection, Error> {
        self.dial(self.find_admin_token()).await
    }

    /// What the client library could not do with this broker.
    pub(super) fn failed(&self, error: &tidegate_client::Error) -> Error {
        let told = Error::client(&self.addr, error);
        match error.code() {
            Some(Code::AdminRequired) => told.then(self.admin_advice()),
            _ => told,
        }
    }

    async fn dial(&self, admin: AdminToken) -> Result<Connection, Error> {
        if self.addr.ends_with(":0") {
            let what = format!("--addr {}: nothing answers at port 0", self.addr);
            return Err(Error::usage(what).then("`serve` takes a free port for 0 and prints it: give that one."));
        }
        let shown = match &admin {
            AdminToken::Given(token) | AdminToken::Read { token, .. } => token.clone(),
            AdminToken::Unasked | AdminToken::Missing { .. } => String::new(),
        };
        let mut options = ConnectOptions::new(self.addr.as_str(), self.trust()?)
            .tenant(self.tenant.as_str())
            .token(self.token.clone().unwrap_or_default())
            .admin_token(shown);
        options.client_name = concat!("tidegate/", env!("CARGO_PKG_VERSION")).to_owned();
        options.client_cert = self.client_cert()?;
        Connection::connect(options).await.map_err(|error| match error.code() {
            Some(Code::Unauthenticated) => self.failed(&error).then(self.credentials(&admin)),
            None if error.is_untrusted() => Error::unavailable(
                self.addr.as_str(),
                format!("who answers there is not the broker whose certificate is {}", self.pinned().display()),
            )
            .then("Give that broker's own --data-dir, or its certificate with --server-cert."),
            _ => self.failed(&error),
        })
    }

    fn find_admin_token(&self) -> AdminToken {
        if let Some(token) = self.admin_token.clone().filter(|token| !token.is_empty()) {
            return AdminToken::Given(token);
        }
        let files = DevFiles::below(&self.data_dir);
        // A directory that happens to lie here is not that of a broker elsewhere, which must not learn its token.
        if self.server_cert.is_some() && self.data_dir == Path::new(DATA_DIR) {
            let reason = "not looked at, because --server-cert may name another broker".to_owned();
            return AdminToken::Missing { file: files.admin_token, reason };
        }
        match files.read_admin_token() {
            Ok(token) => AdminToken::Read { token, file: files.admin_token },
            Err(error) => AdminToken::Missing { file: files.admin_token, reason: error.reason },
        }
    }

    /// What was shown to a broker that does not know it. It never says which part is wrong, so all parts are named, each
    /// with where it comes from.
    fn credentials(&self, admin: &AdminToken) -> String {
        let token = self.token.as_ref().is_some_and(|token| !token.is_empty());
        let who = match &self.cert {
            _ if token => "the token of --token (or TIDEGATE_TOKEN)".to_owned(),
            Some(cert) => format!("the certificate {} (--cert)", cert.display()),
            None => "no token (--token)".to_owned(),
        };
        let admin = match admin {
            AdminToken::Given(_) => " and the admin token of --admin-token (or TIDEGATE_ADMIN_TOKEN)".to_owned(),
            AdminToken::Read { file, .. } => {
                format!(" and the admin token read from {} (--data-dir, or give --admin-token)", file.display())
            }
            AdminToken::Unasked | AdminToken::Missing { .. } => String::new(),
        };
        format!(
            "Asked for was tenant {:?} (--tenant), shown {who}{admin}. The broker does not say which of these it does \
             not know. Without an auth file it knows tenant \"default\" only, and no token.",
            self.tenant
        )
    }

    fn admin_advice(&self) -> String {
        match self.find_admin_token() {
            AdminToken::Missing { file, reason } => format!(
                "No admin token was shown: {}: {reason}. Run it where the broker's data directory is (--data-dir), or \
                 pass --admin-token.",
                file.display()
            ),
            _ => {
                "The admin token was shown; who shows it may not use it: the principal needs \"admin\" in its `allow` \
                  list in the broker's auth file."
                    .to_owned()
            }
        }
    }

    /// The certificate that is pinned: the one named, or the one the broker of the data directory made for itself.
    fn trust(&self) -> Result<Trust, Error> {
        if let Some(path) = &self.server_cert {
            let first = certificates(path)?.into_iter().next();
            return first.map(Trust::Pinned).ok_or_else(|| not_pem("--server-cert", path, "certificate"));
        }
        let path = self.pinned();
        if !path.try_exists().map_err(|source| Error::file("read", &path, source))? {
            let reason = format!(
                "there is no certificate to know it by: {} is missing, and no --server-cert was given",
                path.display()
            );
            return Err(Error::unavailable(self.addr.as_str(), reason));
        }
        certificates(&path)?.into_iter().next().map(Trust::Pinned).ok_or_else(|| {
            Error::broken_file(format!("{} holds no certificate in PEM form", path.display()))
                .then("The broker made it on its first start: look there what became of it, or give --server-cert.")
        })
    }

    /// The file with the broker's certificate.
    fn pinned(&self) -> PathBuf {
        self.server_cert.clone().unwrap_or_else(|| DevFiles::below(&self.data_dir).cert)
    }

    fn client_cert(&self) -> Result<Option<ClientCert>, Error> {
        let Some((cert, key)) = self.cert.as_ref().zip(self.cert_key.as_ref()) else { return Ok(None) };
        let chain = certificates(cert)?;
        if chain.is_empty() {
            return Err(not_pem("--cert", cert, "certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| not_pem("--cert-key", key, "private key"))?;
        Ok(Some(ClientCert { chain, key }))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::file("read", path, source))
}

/// The certificates of a file; none if something in it is none.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    Ok(CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().unwrap_or_default())
}

fn not_pem(flag: &str, path: &Path, what: &str) -> Error {
    Error::usage(format!("{flag} {}: holds no {what} in PEM form", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for right in ["127.0.0.1:4433", "[::1]:4433", "broker:1", "b-1.example.org:65535", "localhost:0"] {
            assert_eq!(address(right).as_deref(), Ok(right));
        }
        for (wrong, told) in [
            ("broker", "write HOST:PORT"),
            ("::1:4433", "in brackets"),
            (":4433", "\"\" is no host"),
            ("quic://broker:4433", "\"quic://broker\" is no host"),
            ("a b:1", "\"a b\" is no host"),
            ("broker:", "\"\" is no port"),
            ("broker:65536", "\"65536\" is no port"),
            ("broker:http", "\"http\" is no port"),
        ] {
            let error = address(wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    fn arguments(line: &str) -> ConnectArgs {
        let arguments: Vec<_> = line.split(' ').map(std::ffi::OsString::from).collect();
        crate::cli::parse(&arguments).unwrap().connect
    }

    #[test]
    fn what_was_shown_is_told_with_where_it_came_from() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().to_str().unwrap();
        let args = arguments(&format!("tidegate topics --tenant red --token t --data-dir {data_dir}"));
        let told = args.credentials(&args.find_admin_token());
        assert!(told.starts_with("Asked for was tenant \"red\" (--tenant), shown the token of --token"), "{told}");
        assert!(!told.contains("admin token"), "none was there: {told}");
        assert!(args.admin_advice().contains("dev/admin-token: cannot open: No such file"), "{}", args.admin_advice());
        std::fs::create_dir(folder.path().join("dev")).unwrap();
        std::fs::write(folder.path().join("dev/admin-token"), "x\n").unwrap();
        let told = args.credentials(&args.find_admin_token());
        assert!(told.contains(&format!("the admin token read from {data_dir}/dev/admin-token")), "{told}");
        let elsewhere = arguments("tidegate topics --server-cert other.pem");
        assert!(elsewhere.admin_advice().contains("may name another broker"), "{}", elsewhere.admin_advice());
        let both = arguments(&format!("tidegate topics --server-cert own.pem --data-dir {data_dir}"));
        assert!(matches!(both.find_admin_token(), AdminToken::Read { .. }));
        let given = arguments(&format!("tidegate topics --admin-token a --data-dir {data_dir}"));
        let told = given.credentials(&given.find_admin_token());
        assert!(told.contains("shown no token (--token) and the admin token of --admin-token"), "{told}");
    }
}
