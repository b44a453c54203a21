//! Who somebody is, and what they may do. The default is refuse.
//!
//! Owns principals and their allow lists, all in memory. Must not know files, connections or the log: `config` reads the
//! auth file, `server` brings what a client shows, `produce` and `fetch` ask what a principal may.

mod allow;

use std::{collections::BTreeSet, sync::Arc};

pub use allow::{Allow, AllowError, VERBS, Verb};

/// The tenant of a client that names none.
pub const TENANT_DEFAULT: &str = "default";

/// A SHA-256 hash.
pub type Hash = [u8; 32];

/// Who may do what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// From the auth file; `None` = there is none: loopback only, tenant `default`, everything but admin.
    pub principals: Option<Vec<PrincipalConfig>>,
    /// Hash of the admin token. Admin verbs always need it.
    pub admin_token: Hash,
}

/// One `[[principal]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalConfig {
    /// For logs and for plugins.
    pub name: String,
    /// The one tenant it belongs to.
    pub tenant: String,
    /// What fetch chains ask by `unless = "role:NAME"`; empty = none.
    pub role: String,
    /// What it shows.
    pub credential: Credential,
    /// What it may.
    pub allow: Vec<Allow>,
}

/// What a principal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// A token with this SHA-256.
    Token(Hash),
    /// A client certificate whose DER form has this SHA-256.
    Certificate(Hash),
}

/// What a client shows in its handshake.
#[derive(Debug, Clone, Copy, Default)]
pub struct Claim<'a> {
    /// The tenant it wants; empty = `default`.
    pub tenant: &'a str,
    /// A token, or empty.
    pub token: &'a str,
    /// The admin token, or empty.
    pub admin_token: &'a str,
    /// Its certificate in DER form; the handshake proved that it holds the key.
    pub certificate: Option<&'a [u8]>,
    /// It comes from this machine.
    pub loopback: bool,
}

/// Somebody known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Its name.
    pub name: Arc<str>,
    /// Its tenant.
    pub tenant: Arc<str>,
    /// Its role, or empty.
    pub role: Arc<str>,
    /// It showed the admin token and may use it.
    pub admin: bool,
    allow: Arc<[Allow]>,
}

/// Nobody known. One answer for every cause, so that no tenant, name or token can be felt for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the credentials are not known for this tenant")]
pub struct Unknown;

/// All principals of a broker.
#[derive(Debug)]
pub struct Auth {
    config: Config,
}

impl Auth {
    /// Takes the principals as configured.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Every tenant somebody can speak for.
    pub fn tenants(&self) -> BTreeSet<&str> {
        match &self.config.principals {
            None => BTreeSet::from([TENANT_DEFAULT]),
            Some(principals) => principals.iter().map(|principal| principal.tenant.as_str()).collect(),
        }
    }

    /// Says who somebody is.
    ///
    /// # Errors
    /// If a credential shown is wrong, none is shown where one is needed, or it belongs to another tenant.
    pub fn identify(&self, claim: &Claim<'_>) -> Result<Principal, Unknown> {
        let tenant = if claim.tenant.is_empty() { TENANT_DEFAULT } else { claim.tenant };
        // A wrong admin token is refused, never passed over: whoever shows one means it.
        let admin = match claim.admin_token {
            "" => false,
            token if same(&hash(token.as_bytes()), &self.config.admin_token) => true,
            _ => return Err(Unknown),
        };
        let Some(principals) = &self.config.principals else {
            return if claim.loopback && tenant == TENANT_DEFAULT && claim.token.is_empty() {
                Ok(local(admin))
            } else {
                Err(Unknown)
            };
        };
        let shown = match (claim.token, claim.certificate) {
            ("", None) => return Err(Unknown),
            ("", Some(certificate)) => Credential::Certificate(hash(certificate)),
            (token, _) => Credential::Token(hash(token.as_bytes())),
        };
        // Every entry is compared, whichever matches: the time says nothing about the list.
        let mut found = None;
        for principal in principals {
            let holds = match (&principal.credential, &shown) {
                (Credential::Token(known), Credential::Token(shown))
                | (Credential::Certificate(known), Credential::Certificate(shown)) => same(known, shown),
                _ => false,
            };
            if holds {
                found = Some(principal);
            }
        }
        let principal = found.filter(|principal| principal.tenant == tenant).ok_or(Unknown)?;
        Ok(Principal {
            name: principal.name.as_str().into(),
            tenant: principal.tenant.as_str().into(),
            role: principal.role.as_str().into(),
            admin: admin && principal.allow.iter().any(|allow| allow.verb == Verb::Admin),
            allow: principal.allow.clone().into(),
        })
    }
}

impl Principal {
    /// Whether a verb on one topic is allowed.
    pub fn may(&self, verb: Verb, topic: &str) -> bool {
        self.allow.iter().any(|allow| allow.permits(verb, topic))
    }

    /// Whether a verb is allowed on some topic.
    pub fn may_any(&self, verb: Verb) -> bool {
        self.allow.iter().any(|allow| allow.verb == verb)
    }

    /// Whether a verb is allowed on some topic that a pattern stands for: what a subscription asks before it looks at topics.
    pub fn may_some(&self, verb: Verb, pattern: &tidegate_protocol::topic::TopicPattern) -> bool {
        self.allow.iter().any(|allow| {
            allow.verb == verb && allow.pattern.as_ref().is_some_and(|allowed| allow::overlap(allowed, pattern))
        })
    }
}

/// Who a client on this machine is while there is no auth file.
fn local(admin: bool) -> Principal {
    let all = [Verb::Produce, Verb::Fetch, Verb::Topics].map(Allow::everything);
    Principal { name: "local".into(), tenant: TENANT_DEFAULT.into(), role: "".into(), admin, allow: all.into() }
}

/// SHA-256, as credentials are kept.
pub fn hash(bytes: &[u8]) -> Hash {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut hash = Hash::default();
    hash.copy_from_slice(digest.as_ref());
    hash
}

/// Compares in a time that does not depend on where the hashes differ.
fn same(left: &Hash, right: &Hash) -> bool {
    let difference = left.iter().zip(right).fold(0, |all, (left, right)| all | (left ^ right));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests;
