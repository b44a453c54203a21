//! The auth file: who may connect, and what they may do.
//!
//! ```toml
//! [[principal]]
//! name         = "orders-app"
//! tenant       = "default"                 # the default
//! role         = "auditor"                 # for `unless = "role:auditor"`
//! token_sha256 = "9f86d081…"               # printf %s TOKEN | sha256sum
//! # or cert_sha256 = "…"                   # openssl x509 -in cert.pem -outform der | sha256sum
//! allow        = ["produce:orders/>", "fetch:orders/*", "topics:orders/>", "admin"]
//! ```

use std::path::Path;

use super::{
    ConfigError,
    document::{Section, Source},
    read_text,
};
use crate::auth::{Allow, AllowError, Credential, Hash, PrincipalConfig, TENANT_DEFAULT, VERBS};

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Principals of one broker: each is compared on every handshake.
const PRINCIPALS_MAX: usize = 10_000;
/// Entries of one allow list.
const ALLOW_MAX: usize = 256;

/// Reads the auth file.
///
/// # Errors
/// If it cannot be read or a line of it does not hold.
pub fn load(path: &Path) -> Result<Vec<PrincipalConfig>, ConfigError> {
    let text = read_text(path, FILE_BYTES_MAX)?;
    let name = path.display().to_string();
    parse(&Source { file: &name, text: &text, keeps_running: false })
}

fn parse(source: &Source<'_>) -> Result<Vec<PrincipalConfig>, ConfigError> {
    let table = source.parse()?;
    let document = Section::root(source, &table);
    document.only(&["principal"], &[])?;
    let sections = document.array_of_sections("principal")?;
    if sections.is_empty() {
        let reason = "names nobody: give it a [[principal]], or start without an auth file".to_owned();
        return Err(source.error(0..0, "principal", reason));
    }
    if let Some(section) = sections.get(PRINCIPALS_MAX) {
        return Err(source.error(section.span(), "principal", format!("more than {PRINCIPALS_MAX} principals")));
    }
    let mut found: Vec<PrincipalConfig> = Vec::new();
    let mut credentials = std::collections::HashSet::new();
    for section in &sections {
        let principal = principal(section)?;
        if !credentials.insert(match principal.credential {
            Credential::Token(hash) => (0, hash),
            Credential::Certificate(hash) => (1, hash),
        }) {
            let reason = format!("principal {:?} shows the credential of another one", principal.name);
            return Err(source.error(section.span(), section.key("name"), reason));
        }
        found.push(principal);
    }
    Ok(found)
}

fn principal(section: &Section<'_>) -> Result<PrincipalConfig, ConfigError> {
    section.only(&["name", "tenant", "role", "token_sha256", "cert_sha256", "allow"], &[])?;
    let item = section.needed("name", "name = \"orders-app\"")?;
    let name = section.text("name", item)?;
    let name_or = |key: &str, otherwise: &str| -> Result<String, ConfigError> {
        match section.string(key)? {
            None => Ok(otherwise.to_owned()),
            Some((text, _)) if plain(text) => Ok(text.to_owned()),
            Some((text, item)) => {
                let reason = format!("{key} {text:?} must be 1 to 64 of letters, digits, `_` and `-`");
                Err(section.error(key, item, reason))
            }
        }
    };
    if !plain(name) {
        let reason = format!("name {name:?} must be 1 to 64 of letters, digits, `_` and `-`");
        return Err(section.error("name", item, reason));
    }
    Ok(PrincipalConfig {
        name: name.to_owned(),
        tenant: name_or("tenant", TENANT_DEFAULT)?,
        role: name_or("role", "")?,
        credential: credential(section)?,
        allow: allow(section)?,
    })
}

fn plain(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn credential(section: &Section<'_>) -> Result<Credential, ConfigError> {
    match (hash(section, "token_sha256")?, hash(section, "cert_sha256")?) {
        (Some(token), None) => Ok(Credential::Token(token)),
        (None, Some(certificate)) => Ok(Credential::Certificate(certificate)),
        (None, None) => {
            let reason = "a principal needs \"token_sha256\" or \"cert_sha256\"".to_owned();
            Err(section.source().error(section.span(), section.key("token_sha256"), reason))
        }
        (Some(_), Some(_)) => {
            let reason = "a principal has one credential: \"token_sha256\" or \"cert_sha256\", not both".to_owned();
            Err(section.source().error(section.span(), section.key("cert_sha256"), reason))
        }
    }
}

fn hash(section: &Section<'_>, key: &str) -> Result<Option<Hash>, ConfigError> {
    let Some((text, item)) = section.string(key)? else { return Ok(None) };
    let hex = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut hash = Hash::default();
    let pairs = hex.chunks_exact(2);
    let whole = hex.len() == 64;
    for (byte, pair) in hash.iter_mut().zip(pairs) {
        let [high, low] = [pair.first(), pair.last()].map(|byte| byte.copied().and_then(digit));
        match (whole, high, low) {
            (true, Some(high), Some(low)) => *byte = high << 4 | low,
            _ => return Err(wrong_hash(section, key, item)),
        }
    }
    if whole { Ok(Some(hash)) } else { Err(wrong_hash(section, key, item)) }
}

/// Without the value: whoever wrote the token itself here must not find it in a log.
fn wrong_hash(section: &Section<'_>, key: &str, item: &super::document::Item<'_>) -> ConfigError {
    let mut error =
        section.error(key, item, format!("{key:?} must be 64 hex digits (the SHA-256, not the secret itself)"));
    error.value = String::new();
    error
}

fn allow(section: &Section<'_>) -> Result<Vec<Allow>, ConfigError> {
    let item = section.needed("allow", "allow = [\"produce:orders/>\", \"fetch:orders/>\"]")?;
    let items = section.array("allow")?;
    if items.is_empty() {
        return Err(section.error("allow", item, "\"allow\" is empty: this principal could do nothing".to_owned()));
    }
    if let Some(item) = items.get(ALLOW_MAX) {
        return Err(section.error("allow", item, format!("more than {ALLOW_MAX} entries in \"allow\"")));
    }
    let read = |item| {
        let text = section.text("allow", item)?;
        Allow::parse(text).map_err(|error| match error {
            AllowError::Verb(verb) => section.spelling("allow", item, "verb", &verb, VERBS),
            other => section.error("allow", item, other.to_string()),
        })
    };
    items.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<PrincipalConfig>, String> {
        let source = Source { file: "auth.toml", text, keeps_running: false };
        parse(&source).map_err(|error| error.to_string())
    }

    const HASH: &str = "token_sha256 = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"";

    #[test]
    fn a_principal_as_written() {
        let text =
            format!("[[principal]]\nname = \"app\"\nrole = \"auditor\"\n{HASH}\nallow = [\"fetch:a/>\", \"admin\"]\n");
        let read = read(&text).expect("holds");
        let principal = read.first().expect("one");
        assert_eq!(principal.tenant, "default");
        assert_eq!(principal.role, "auditor");
        assert_eq!(principal.credential, Credential::Token(crate::auth::hash(b"test")));
        assert_eq!(principal.allow.len(), 2);
    }

    #[test]
    fn lines_that_do_not_hold() {
        let table = [
            ("".to_owned(), "auth.toml:1: names nobody: give it a [[principal]], or start without an auth file."),
            (
                format!("[[principal]]\nname = \"a\"\n{HASH}\nalow = []\n"),
                "auth.toml:4: unknown key \"alow\" in [principal]; did you mean \"allow\"?",
            ),
            (
                format!("[[principal]]\nname = \"a\"\n{HASH}\nallow = [\"fecth:a\"]\n"),
                "auth.toml:4: unknown verb \"fecth\"; did you mean \"fetch\"?",
            ),
            (
                "[[principal]]\nname = \"a\"\ntoken_sha256 = \"hunter2\"\nallow = [\"admin\"]\n".to_owned(),
                "auth.toml:3: \"token_sha256\" must be 64 hex digits (the SHA-256, not the secret itself).",
            ),
            (
                "[[principal]]\nname = \"a\"\nallow = [\"admin\"]\n".to_owned(),
                "auth.toml:1: a principal needs \"token_sha256\" or \"cert_sha256\".",
            ),
            (
                format!("[[principal]]\nname = \"a\"\n{HASH}\nallow = []\n"),
                "auth.toml:4: \"allow\" is empty: this principal could do nothing.",
            ),
            (
                format!("[[principal]]\nname = \"a b\"\n{HASH}\nallow = [\"admin\"]\n"),
                "auth.toml:2: name \"a b\" must be 1 to 64 of letters, digits, `_` and `-`.",
            ),
            (
                format!(
                    "[[principal]]\nname = \"a\"\n{HASH}\nallow = [\"admin\"]\n[[principal]]\nname = \"b\"\n{HASH}\nallow = [\"admin\"]\n"
                ),
                "auth.toml:5: principal \"b\" shows the credential of another one.",
            ),
        ];
        for (text, message) in table {
            assert_eq!(read(&text).expect_err("refused"), message, "{text}");
        }
    }
}
