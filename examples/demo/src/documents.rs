//! Copies JSON documents with what they refer to, keeping how they lie to each other.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Where the copy of a file lies, relative to the folder of all copies.
pub(crate) fn copy_name(file: &Path) -> PathBuf {
    Path::new("files").join(flat(file))
}

/// Copies absolute paths, and the local files that those among them that are JSON refer to.
pub(crate) fn mirror(files: Vec<PathBuf>, folder: &Path) -> Result<()> {
    let mut done = BTreeSet::new();
    let mut waiting = files;
    while let Some(file) = waiting.pop() {
        if !done.insert(flat(&file)) {
            continue;
        }
        let content = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if file.extension().is_some_and(|extension| extension == "json") {
            let json = serde_json::from_slice(&content).with_context(|| format!("{} is not JSON", file.display()))?;
            let beside = file.parent().unwrap_or_else(|| Path::new("/"));
            references(&json, &mut |reference| waiting.push(beside.join(reference)));
        }
        let copy = folder.join(copy_name(&file));
        std::fs::create_dir_all(copy.parent().unwrap_or(folder)).context("cannot make a folder for copies")?;
        std::fs::write(&copy, content).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(())
}

/// Every `$ref` to another local file.
fn references(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let ("$ref", Value::String(text)) = (name.as_str(), member) {
                    let file = text.split('#').next().unwrap_or_default();
                    if !file.is_empty() && !file.contains("://") && !file.starts_with("urn:") {
                        found(file);
                    }
                }
                references(member, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// The path without root, `.` and `..`.
fn flat(file: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in file.components() {
        match part {
            Component::Normal(name) => flat.push(name),
            Component::ParentDir => drop(flat.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_copied_with_what_they_refer_to() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, text: &str| {
            let path = from.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let api = write(
            "a/api.json",
            r##"{"x": [{"$ref": "../b/one.json#/d"}, {"$ref": "#/x"}, {"$ref": "https://e/f.json"}]}"##,
        );
        write("b/one.json", r#"{"y": {"$ref": "two.json"}}"#);
        write("b/two.json", r#"{"z": {"$ref": "../a/api.json"}}"#);
        write("b/three.json", "{}");
        mirror(vec![api], to.path()).unwrap();
        let copied = |name: &str| to.path().join(copy_name(&from.path().join(name))).exists();
        assert!(copied("a/api.json") && copied("b/one.json") && copied("b/two.json"));
        assert!(!copied("b/three.json"));
        assert_eq!(copy_name(Path::new("/x/./y/../z.json")), Path::new("files/x/z.json"));
    }
}
