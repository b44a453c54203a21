//! What stands in place of a hidden member.

/// The replacement of members.
#[derive(Debug)]
pub(crate) enum Mask {
    /// The same text for all, as a JSON string with its quotes.
    Text(String),
    /// A keyed hash of the member: equal members stay equal, and none can be told without the salt.
    Hash(Box<[u8; 32]>),
}

/// Hex digits of a hash: 128 bits, so that no two members of a topic meet by chance.
const HASH_DIGITS: usize = 32;

impl Mask {
    /// `hash` hashes with the salt; any other text replaces.
    ///
    /// # Errors
    /// If `hash` has no salt, or a text has one.
    pub(crate) fn new(with: &str, salt: Option<&str>) -> Result<Self, String> {
        match (with, salt) {
            ("hash", Some(salt)) if !salt.is_empty() => Ok(Self::Hash(Box::new(blake3::derive_key(
                "tidegate plugin redact, hash of a member, version 1",
                salt.as_bytes(),
            )))),
            ("hash", _) => Err("with = \"hash\" needs a salt: without one, short members can be guessed".to_owned()),
            (_, Some(_)) => Err("salt is for with = \"hash\"".to_owned()),
            (text, None) => Ok(Self::Text(serde_json::Value::from(text).to_string())),
        }
    }

    /// Appends what stands in place of a member, given as JSON.
    pub(crate) fn write(&self, member: &[u8], to: &mut Vec<u8>) {
        match self {
            Self::Text(text) => to.extend_from_slice(text.as_bytes()),
            Self::Hash(key) => {
                // The text of a string, not its spelling: "\u0061" and "a" are the same member.
                let hash = match serde_json::from_slice::<String>(member) {
                    Ok(text) => blake3::keyed_hash(key, text.as_bytes()),
                    Err(_) => blake3::keyed_hash(key, member),
                };
                to.push(b'"');
                to.extend(hash.to_hex().bytes().take(HASH_DIGITS));
                to.push(b'"');
            }
        }
    }
}
