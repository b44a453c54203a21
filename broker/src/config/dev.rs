//! `DIR/dev`: the certificate, its key, the admin token and the reset key that a broker makes for itself on its first start.
//!
//! The local command line pins the certificate and shows the token; nothing here leaves the machine by itself. Files are
//! written whole or not at all, mode 0600.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{ConfigError, ConfigFault, read_bytes, read_text};
use crate::clock::SharedRandom;

/// Bytes of a certificate chain or a key.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// Random bytes of an admin token.
const TOKEN_BYTES: usize = 32;
/// Random bytes of a reset key.
const RESET_KEY_BYTES: usize = 32;

/// Paths of the dev credentials below a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevFiles {
    /// The certificate, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The admin token, one line.
    pub admin_token: PathBuf,
    /// What a restarted broker tells clients of the one before by: 32 bytes.
    pub reset_key: PathBuf,
}

impl DevFiles {
    /// Where they lie below a data directory.
    pub fn below(data_dir: &Path) -> Self {
        let dir = data_dir.join("dev");
        Self {
            cert: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            admin_token: dir.join("admin-token"),
            reset_key: dir.join("reset-key"),
        }
    }

    /// Reads the admin token.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_admin_token(&self) -> Result<String, ConfigError> {
        Ok(read_text(&self.admin_token, 4_096).map_err(in_data_dir)?.trim().to_owned())
    }
}

/// A certificate chain and its key in DER form.
#[derive(Clone)]
pub(super) struct Certificate {
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) key: Vec<u8>,
}

/// Reads a certificate chain and its key from PEM files.
pub(super) fn read_certificate(cert: &Path, key: &Path) -> Result<Certificate, ConfigError> {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let wrong = |path: &Path, what: &str| ConfigError::of_file(path, format!("holds no {what} in PEM form"));
    let chain = CertificateDer::pem_slice_iter(&read_bytes(cert, PEM_BYTES_MAX)?)
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| wrong(cert, "certificate"))?;
    if chain.is_empty() {
        return Err(wrong(cert, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read_bytes(key, PEM_BYTES_MAX)?).map_err(|_| wrong(key, "private key"))?;
    Ok(Certificate { chain, key: key.secret_der().to_vec() })
}

/// The admin token of a data directory, made if there is none.
pub(super) fn admin_token(files: &DevFiles, random: &SharedRandom) -> Result<String, ConfigError> {
    if !files.admin_token.exists() {
        let mut bytes = [0; TOKEN_BYTES];
        random.fill(&mut bytes);
        use base64::Engine as _;
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
        write(&files.admin_token, format!("{token}\n").as_bytes())?;
    }
    let token = files.read_admin_token()?;
    if token.len() < TOKEN_BYTES {
        let reason = "is too short to be an admin token: remove it, a new one is made on the next start".to_owned();
        return Err(in_data_dir(ConfigError::of_file(&files.admin_token, reason)));
    }
    Ok(token)
}

/// The reset key of a data directory, made if there is none.
pub(super) fn reset_key(files: &DevFiles, random: &SharedRandom) -> Result<[u8; RESET_KEY_BYTES], ConfigError> {
    if !files.reset_key.exists() {
        let mut bytes = [0; RESET_KEY_BYTES];
        random.fill(&mut bytes);
        write(&files.reset_key, &bytes)?;
    }
    let bytes = read_bytes(&files.reset_key, PEM_BYTES_MAX).map_err(in_data_dir)?;
    bytes.try_into().map_err(|_| {
        let reason = "is not a key of 32 bytes: remove it, a new one is made on the next start".to_owned();
        in_data_dir(ConfigError::of_file(&files.reset_key, reason))
    })
}

/// The dev certificate of a data directory, made if there is none.
pub(super) fn certificate(files: &DevFiles) -> Result<Certificate, ConfigError> {
    if !files.cert.exists() || !files.key.exists() {
        let names = ["localhost", "tidegate", "127.0.0.1", "::1"].map(str::to_owned);
        let fail = |error: rcgen::Error| {
            in_data_dir(ConfigError::of_file(&files.cert, format!("cannot make a certificate: {error}")))
        };
        let key = rcgen::KeyPair::generate().map_err(fail)?;
        let mut parameters = rcgen::CertificateParams::new(names).map_err(fail)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "tidegate dev certificate");
        let made = parameters.self_signed(&key).map_err(fail)?;
        // The key first: a certificate without its key would be made anew, and pinned clients would not know it.
        write(&files.key, key.serialize_pem().as_bytes())?;
        write(&files.cert, made.pem().as_bytes())?;
    }
    read_certificate(&files.cert, &files.key).map_err(in_data_dir)
}

/// An error of a file that the broker looks after itself.
fn in_data_dir(error: ConfigError) -> ConfigError {
    ConfigError { fault: ConfigFault::DataDir, ..error }
}

/// Writes a file whole or not at all, readable by its owner only.
fn write(path: &Path, bytes: &[u8]) -> Result<(), ConfigError> {
    let fail =
        |what: &str, error: std::io::Error| in_data_dir(ConfigError::of_file(path, format!("cannot {what}: {error}")));
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| fail("make its folder", error))?;
    let partial = path.with_extension("partial");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)
        .map_err(|error| fail("create", error))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| fail("write", error))?;
    fs::rename(&partial, path).map_err(|error| fail("rename", error))?;
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| fail("sync the folder of", error))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

    use super::*;
    use crate::clock::SystemRandom;

    #[test]
    fn made_once_and_for_the_owner_only() {
        let dir = tempfile::tempdir().expect("dir");
        let files = DevFiles::below(dir.path());
        let random: SharedRandom = Arc::new(SystemRandom::default());
        let (token, made) = (admin_token(&files, &random).expect("made"), certificate(&files).expect("made"));
        assert_eq!(admin_token(&files, &random).expect("read"), token);
        assert_eq!(certificate(&files).expect("read").chain, made.chain);
        let reset = reset_key(&files, &random).expect("made");
        assert_eq!(reset_key(&files, &random).expect("read"), reset);
        assert_ne!(reset, [0; RESET_KEY_BYTES]);
        for path in [&files.cert, &files.key, &files.admin_token, &files.reset_key] {
            assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn what_is_cut_short_is_not_taken() {
        let dir = tempfile::tempdir().expect("dir");
        let files = DevFiles::below(dir.path());
        write(&files.admin_token, b"short\n").expect("written");
        let random: SharedRandom = Arc::new(SystemRandom::default());
        let error = admin_token(&files, &random).expect_err("refused");
        assert!(error.reason.contains("too short"), "{error}");
        assert_eq!(error.fault, ConfigFault::DataDir);
        write(&files.reset_key, b"short").expect("written");
        let error = reset_key(&files, &random).expect_err("refused");
        assert!(error.reason.contains("32 bytes"), "{error}");
        assert_eq!(error.fault, ConfigFault::DataDir);
    }
}
