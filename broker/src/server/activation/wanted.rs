//! What is known of `plugins.toml`: what it asked for when it last held, and why it was refused since.

use std::collections::BTreeMap;

use super::{Desired, record::drift};
use crate::hooks::spec::{PluginSpec, TenantSpec};

/// Desired state as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The broker was started without a file.
    Nothing,
    /// There is a file.
    File {
        /// What it asked for when it last held; `None` = it never did since the start.
        held: Option<Held>,
        /// Why it was refused when it was last read; `None` = it was not.
        refused: Option<String>,
    },
}

/// What a file asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    tenants: BTreeMap<String, TenantSpec>,
    order: Vec<String>,
}

impl Wanted {
    /// The file holds, and is applied.
    pub(super) fn held(desired: &Desired) -> Self {
        let held = Held { tenants: desired.tenants.clone(), order: desired.order.clone() };
        Self::File { held: Some(held), refused: None }
    }

    /// The file was read and refused: what it asked for before still counts.
    pub(super) fn refused(&self, reason: String) -> Self {
        let held = self.file().cloned();
        Self::File { held, refused: Some(reason) }
    }

    fn file(&self) -> Option<&Held> {
        match self {
            Self::File { held, .. } => held.as_ref(),
            Self::Nothing => None,
        }
    }

    /// The file's entry of a plugin.
    pub(super) fn plugin(&self, tenant: &str, name: &str) -> Option<&PluginSpec> {
        self.file()?.tenants.get(tenant)?.plugins.get(name)
    }

    /// The place of a plugin in the file; those that are not in it come last.
    pub(super) fn place(&self, name: &str) -> usize {
        self.file().and_then(|held| held.order.iter().position(|known| known == name)).unwrap_or(usize::MAX)
    }

    /// How the file as a whole differs from what runs; empty = it does not.
    pub(super) fn refusal(&self) -> String {
        match self {
            Self::File { refused: Some(reason), .. } => format!("file differs and was refused: {reason}"),
            Self::File { refused: None, .. } | Self::Nothing => String::new(),
        }
    }

    /// How a plugin that runs differs from its entry, for people; empty = it does not.
    pub(super) fn drift(&self, tenant: &str, name: &str, runs: &PluginSpec) -> String {
        match self {
            Self::Nothing => "no plugins.toml is given: it goes on as it was last activated".to_owned(),
            Self::File { held: None, .. } => String::new(),
            Self::File { held: Some(_), .. } => drift(runs, self.plugin(tenant, name)),
        }
    }
}
