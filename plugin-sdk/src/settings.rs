//! The settings of an instance: JSON and the files it names. How the JSON is read is left to the plugin.

use crate::Failure;

/// What `plugins.toml` says for one plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    json: String,
    files: Vec<(String, Vec<u8>)>,
}

impl Settings {
    /// Settings from JSON text and bundled files, each with its path.
    pub fn new(json: impl Into<String>, files: Vec<(String, Vec<u8>)>) -> Self {
        Self { json: json.into(), files }
    }

    /// The settings as a JSON object.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Every bundled file with its path: those that settings name and the local ones they refer to.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, content)| (path.as_str(), content.as_slice()))
    }

    /// The file that a setting of the form `file:PATH` names.
    ///
    /// # Errors
    /// If the value has another form, or no such file came with the settings.
    pub fn file(&self, value: &str) -> Result<&[u8], Failure> {
        let Some(path) = value.strip_prefix("file:") else {
            return Err(Failure::permanent(format!("{value:?} is not a file: write \"file:PATH\"")));
        };
        self.lookup(path).ok_or_else(|| Failure::permanent(format!("the file {path:?} did not come with the settings")))
    }

    /// The file that `base` (a path) refers to as `reference`: a relative path without fragment. Looked up as a path
    /// beside `base` first, then as it stands.
    pub fn related(&self, base: &str, reference: &str) -> Option<&[u8]> {
        self.lookup(&join(base, reference)).or_else(|| self.lookup(reference))
    }

    fn lookup(&self, path: &str) -> Option<&[u8]> {
        let path = plain(path);
        self.files.iter().find(|(name, _)| plain(name) == path).map(|(_, content)| content.as_slice())
    }
}

/// `reference` as seen from the file `base`: `a/b.json` and `../c.json` give `c.json`.
fn join(base: &str, reference: &str) -> String {
    match base.rsplit_once('/') {
        Some((folder, _)) if !reference.starts_with('/') => plain(&format!("{folder}/{reference}")),
        _ => plain(reference),
    }
}

/// A path without `.` levels, and without `..` where something can be taken back.
fn plain(path: &str) -> String {
    let mut levels: Vec<&str> = Vec::new();
    for level in path.split('/') {
        match level {
            "." => {}
            ".." if levels.last().is_some_and(|last| !last.is_empty() && *last != "..") => {
                levels.pop();
            }
            level => levels.push(level),
        }
    }
    levels.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_setting_and_by_reference() {
        let settings =
            Settings::new("{}", vec![("./docs/a.json".into(), b"a".to_vec()), ("b.json".into(), b"b".to_vec())]);
        assert_eq!(settings.file("file:docs/a.json").unwrap(), b"a");
        assert_eq!(settings.related("docs/a.json", "../b.json"), Some(b"b".as_slice()));
        assert_eq!(settings.related("other/x.json", "b.json"), Some(b"b".as_slice()));
        assert_eq!(settings.related("docs/a.json", "c.json"), None);
        assert!(settings.file("docs/a.json").unwrap_err().to_string().contains("file:PATH"));
        assert!(settings.file("file:nowhere").unwrap_err().to_string().contains("nowhere"));
    }
}
