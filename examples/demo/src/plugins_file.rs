//! The configuration the broker is started with: the repository's, or a copy of it that names another AsyncAPI document.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use toml::{Table, Value};

use crate::{documents, masks};

/// What the demo needs to know of a `plugins.toml`.
#[derive(Debug)]
pub(crate) struct PluginsFile {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Fields the plugin `redact` masks, as tokens of their pointers.
    pub(crate) masked: Vec<Vec<String>>,
}

impl PluginsFile {
    /// The file as it is.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let table = read(path)?;
        Ok(Self { path: path.to_owned(), masked: masked(&table) })
    }

    /// A copy in `folder` whose AsyncAPI document is another one. The file may name only files in its own folder tree: the
    /// documents and what they refer to are copied there as well.
    pub(crate) fn with_asyncapi(path: &Path, asyncapi: &Path, folder: &Path) -> Result<Self> {
        let mut table = read(path)?;
        let home = std::path::absolute(path)?.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let asyncapi = std::path::absolute(asyncapi)?;
        let mut named = Vec::new();
        let replaced = retarget(&mut table, &home, &asyncapi, &mut named);
        ensure!(replaced > 0, "{}: no plugin has a setting `asyncapi = \"file:…\"` to replace", path.display());
        documents::mirror(named, folder)?;
        let copy = folder.join("plugins.toml");
        std::fs::write(&copy, toml::to_string(&table)?).with_context(|| format!("cannot write {}", copy.display()))?;
        Ok(Self { path: copy, masked: masked(&table) })
    }
}

fn read(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("{} is not TOML", path.display()))
}

/// Gives every plugin absolute paths, and the copies' names to what settings name; returns how many documents were
/// replaced, and adds all that are needed to `named`.
fn retarget(table: &mut Table, home: &Path, asyncapi: &Path, named: &mut Vec<PathBuf>) -> usize {
    let mut replaced = 0;
    let plugins = table.get_mut("plugin").and_then(Value::as_table_mut);
    for plugin in plugins.into_iter().flat_map(|all| all.iter_mut()).filter_map(|(_, value)| value.as_table_mut()) {
        if let Some(Value::String(from)) = plugin.get_mut("from") {
            *from = home.join(&*from).display().to_string();
        }
        let settings = plugin.get_mut("settings").and_then(Value::as_table_mut);
        for (name, setting) in settings.into_iter().flat_map(|settings| settings.iter_mut()) {
            let Value::String(text) = setting else { continue };
            let Some(file) = text.strip_prefix("file:") else { continue };
            let file = if name == "asyncapi" { asyncapi.to_owned() } else { home.join(file) };
            replaced += usize::from(name == "asyncapi");
            *text = format!("file:{}", documents::copy_name(&file).display());
            named.push(file);
        }
    }
    replaced
}

fn masked(table: &Table) -> Vec<Vec<String>> {
    let pointers =
        ["plugin", "redact", "settings", "pointers"].iter().try_fold(Value::Table(table.clone()), |value, name| {
            value.as_table().and_then(|table| table.get(*name)).cloned()
        });
    let pointers = pointers.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    pointers.iter().filter_map(Value::as_str).map(masks::tokens).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        version = 1
        [plugin.schema]
        from = "target/plugins/schema.wasm"
        settings = { asyncapi = "file:a.json", other = "file:b.json", n = 1 }
        [plugin.redact]
        from = "/abs/redact.wasm"
        settings = { pointers = ["/payload/sender/email", "/a~1b"] }
    "#;

    #[test]
    fn a_copy_names_the_other_document_and_whole_paths() {
        let mut table: Table = FILE.parse().unwrap();
        let mut named = Vec::new();
        assert_eq!(retarget(&mut table, Path::new("/home"), Path::new("/other.json"), &mut named), 1);
        assert_eq!(named, [Path::new("/other.json"), Path::new("/home/b.json")]);
        let schema = &table["plugin"]["schema"];
        assert_eq!(schema["from"].as_str(), Some("/home/target/plugins/schema.wasm"));
        assert_eq!(schema["settings"]["asyncapi"].as_str(), Some("file:files/other.json"));
        assert_eq!(schema["settings"]["other"].as_str(), Some("file:files/home/b.json"));
        assert_eq!(table["plugin"]["redact"]["from"].as_str(), Some("/abs/redact.wasm"));
    }

    #[test]
    fn masked_fields_come_from_the_settings() {
        assert_eq!(masked(&FILE.parse().unwrap()), [vec!["payload", "sender", "email"], vec!["a/b"]]);
        assert!(masked(&"version = 1".parse().unwrap()).is_empty());
    }
}
