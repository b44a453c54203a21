//! Files that settings name as `"file:PATH"`: read by the host, with the local files their JSON refers to, so that a guest
//! needs no file system and the generation's digest covers every byte it judges by.
//!
//! A file must lie in the folder tree of `plugins.toml`. A name is the path as the setting writes it; a file found by `$ref`
//! is named by its path relative to `plugins.toml`, without `.` and `..`, as the resolver in a guest computes it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use serde_json::Value;

use super::read_bytes;

/// Files of one plugin.
const FILES_MAX: usize = 64;
/// Bytes of all files of one plugin: they are copied into every instance.
const BYTES_MAX: u64 = 32 << 20;
/// Nesting of a JSON document (also the parser's own bound).
const DEPTH_MAX: usize = 128;

/// Schemas every validator brings along; a reference to them is not a file.
const WELL_KNOWN: &[&str] = &["http://json-schema.org/", "https://json-schema.org/"];

/// The files of one plugin by the name the guest knows.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    files: BTreeMap<String, Bytes>,
    bytes: u64,
    /// Documents that name themselves (`$id`), so that an absolute reference to one stays inside the bundle.
    ids: BTreeSet<String>,
    /// Absolute references seen, and who makes them.
    absolute: Vec<(String, String)>,
}

impl Bundle {
    /// Adds the file of one `"file:PATH"` setting and everything it refers to.
    pub(super) fn add(&mut self, root: &Path, path: &str) -> Result<(), String> {
        let mut waiting = VecDeque::from([(path.to_owned(), String::new())]);
        while let Some((name, from)) = waiting.pop_front() {
            if self.files.contains_key(&name) {
                continue;
            }
            let by = if from.is_empty() { String::new() } else { format!(" (referred to by {from:?})") };
            let content = self.read(root, &name).map_err(|reason| format!("\"file:{name}\"{by}: {reason}"))?;
            for reference in self.references(&name, &content)? {
                waiting.push_back((reference, name.clone()));
            }
            self.files.insert(name, content);
        }
        Ok(())
    }

    /// The files, once all settings were added.
    pub(super) fn finish(self) -> Result<BTreeMap<String, Bytes>, String> {
        for (reference, from) in &self.absolute {
            if !self.ids.contains(reference) {
                return Err(format!(
                    "{from:?} refers to {reference:?}: nothing is fetched from the network; save it beside the file \
                     and refer to it by its path"
                ));
            }
        }
        Ok(self.files)
    }

    fn read(&mut self, root: &Path, name: &str) -> Result<Bytes, String> {
        if self.files.len() >= FILES_MAX {
            return Err(format!("more than {FILES_MAX} files in one plugin's settings"));
        }
        let path = inside(root, name)?;
        let left = BYTES_MAX - self.bytes;
        let content = read_bytes(&path, left).map_err(|error| {
            if error.reason.contains("at most") {
                format!("the files of one plugin may have {} MiB together", BYTES_MAX >> 20)
            } else {
                error.reason
            }
        })?;
        self.bytes += content.len() as u64;
        Ok(Bytes::from(content))
    }

    /// Local files that a JSON document refers to. Other files refer to nothing.
    fn references(&mut self, name: &str, content: &[u8]) -> Result<Vec<String>, String> {
        let json = Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        if !json {
            return Ok(Vec::new());
        }
        let document: Value =
            serde_json::from_slice(content).map_err(|error| format!("\"file:{name}\": not JSON: {error}"))?;
        let mut texts = BTreeSet::new();
        self.walk(&document, 0, &mut texts);
        let mut local = Vec::new();
        for text in texts {
            if WELL_KNOWN.iter().any(|known| text.starts_with(known)) {
                continue;
            }
            if has_scheme(&text) {
                self.absolute.push((text, name.to_owned()));
            } else {
                local.push(resolve(name, &text));
            }
        }
        Ok(local)
    }

    fn walk(&mut self, value: &Value, depth: usize, texts: &mut BTreeSet<String>) {
        if depth > DEPTH_MAX {
            return;
        }
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    match (key.as_str(), member) {
                        ("$ref", Value::String(text)) => {
                            let target = text.split('#').next().unwrap_or_default();
                            if !target.is_empty() {
                                texts.insert(target.to_owned());
                            }
                        }
                        ("$id", Value::String(text)) => {
                            self.ids.insert(text.trim_end_matches('#').to_owned());
                        }
                        _ => self.walk(member, depth + 1, texts),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.walk(item, depth + 1, texts)),
            _ => {}
        }
    }
}

/// `https:`, `urn:` and the like: RFC 3986 scheme and colon.
fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    })
}

/// The name of a file that another one refers to.
fn resolve(base: &str, reference: &str) -> String {
    let joined = Path::new(base).parent().unwrap_or_else(|| Path::new("")).join(reference);
    let mut parts: Vec<String> = Vec::new();
    for component in joined.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            // A `..` above the folder stays, and is refused when the file is looked up.
            Component::ParentDir if parts.last().is_some_and(|last| last != "..") => {
                parts.pop();
            }
            Component::ParentDir => parts.push("..".to_owned()),
            Component::RootDir | Component::Prefix(_) => parts.push(String::new()),
            Component::CurDir => {}
        }
    }
    parts.join("/")
}

/// The file's real path, if it lies in the folder tree of `plugins.toml`, symbolic links followed.
fn inside(root: &Path, name: &str) -> Result<PathBuf, String> {
    if name.is_empty() {
        return Err("the path is empty".to_owned());
    }
    if Path::new(name).is_absolute() {
        return Err("the path must be relative to plugins.toml".to_owned());
    }
    let root = std::fs::canonicalize(root).map_err(|error| format!("cannot open the folder: {error}"))?;
    let path = std::fs::canonicalize(root.join(name)).map_err(|error| format!("cannot open: {error}"))?;
    if !path.starts_with(&root) {
        return Err("lies outside the folder of plugins.toml".to_owned());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_referred_files() {
        assert_eq!(resolve("a.json", "b.json"), "b.json");
        assert_eq!(resolve("./docs/a.json", "./b.json"), "docs/b.json");
        assert_eq!(resolve("docs/a.json", "../b.json"), "b.json");
        assert_eq!(resolve("a.json", "../b.json"), "../b.json");
    }

    #[test]
    fn schemes() {
        assert!(has_scheme("https://example.com/x.json"));
        assert!(has_scheme("urn:x"));
        assert!(!has_scheme("x.json"));
        assert!(!has_scheme("./a:b"));
    }
}
