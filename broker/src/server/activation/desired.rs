//! What the operator's file asks for, as the activation takes it: declared here, filled by `config`.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::hooks::spec::{PluginSpec, TenantSpec};

/// Everything `plugins.toml` asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// By tenant.
    pub tenants: BTreeMap<String, TenantSpec>,
    /// Component and file bytes by digest (`sha256:HEX`).
    pub blobs: BTreeMap<String, Bytes>,
    /// Names of the plugins in the order of the file.
    pub order: Vec<String>,
    /// What holds and is still not what anybody wants.
    pub warnings: Vec<String>,
}

impl Desired {
    /// The component of a plugin.
    pub fn component(&self, spec: &PluginSpec) -> Option<&Bytes> {
        self.blobs.get(&spec.digest)
    }

    /// The files of a plugin by the names its guest knows.
    pub fn files(&self, spec: &PluginSpec) -> Vec<(String, Bytes)> {
        let file = |(path, digest): (&String, &String)| Some((path.clone(), self.blobs.get(digest)?.clone()));
        spec.files.iter().filter_map(file).collect()
    }
}

/// Why the file does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{full}")]
pub struct DesiredError {
    /// File, line and reason.
    pub short: String,
    /// The same and what it means for a broker that runs.
    pub full: String,
}

/// Where the desired state is read from, again at each reload. Blocking.
pub trait DesiredSource: Send + Sync + std::fmt::Debug {
    /// Reads it.
    ///
    /// # Errors
    /// If it does not hold.
    fn load(&self) -> Result<Desired, DesiredError>;
}
